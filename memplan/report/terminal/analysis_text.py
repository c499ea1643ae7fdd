"""``memplan analyze`` as text: the peak, what it is made of, and what holds that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from memplan.api.analysis import NO_BACKWARD
from memplan.ops.float_types import NO_SESSION
from memplan.report.terminal.blocks import Blocks, backward_at, curve
from memplan.report.terminal.loops_text import stored_tables
from memplan.report.terminal.passes import narrowing_table
from memplan.report.terminal.state_text import doubt_lines, offer_line, state_lines
from memplan.report.terminal.tables import Table, group, line, notes, section
from memplan.simulate.explain import Live, TensorClass
from memplan.units import counted, format_bytes

if TYPE_CHECKING:
    from memplan.api.analysis import Analysis
    from memplan.simulate.pattern import LaterRuns
    from memplan.simulate.timeline import Timeline

_MODULES_SHOWN = 8


def headline(analysis: Analysis) -> str:
    """The answer in one line, what a budget is held against; the name comes from the model."""
    timeline = analysis.timeline
    told = f"peak {format_bytes(timeline.peak_with_workspace_bytes)} {analysis.peak_place}"
    if analysis.uncounted:
        what = counted(analysis.uncounted, "tensor")
        told = f"{told}, without {what} NOT COUNTED, whose sizes are decided at run time"
    return told


def render(
    analysis: Analysis,
    *,
    top: int = 20,
    details: bool = False,
) -> Group:
    """Headline, facts, classes, modules, loops, the ``top`` tensors at the peak, assumptions.

    ``details`` leaves nothing out.
    """
    unopened = [note for note in analysis.inexact if NO_SESSION in note]
    parts: list[RenderableType] = [
        line(f"{note}; use float16 or float32", "bold") for note in dict.fromkeys(unopened)
    ]
    parts.append(line(headline(analysis), "bold"))
    parts += [line(fact) for fact in _facts(analysis)]
    timeline = analysis.timeline
    parts.append(Blocks(curve("", timeline, backward_at(timeline, analysis.phases))))
    parts += section(_class_table(analysis))
    if analysis.stashes:
        parts += section(_module_table(analysis))
    for table in stored_tables(analysis):
        parts += section(table)
    parts += section(narrowing_table(analysis))
    if top and analysis.at_peak:
        parts += section(_live_table(analysis.at_peak, top, _alone(analysis)))
    above = doubt_lines(analysis)
    told = [
        note
        for note in analysis.assumptions
        if not note.startswith(NO_BACKWARD) and note not in above
    ]
    return group([*parts, *notes(told, details)])


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
    if analysis.is_forward_only:
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
    if analysis.session.provider != "cuda":
        return []
    return [f"per step on {analysis.work.device} (estimated): {analysis.work.words}"]


def _later_line(later: LaterRuns) -> str:
    return (
        f"every run after the first: {format_bytes(later.peak_bytes)}, as the memory pattern holds "
        f"a block of {format_bytes(later.block_bytes)} throughout"
    )


def _class_table(analysis: Analysis) -> Table:
    table = Table(
        f"At the peak{_alone(analysis)}, by class",
        ("class", "text"),
        ("size", "number"),
        ("share", "number"),
        ("bytes", "number"),
    )
    whole = max(analysis.timeline.peak_bytes, 1)
    for name, nbytes in sorted(analysis.by_class.items(), key=lambda item: -item[1]):
        table.row(str(name), format_bytes(nbytes), f"{100 * nbytes / whole:.1f}%", f"{nbytes:,}")
    return table


def _alone(analysis: Analysis) -> str:
    """Whose peak the tables are of, where workspace makes another."""
    return " of tensors alone" if analysis.timeline.lifted else ""


def _module_table(analysis: Analysis) -> Table:
    total: dict[str, int] = {}
    for stash in analysis.stashes:
        total[stash.module] = total.get(stash.module, 0) + stash.nbytes
    ranked = sorted(total.items(), key=lambda item: -item[1])
    whole = sum(total.values())
    at_peak = format_bytes(analysis.by_class.get(TensorClass.STASH, 0))
    table = Table(
        f"Stash: {format_bytes(whole)} in all, {at_peak} of it at the peak; "
        f"{counted(len(analysis.stashes), 'tensor')} made in forward and kept for backward, in "
        f"{counted(len(ranked), 'module')}",
        ("module", "name"),
        ("size", "number"),
        ("share", "number"),
    )
    for name, nbytes in ranked[:_MODULES_SHOWN]:
        table.row(name, format_bytes(nbytes), f"{100 * nbytes / whole:.1f}%")
    if len(ranked) > _MODULES_SHOWN:
        rest = sum(nbytes for _, nbytes in ranked[_MODULES_SHOWN:])
        more = f"{len(ranked) - _MODULES_SHOWN} more"
        table.row(more, format_bytes(rest), f"{100 * rest / whole:.1f}%")
    return table


def _live_table(live: Sequence[Live], top: int, alone: str) -> Table:
    shown = live[:top]
    number = f"{len(shown)} " if len(shown) > 1 else ""
    table = Table(
        f"Live at the peak{alone}: the {number}largest of {counted(len(live), 'buffer')}",
        ("tensor", "name"),
        ("size", "number"),
        ("class", "text"),
        ("steps", "number"),
        ("made by", "name"),
        ("held by", "phrase"),
    )
    for item in shown:
        table.row(
            item.name,
            format_bytes(item.nbytes),
            str(item.tensor_class),
            f"{item.birth}-{item.death}",
            item.producer,
            item.held_by,
        )
    return table
