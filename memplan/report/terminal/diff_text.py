"""``memplan diff`` as text: the difference, its reason, classes, tensors and modules."""

from __future__ import annotations

from rich.console import Group, RenderableType

from memplan.api.analysis import Analysis
from memplan.api.diff.diff_result import ChangeGroup, Diff
from memplan.ir.modules import NO_MODULE
from memplan.report.diff_words import (
    dims_line,
    graph_line,
    headline,
    place,
    reason,
    what_of,
    work_lines,
)
from memplan.report.terminal.blocks import Blocks, Curve, backward_at, curve
from memplan.report.terminal.tables import Table, group, line, notes, section
from memplan.units import counted, format_bytes, format_delta

_GROUPS_SHOWN, _MODULES_SHOWN = 20, 8


def render(diff: Diff, *, details: bool = False) -> Group:
    """Headline, reason, both peaks, graphs, and tables; ``details`` leaves nothing out."""
    why, dims = reason(diff), dims_line(diff)
    parts: list[RenderableType] = [
        line(headline(diff), "bold"),
        *([line(f"why: {why}")] if why else []),
        line(f"old  {place(diff.old)}"),
        line(f"new  {place(diff.new)}"),
        *([line(f"dims: {dims}")] if dims else []),
        line(graph_line(diff)),
        *(line(text) for text in work_lines(diff)),
        Blocks(*(_curve(side, name) for side, name in ((diff.old, "old"), (diff.new, "new")))),
        *section(_class_table(diff, details)),
    ]
    if diff.changes or diff.inside_bytes:
        parts += section(_change_table(diff, details))
        parts += section(_module_table(diff, details))
    told = dict.fromkeys((*diff.old.inexact, *diff.new.inexact))
    return group([*parts, *notes(told, details)])


def _curve(analysis: Analysis, label: str) -> Curve:
    return curve(label, analysis.timeline, backward_at(analysis.timeline, analysis.phases))


def _class_table(diff: Diff, details: bool) -> Table:
    names = ("old", "new", "change", "bytes")
    table = Table("At the peak, by class", ("class", "text"), *((n, "number") for n in names))
    for c in sorted(diff.classes, key=lambda c: -abs(c.delta_bytes)):
        if c.delta_bytes or details or c.new_bytes > diff.new.timeline.peak_bytes // 100:
            delta = format_delta(c.delta_bytes)
            table.row(
                c.name,
                format_bytes(c.old_bytes),
                format_bytes(c.new_bytes),
                delta,
                f"{c.delta_bytes:+,}" if c.delta_bytes else "=",
            )
    table.rule()
    before, after = diff.old.timeline.peak_bytes, diff.new.timeline.peak_bytes
    delta, exact = format_delta(diff.delta_bytes), f"{diff.delta_bytes:+,}"
    table.row("peak", format_bytes(before), format_bytes(after), delta, exact)
    return table


def _change_table(diff: Diff, details: bool) -> Table:
    """Tensors alike in one row, those that explain the difference first."""
    groups = diff.groups
    shown = groups if details else _most(groups)
    table = Table(
        f"At the peak, by tensor: {counted(len(diff.changes), 'change')} that sum to "
        f"{format_delta(diff.delta_bytes) if diff.delta_bytes else '0 B'}",
        ("", "text"),
        ("tensor", "name"),
        ("count", "number"),
        ("each", "number"),
        ("change", "number"),
        ("class", "text"),
        ("held by", "phrase"),
    )
    for item in shown:
        first = item.first
        table.row(
            what_of(first),
            item.name if first.old_name is None else f"{item.name} (was {first.old_name})",
            str(item.count),
            _each(item),
            format_delta(item.delta_bytes),
            first.tensor_class,
            first.held_by,
        )
    rest = sum(g.delta_bytes for g in groups) - sum(g.delta_bytes for g in shown)
    if len(groups) > len(shown):
        more = len(groups) - len(shown)
        table.row("", counted(more, "more kind"), "", "", format_delta(rest), "", "")
    if diff.inside_bytes:
        table.row("", "inside loop bodies", "", "", format_delta(diff.inside_bytes), "", "")
    return table


def _most(groups: tuple[ChangeGroup, ...]) -> list[ChangeGroup]:
    """The groups of most bytes, in their order."""
    most = sorted(groups, key=lambda g: -abs(g.delta_bytes))[:_GROUPS_SHOWN]
    kept = {id(g) for g in most}
    return [g for g in groups if id(g) in kept]


def _each(item: ChangeGroup) -> str:
    old, new = item.first.old_bytes, item.first.new_bytes
    if old and new and old != new:
        return f"{format_bytes(old)} -> {format_bytes(new)}"
    return format_bytes(old or new)


def _module_table(diff: Diff, details: bool) -> Table | None:
    """The difference by module; None where there is but one, or none but the loss."""
    modules = list(diff.modules.items())
    if len(modules) < 2 or not diff.modules.keys() - {NO_MODULE, "loss"}:
        return None
    shown = modules if details else modules[:_MODULES_SHOWN]
    table = Table("By module", ("module", "name"), ("change", "number"))
    for name, nbytes in shown:
        what = "(weights and others of no module)" if name == NO_MODULE else name
        table.row(what, format_delta(nbytes))
    if len(modules) > len(shown):
        rest = sum(nbytes for _, nbytes in modules[len(shown) :])
        table.row(f"{len(modules) - len(shown)} more", format_delta(rest))
    return table
