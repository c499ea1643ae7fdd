"""Results as text for people. Only this module and ``text_profile`` use rich."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from memplan.report.terminal.scans import scan_line, untabled_scans
from memplan.simulate.explain import Live
from memplan.units import echo_size, format_bytes, format_delta

if TYPE_CHECKING:
    from memplan.api.analyze import Analysis
    from memplan.api.frontier import FrontierPoint
    from memplan.api.rewrite.run import Rewrite
    from memplan.api.validate.run import Run, Validation
    from memplan.plain.finish import PlainModel
    from memplan.solver.placement.place import Placement

_PLAIN_WIDTH = 120
_MODULES_SHOWN = 8


def console(color: str = "auto", stderr: bool = False) -> Console:
    """A console for ``--color auto|always|never``; NO_COLOR is respected by rich."""
    return Console(
        file=sys.stderr if stderr else sys.stdout,
        force_terminal={"always": True, "never": False}.get(color),
        no_color=True if color == "never" else None,
        highlight=False,
        soft_wrap=False,
        width=None if sys.stdout.isatty() else _PLAIN_WIDTH,
    )


def to_text(content: RenderableType) -> str:
    """Render without colours, for files."""
    buffer = io.StringIO()
    Console(file=buffer, width=_PLAIN_WIDTH, no_color=True, highlight=False).print(content)
    return buffer.getvalue()


def print_analysis(
    analysis: Analysis,
    points: Sequence[FrontierPoint] = (),
    *,
    top: int,
    color: str = "auto",
    brief: bool = False,
    details: bool = False,
) -> None:
    """Print an analysis; ``brief`` is the first line alone."""
    content = Text(headline(analysis)) if brief else render_analysis(analysis, points, top, details)
    console(color).print(content)


def analysis_text(analysis: Analysis, points: Sequence[FrontierPoint] = (), *, top: int) -> str:
    """An analysis as plain text."""
    return to_text(render_analysis(analysis, points, top, details=True))


def headline(analysis: Analysis) -> str:
    """The answer in one line."""
    timeline = analysis.timeline
    node = timeline.order[timeline.peak_step] if timeline.order else None
    where = "" if node is None else f" ({analysis.phases.of[node]}: {analysis.peak_node})"
    return (
        f"peak {format_bytes(timeline.peak_bytes)} at step "
        f"{timeline.peak_step}/{len(timeline.order)}{where}"
    )


def render_analysis(
    analysis: Analysis, points: Sequence[FrontierPoint], top: int, details: bool
) -> Group:
    """Headline, classes, modules, tensors at the peak, floor and assumptions."""
    from memplan.report.terminal import loops as text_recurrent
    from memplan.report.terminal import passes as text_passes

    timeline = analysis.timeline
    workspace = timeline.peak_with_workspace_bytes - timeline.peak_bytes
    facts = [
        f"{analysis.path}: {len(analysis.graph.nodes)} nodes, {analysis.session.name} session on "
        f"{analysis.session.provider}{_dims(analysis)}",
        f"resident {format_bytes(timeline.resident_bytes)} + dynamic "
        f"{format_bytes(timeline.dynamic_peak_bytes)} = {timeline.peak_bytes:,} B"
        + (f"; with kernel workspace +{format_bytes(workspace)}" if workspace else ""),
        f"floor {format_bytes(analysis.floor_bytes)}: {analysis.floor_reason}",
    ]
    if analysis.placement is not None:
        facts.append(_placement_line(analysis, analysis.placement))
    facts += [scan_line(pair, analysis.dims, details) for pair in untabled_scans(analysis)]
    parts: list[RenderableType] = [Text(headline(analysis), style="bold"), *map(Text, facts)]
    parts += [Text(), _class_table(analysis)]
    if analysis.stashes:
        parts += [Text(), _module_table(analysis)]
    parts += [row for table in text_recurrent.pair_tables(analysis) for row in (Text(), table)]
    narrower = text_passes.narrowing_table(analysis)
    if narrower is not None:
        parts += [Text(), narrower]
    if top and analysis.at_peak:
        parts += [Text(), _live_table(analysis.at_peak, top)]
    if points:
        parts += [Text(), _frontier_table(points)]
    parts += _notes(analysis.assumptions, details)
    return Group(*parts)


def _placement_line(analysis: Analysis, placement: Placement) -> str:
    """The smallest arena found, against the most bytes live at once."""
    inside = placement.max_live != analysis.timeline.dynamic_peak_bytes
    what = "most bytes live outside control flow," if inside else "dynamic peak of"
    fits = "1 order" if placement.fits == 1 else f"{placement.fits} orders and policies"
    over = 100 * (placement.height / max(placement.max_live, 1) - 1)
    return (
        f"placement: {format_bytes(placement.height)} of arena would hold the {what} "
        f"{format_bytes(placement.max_live)} (+{over:.1f}%), best of {fits}"
        f"{' and a search' if placement.searched else ''}"
    )


def _frontier_table(points: Sequence[FrontierPoint]) -> Group:
    """Budget, extra time, recomputed nodes."""
    table = _table([(name, "right") for name in ("budget", "bytes", "extra time", "recomputed")])
    for point in points:
        cells = (
            (f"{100 * point.extra_cost_fraction:.2f}%", str(point.clones))
            if point.feasible
            else ("no plan", f"lowest peak {format_bytes(point.peak_bytes)}")
        )
        table.add_row(format_bytes(point.budget_bytes), f"{point.budget_bytes:,}", *cells)
    return _titled("Frontier: what a budget costs (estimated; file as it is, no fusions)", table)


def _dims(analysis: Analysis) -> str:
    bound = ", ".join(f"{name}={size}" for name, size in analysis.dims.items())
    return f", {bound}" if bound else ""


def _titled(title: str, table: Table) -> Group:
    """A table under a heading that does not wrap to the table's width."""
    return Group(Text(title, style="bold"), table)


def _table(columns: Sequence[tuple[str, str]]) -> Table:
    """``columns``: (heading, ``left`` | ``right`` | ``fold``)."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for heading, kind in columns:
        table.add_column(
            heading,
            justify="right" if kind == "right" else "left",
            no_wrap=kind != "fold",
            overflow="fold" if kind == "fold" else "ellipsis",
        )
    return table


def _class_table(analysis: Analysis) -> Group:
    table = _table([("class", "left"), ("size", "right"), ("share", "right"), ("bytes", "right")])
    whole = max(analysis.timeline.peak_bytes, 1)
    for name, nbytes in sorted(analysis.by_class.items(), key=lambda item: -item[1]):
        table.add_row(
            str(name), format_bytes(nbytes), f"{100 * nbytes / whole:.1f}%", f"{nbytes:,}"
        )
    return _titled("At the peak, by class", table)


def _module_table(analysis: Analysis) -> Group:
    total: dict[str, int] = {}
    for stash in analysis.stashes:
        total[stash.module] = total.get(stash.module, 0) + stash.nbytes
    ranked = sorted(total.items(), key=lambda item: -item[1])
    whole = sum(total.values())
    title = (
        f"Stash: {format_bytes(whole)} made in forward and kept for backward, "
        f"{len(analysis.stashes)} tensors in {len(ranked)} modules"
    )
    table = _table([("module", "left"), ("size", "right"), ("share", "right")])
    for name, nbytes in ranked[:_MODULES_SHOWN]:
        table.add_row(escape(name), format_bytes(nbytes), f"{100 * nbytes / whole:.1f}%")
    if len(ranked) > _MODULES_SHOWN:
        rest = sum(nbytes for _, nbytes in ranked[_MODULES_SHOWN:])
        table.add_row(
            f"{len(ranked) - _MODULES_SHOWN} more", format_bytes(rest), f"{100 * rest / whole:.1f}%"
        )
    return _titled(title, table)


def _live_table(live: Sequence[Live], top: int) -> Group:
    title = f"Live at the peak: the {min(top, len(live))} largest of {len(live)} buffers"
    table = _table(
        [
            ("tensor", "fold"),
            ("size", "right"),
            ("class", "left"),
            ("steps", "right"),
            ("made by", "fold"),
            ("held by", "fold"),
        ],
    )
    for item in live[:top]:
        table.add_row(
            escape(item.name),
            format_bytes(item.nbytes),
            str(item.tensor_class),
            f"{item.birth}-{item.death}",
            escape(item.producer),
            escape(item.held_by),
        )
    return _titled(title, table)


def _notes(notes: Iterable[str], details: bool) -> list[RenderableType]:
    notes = list(dict.fromkeys(notes))
    if not notes:
        return []
    shown = notes if details else notes[:4]
    lines: list[RenderableType] = [Text(), Text("Assumptions", style="bold")]
    lines += [Text(f"- {note}") for note in shown]
    if len(notes) > len(shown):
        lines.append(Text(f"- {len(notes) - len(shown)} more (-v shows them)"))
    return lines


def print_rewrite(result: Rewrite, color: str = "auto", details: bool = False) -> None:
    """Print what a rewrite did."""
    console(color).print(render_rewrite(result, details))


def render_rewrite(result: Rewrite, details: bool) -> Group:
    """Before and after, extra cost, what is recomputed, and how to load the file."""
    from memplan.report.terminal import loops as text_recurrent
    from memplan.report.terminal import passes as text_passes

    plan, changed = result.plan, text_recurrent.change_table(result)
    after = result.timeline.peak_with_workspace_bytes
    if plan.clones or changed is not None:
        nodes = f"{plan.clones} nodes recomputed" + (" and inside loops" if changed else "")
        first = (
            f"fits: peak {format_bytes(after)} within the budget, {nodes}, "
            f"{100 * plan.extra_cost_fraction:.2f}% more time "
            + ("(from measured seconds)" if result.measured_nodes else "(estimated)")
        )
    elif result.original.timeline.peak_with_workspace_bytes <= result.budget_bytes:
        first = f"the budget already holds: peak {format_bytes(after)}, nothing is recomputed"
    else:
        how = "what is free" if result.passes else "node order"
        first = f"fits by {how} alone: peak {format_bytes(after)}, nothing is recomputed"
    parts: list[RenderableType] = [Text(first, style="bold")]
    parts.append(Text(f"budget {echo_size(result.options.budget, result.budget_bytes)}"))
    parts += [Text(), _steps_table(result)]
    if plan.clones:
        parts += [Text(), _recomputed_table(result)]
    parts += [Text(), changed] if changed else []
    parts.append(Text())
    parts.append(
        Text(
            f"strategy {plan.strategy}, {plan.planning_seconds:.2f} s; lower bound on the extra "
            f"time: {100 * plan.bound_fraction:.2f}% ({plan.bound_kind})"
        )
    )
    if plan.refusals:
        parts.append(Text(_refusal_line(result)))
    parts += [Text(scan_line(pair, result.original.dims, details)) for pair in result.scans]
    if result.plain is not None:
        parts.append(Text(_added_line(result.plain)))
    parts += [Text(line) for line in text_passes.removed_lines(result, details)]
    if result.output is not None:
        parts += [Text(f"wrote {result.output}"), Text(), *_loading_lines(result)]
    else:
        parts.append(Text("dry run: nothing was written"))
    parts += _notes(result.assumptions, details)
    return Group(*parts)


def _steps_table(result: Rewrite) -> Group:
    """The way from the original to the result, one row per step."""
    numbers = ("nodes", "peak", "with workspace", "change")
    table = _table([("", "left"), *((name, "right") for name in numbers), ("", "fold")])
    plain, steps = result.plain, result.waterfall
    for step in steps:
        name = "original, as a plain session loads it" if plain and step is steps[0] else step.name
        table.add_row(
            name,
            str(len(step.timeline.graph.nodes)),
            format_bytes(step.timeline.peak_bytes),
            format_bytes(step.timeline.peak_with_workspace_bytes),
            format_delta(-step.saved_bytes) if step is not steps[0] else "",
            escape(step.note),
        )
    if plain:
        later, first_run = plain.later, result.timeline.peak_with_workspace_bytes
        table.add_row(
            "  from the second run on",
            "",
            format_bytes(later.peak_bytes),
            format_bytes(later.peak_with_workspace_bytes),
            format_delta(later.peak_with_workspace_bytes - first_run),
        )
    return _titled("Peak, step by step", table)


def _recomputed_table(result: Rewrite) -> Group:
    """Recomputed nodes grouped by operator."""
    graph = result.plan.extended.graph
    costs: dict[str, list[int]] = {}
    for node in graph.nodes:
        runs = result.plan.recomputed.get(node.name, 0)
        if runs:
            row = costs.setdefault(node.op, [0, 0])
            row[0] += runs
            row[1] += sum(graph.tensors[t].nbytes for t in node.writes)
    table = _table([("operator", "left"), ("nodes", "right"), ("bytes not kept", "right")])
    for op, (count, nbytes) in sorted(costs.items(), key=lambda item: -item[1][1])[:12]:
        table.add_row(op, str(count), format_bytes(nbytes))
    return _titled("Recomputed", table)


def _refusal_line(result: Rewrite) -> str:
    reasons: dict[str, list[str]] = {}
    for name, reason in result.plan.refusals.items():
        reasons.setdefault(reason, []).append(name)
    parts = [
        f"{len(names)} × {reason} ({names[0]}{', ...' if len(names) > 1 else ''})"
        for reason, names in reasons.items()
    ]
    return "never run again: " + "; ".join(parts)


def _added_line(plain: PlainModel) -> str:
    counts = [(plain.fences, "fence"), (plain.veils, "veil"), (plain.pins, "pin")]
    named = ", ".join(f"{n} {name}{'' if n == 1 else 's'}" for n, name in counts)
    more = plain.timeline.peak_with_workspace_bytes - plain.tuned_peak_bytes
    return (
        f"added for plain sessions: {named} ({plain.added_nodes} small nodes, no copies); a tuned "
        f"session takes {format_bytes(plain.tuned_peak_bytes)}, a plain one {format_delta(more)}"
    )


def _loading_lines(result: Rewrite) -> list[Text]:
    if result.plain is not None:
        return [
            Text("load it with every option on its default, in any language:"),
            Text(f'    session = onnxruntime.InferenceSession("{result.output}")'),
        ]
    return [
        Text("load it (the budget holds in a tuned session only):"),
        Text(f'    session = memplan.load("{result.output}")'),
        Text("or  session = onnxruntime.InferenceSession(path, memplan.session_options(path))"),
    ]


def print_validation(validation: Validation, color: str = "auto", details: bool = False) -> None:
    """Print what was measured."""
    console(color).print(render_validation(validation, details))


def render_validation(validation: Validation, details: bool) -> Group:
    """Verdict, measurements side by side, and what to know about them."""
    verdict = "proved" if not validation.findings else "not proved"
    style = "bold green" if not validation.findings else "bold red"
    parts: list[RenderableType] = [Text(f"{verdict}: {validation.summary}", style=style)]
    parts += [Text(f"- {finding}", style="red") for finding in validation.findings]
    parts += [Text(), _runs_table(validation)]
    parts += [Text(line) for line in validation.details]
    parts += _notes(validation.notes, details)
    return Group(*parts)


def _runs_table(validation: Validation) -> Group:
    runs: list[Run] = list(validation.runs)
    table = _table([("", "left"), *[(run.label, "right") for run in runs]])
    rows = [
        ("peak, predicted", [_bytes(run.predicted_peak_bytes) for run in runs]),
        ("peak, measured", [_bytes(run.measured_peak_bytes) for run in runs]),
        ("  of it resident", [_bytes(run.resident_bytes) for run in runs]),
        ("  of it dynamic", [_bytes(run.measured_dynamic_bytes) for run in runs]),
        (
            "dynamic, later runs, predicted",
            [_bytes(run.predicted_later_dynamic_bytes) for run in runs],
        ),
        ("dynamic, later runs, measured", [_bytes(run.second_run_dynamic_bytes) for run in runs]),
        ("arena held", [_bytes(run.arena_bytes) for run in runs]),
        ("RSS growth, first run", [_bytes(run.rss_growth_bytes) for run in runs]),
        ("step time, median", [_seconds(run.seconds_median) for run in runs]),
    ]
    for name, cells in rows:
        table.add_row(name, *cells)
    return _titled("Measured, each in a process of its own (bytes)", table)


def _bytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes:,}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f} ms"
