"""What ``analyze`` says: the peak, what it is made of, and what holds that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.api.analysis import NO_BACKWARD
from memplan.ops.float_types import NO_SESSION
from memplan.providers import on_host
from memplan.report.parts import (
    Column,
    Life,
    Line,
    Notes,
    Part,
    Report,
    Table,
    TensorSearch,
    Timelines,
    curve,
)
from memplan.report.tell.state import doubt_lines, offer_line, state_lines
from memplan.simulate.explain import TensorClass
from memplan.units import counted, format_bytes

if TYPE_CHECKING:
    from memplan.api.analysis import Analysis
    from memplan.passes.loops.loop_pairs import RecurrentPair
    from memplan.simulate.timeline import LaterRuns, Timeline

_MODULES_SHOWN = 8


def headline(analysis: Analysis) -> str:
    """The answer in one line, what a budget is held against; the name comes from the model."""
    timeline = analysis.timeline
    told = f"peak {format_bytes(timeline.peak_with_workspace_bytes)} {analysis.peak_place}"
    if analysis.uncounted:
        what = counted(analysis.uncounted, "tensor")
        told = f"{told}, without {what} NOT COUNTED, whose sizes are decided at run time"
    return told


def tell_analysis(analysis: Analysis, top: int = 20) -> Report:
    """Headline, facts, classes, modules, loops, the ``top`` tensors at the peak, assumptions."""
    unopened = dict.fromkeys(note for note in analysis.inexact if NO_SESSION in note)
    parts: list[Part] = [Line(f"{note}; use float16 or float32") for note in unopened]
    facts, timeline = _facts(analysis), analysis.timeline
    curves = [curve("", timeline, analysis.phases)]
    parts += [
        Line(headline(analysis)),
        *facts,
        Timelines(curves, {"Memory over the step": analysis}),
        _class_table(analysis),
        _module_table(analysis),
        *map(_stored_table, analysis.recurrent),
        _live_table(analysis, top),
        TensorSearch(analysis),
        Notes([note for note in analysis.assumptions if note not in facts]),
    ]
    return Report(parts, analysis.path.name, f"fingerprint {analysis.fingerprint}")


def _facts(analysis: Analysis) -> list[str]:
    timeline = analysis.timeline
    bound = "".join(f", {name}={size}" for name, size in analysis.dims.items())
    floor = analysis.floor.line
    facts = [
        *_inexact(analysis),
        *doubt_lines(analysis),
        f"{analysis.path}: {counted(len(analysis.graph.nodes), 'node')}, "
        f"{analysis.session.name} session on {analysis.session.provider}{bound}",
        _sum_line(timeline),
        floor,
        *_work(analysis),
        *state_lines(analysis.graph),
        *offer_line(timeline, analysis.with_state_in_place()),
    ]
    facts += [note for note in analysis.assumptions if note.startswith(NO_BACKWARD)]
    if analysis.later is not None:
        facts.insert(facts.index(floor), _later_line(analysis.later))
    return facts


def _sum_line(timeline: Timeline) -> str:
    """What the headline is the sum of; where workspace is part of it, what runs show."""
    step = timeline.peak_with_workspace_step
    workspace = int(timeline.workspace[step]) if timeline.lifted else 0
    dynamic = int(timeline.dynamic[step]) if timeline.order else 0
    parts = f"resident {format_bytes(timeline.resident_bytes)} + dynamic {format_bytes(dynamic)}"
    if not workspace:
        return f"{parts} = {timeline.peak_bytes:,} B"
    return (
        f"{parts} + workspace of the kernel {format_bytes(workspace)}, predicted only = "
        f"{timeline.peak_with_workspace_bytes:,} B; tensors alone, which runs show: "
        f"{format_bytes(timeline.peak_bytes)} at step {timeline.peak_step}"
    )


def _inexact(analysis: Analysis) -> list[str]:
    """Why a run may take more or less than the headline says."""
    if not analysis.inexact:
        return []
    first, *more = dict.fromkeys(analysis.inexact)
    rest = f" (and {counted(len(more), 'more reason')}: see Assumptions)" if more else ""
    return [f"NOT EXACT: {first}{rest}"]


def _work(analysis: Analysis) -> list[str]:
    """On a GPU every node is a launch."""
    if on_host(analysis.session.provider):
        return []
    return [f"per step on {analysis.work.device} (estimated): {analysis.work.words}"]


def _later_line(later: LaterRuns) -> str:
    return (
        f"every run after the first: {format_bytes(later.peak_bytes)}, as the memory pattern holds "
        f"a block of {format_bytes(later.block_bytes)} throughout"
    )


def _class_table(analysis: Analysis) -> Table:
    whole = analysis.timeline.peak_bytes
    ranked = sorted(analysis.by_class.items(), key=lambda item: -item[1])
    return Table(
        f"At the peak{_alone(analysis)}, by class",
        (
            Column("class", "class"),
            Column("size", "bytes"),
            _share(whole),
            Column("bytes", "count"),
        ),
        [(name, nbytes, nbytes, nbytes) for name, nbytes in ranked],
    )


def _alone(analysis: Analysis) -> str:
    """Whose peak the tables are of, where workspace makes another."""
    return " of tensors alone" if analysis.timeline.lifted else ""


def _share(whole: int) -> Column:
    """Bytes in percent of ``whole``."""
    return Column("share", "number", lambda part: f"{100 * part / max(whole, 1):.1f}%", sum)


def _module_table(analysis: Analysis) -> Table:
    kept: dict[str, list[int]] = {}
    for stash in analysis.stashes:
        kept.setdefault(stash.module, []).append(stash.nbytes)
    rows = [(name, sum(sizes), sum(sizes), len(sizes)) for name, sizes in kept.items()]
    whole = sum(stash.nbytes for stash in analysis.stashes)
    at_peak = format_bytes(analysis.by_class.get(TensorClass.STASH, 0))
    return Table(
        f"Stash: {format_bytes(whole)} in all, {at_peak} of it at the peak; "
        f"{counted(len(analysis.stashes), 'tensor')} made in forward and kept for backward, in "
        f"{counted(len(rows), 'module')}",
        (
            Column("module", "name"),
            Column("size", "bytes"),
            _share(whole),
            Column("tensors", "count", wide=True),
        ),
        sorted(rows, key=lambda row: -row[1]),
        most=_MODULES_SHOWN,
        tree=True,
    )


def _stored_table(pair: RecurrentPair) -> Table:
    """What the backward loop reads of what the forward loop stacked, by name."""
    return Table(
        f"Stored by {pair.forward.node.op_type} {pair.forward.node.name} for "
        f"{pair.backward.node.name}: {format_bytes(pair.step_bytes)} a step × "
        f"{pair.steps} = {format_bytes(pair.steps * pair.step_bytes)}",
        (
            Column("stacked", "name"),
            Column("in the body", "name"),
            Column("shape", "number"),
            Column("per step", "bytes"),
            Column("in total", "bytes"),
        ),
        [
            (
                item.name,
                item.tensor,
                "×".join(map(str, item.type.shape or ())),
                item.step_bytes,
                pair.steps * item.step_bytes,
            )
            for item in sorted(pair.stored, key=lambda row: -row.step_bytes)
        ],
    )


def _live_table(analysis: Analysis, top: int) -> Table:
    shown, timeline = analysis.at_peak[:top], analysis.timeline
    number = f"{len(shown)} " if len(shown) > 1 else ""
    steps, peak = len(timeline.order), timeline.peak_step
    return Table(
        f"Live at the peak{_alone(analysis)}: the {number}largest of "
        f"{counted(len(analysis.at_peak), 'buffer')}",
        (
            Column("tensor", "name"),
            Column("size", "bytes"),
            Column("class", "class"),
            Column("module", "phrase", wide=True),
            Column("steps", "number"),
            Column("made by", "name"),
            Column("held by", "phrase"),
        ),
        [
            (
                item.name,
                item.nbytes,
                item.tensor_class,
                item.module,
                Life(item.birth, item.death, steps, peak, item.tensor_class),
                item.producer,
                item.held_by,
            )
            for item in shown
        ],
    )
