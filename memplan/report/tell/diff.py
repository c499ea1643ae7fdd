"""What ``diff`` says: the difference, its reason, classes, tensors and modules."""

from __future__ import annotations

from collections.abc import Mapping

from memplan.api.analysis import Analysis
from memplan.api.diff.diff_result import ChangeGroup, Diff, left_the_peak
from memplan.api.diff.peak_changes import Change, How, TensorChange
from memplan.ir.modules import NO_MODULE
from memplan.providers import on_host
from memplan.report.parts import (
    Column,
    Line,
    Notes,
    Part,
    Report,
    Spelled,
    Table,
    Timelines,
    curve,
)
from memplan.simulate.step_work import compare_work
from memplan.units import counted, format_bytes, format_delta, told_apart

WORDS: Mapping[How | Change, str] = {
    Change.APPEARED: "new",
    Change.GREW: "larger",
    Change.LONGER: "live longer",
    Change.APART: "no longer in place",
    Change.PEAK_MOVED: "on the peak as it moved",
    Change.RECLASSED: "of another class",
    Change.IN_PLACE: "in place now",
    Change.SHORTER: "freed earlier",
    Change.SHRANK: "smaller",
    Change.GONE: "gone",
    How.RECOMPUTED: "recomputed",
    How.REBUILT: "rebuilt",
    How.PACKED: "packed",
    How.OFFLOADED: "offloaded",
    How.CHUNKED: "in chunks",
}
_AWAY: Mapping[How | Change, str] = {Change.PEAK_MOVED: "off the peak as it moved"}
_REASONS, _OPERATORS, _GROUPS, _MODULES = 3, 4, 20, 8


def tell_diff(diff: Diff, details: bool = False) -> Report:
    """Headline, reason, both peaks, graphs, and tables; ``details`` leaves no class out."""
    old, new = diff.old, diff.new
    why, dims = reason(diff), dims_line(diff)
    parts: list[Part] = [
        Line(headline(diff)),
        *([f"why: {why}"] if why else []),
        f"old  {place(old)}",
        f"new  {place(new)}",
        *([f"dims: {dims}"] if dims else []),
        graph_line(diff),
        *work_lines(diff),
        Timelines(
            [curve("old", old.timeline, old.phases), curve("new", new.timeline, new.phases)],
            {"Before": old, "After": new},
            diff.counterparts,
        ),
        _left_table(diff),
        _class_table(diff, details),
        _change_table(diff),
        _module_table(diff),
        Notes((*old.inexact, *new.inexact)),
    ]
    return Report(
        parts,
        f"{old.path.name} and {new.path.name}",
        f"fingerprints {old.fingerprint} and {new.fingerprint}",
    )


def _left_table(diff: Diff) -> Table:
    """What is no longer at the peak, by how."""
    rows = [(_AWAY.get(how, WORDS[how]), *sums) for how, sums in left_the_peak(diff).items()]
    columns = (Column("how"), Column("tensors", "count"), Column("bytes", "bytes"))
    return Table("What left the peak, and how", columns, rows, wide=True)


def _class_table(diff: Diff, details: bool) -> Table:
    least = diff.new.timeline.peak_bytes // 100
    before, after = diff.old.timeline.peak_bytes, diff.new.timeline.peak_bytes
    exact = Column("bytes", "number", lambda nbytes: f"{nbytes:+,}" if nbytes else "=")
    return Table(
        "At the peak, by class",
        (
            Column("class", "class"),
            Column("old", "bytes"),
            Column("new", "bytes"),
            Column("change", "delta"),
            exact,
        ),
        [
            (c.name, c.old_bytes, c.new_bytes, c.delta_bytes, c.delta_bytes)
            for c in sorted(diff.classes, key=lambda c: -abs(c.delta_bytes))
            if c.delta_bytes or details or c.new_bytes > least
        ],
        below=[[("peak", before, after, diff.delta_bytes, f"{diff.delta_bytes:+,}")]],
    )


def _change_table(diff: Diff) -> Table:
    """Tensors alike in one row, those that explain the difference first."""
    known = any(group.module not in ("", NO_MODULE) for group in diff.groups)
    columns = (
        Column(""),
        Column("module", "phrase", wide=not known),
        Column("tensor", "name"),
        Column("count", "number"),
        Column("each", "number", format_bytes),
        Column("change", "delta"),
        Column("class", "class"),
        Column("held by", "phrase"),
    )
    inside = (None, None, "inside loop bodies", None, None, diff.inside_bytes, None, None)
    return Table(
        f"At the peak, by tensor: {counted(len(diff.changes), 'change')} that sum to "
        f"{format_delta(diff.delta_bytes) if diff.delta_bytes else '0 B'}",
        columns,
        [_change_row(group) for group in diff.groups],
        below=[[inside]] if diff.inside_bytes else (),
        most=_GROUPS,
        weight=5,
        noun="kind",
    )


def _change_row(group: ChangeGroup) -> tuple[object, ...]:
    first = group.first
    old, new = first.old_bytes, first.new_bytes
    resized = old and new and old != new
    return (
        what_of(first),
        "" if group.module == NO_MODULE else group.module,
        group.name if first.old_name is None else f"{group.name} (was {first.old_name})",
        group.count,
        Spelled(f"{format_bytes(old)} -> {format_bytes(new)}", new) if resized else old or new,
        group.delta_bytes,
        first.tensor_class,
        first.held_by,
    )


def _module_table(diff: Diff) -> Table:
    """The difference by module; nothing where there is but one, or none but the loss."""
    words = {NO_MODULE: "(weights and others of no module)"}
    rows = [(words.get(name, name), nbytes) for name, nbytes in diff.modules.items()]
    if len(rows) < 2 or not diff.modules.keys() - {NO_MODULE, "loss"}:
        rows = []
    columns = (Column("module", "name"), Column("change", "delta"))
    return Table("By module", columns, rows, most=_MODULES)


def what_of(change: TensorChange) -> str:
    """What became of a tensor, in words."""
    how = change.how or change.change
    return WORDS[how] if change.new_bytes else _AWAY.get(how, WORDS[how])


def headline(diff: Diff) -> str:
    """``peak +96.0 MiB (+12.4%), 775 MiB -> 871 MiB``; in bytes where rounding hides it."""
    before, after = diff.old.timeline.peak_bytes, diff.new.timeline.peak_bytes
    whole = _with_workspace(diff)
    if before == after:
        return f"peak {format_bytes(after)} in both{whole}"
    old, new = told_apart(before, after)
    share = f" ({100 * diff.delta_bytes / before:+.1f}%)" if before else ""
    return f"peak {format_delta(diff.delta_bytes)}{share}, {old} -> {new}{whole}"


def _with_workspace(diff: Diff) -> str:
    """What ``analyze`` heads its report with, where that is more than tensors."""
    old, new = diff.old.timeline, diff.new.timeline
    if not (old.lifted or new.lifted):
        return ""
    sizes = told_apart(old.peak_with_workspace_bytes, new.peak_with_workspace_bytes)
    return f", tensors alone; with kernel workspace {' -> '.join(sizes)}"


def reason(diff: Diff) -> str:
    """What most of the difference is, in one sentence, with what goes against it; empty where the
    peaks are equal."""
    if not diff.delta_bytes:
        return ""
    sign = 1 if diff.delta_bytes > 0 else -1
    against = _most(diff, -sign)
    return _most(diff, sign) + (f"; against that {against}" if against else "")


def _most(diff: Diff, sign: int) -> str:
    """What most of the bytes that were added (1) or taken away (-1) are, but for kinds of less than
    a hundredth of the difference."""
    found: dict[str, list[int]] = {}
    largest: dict[str, TensorChange] = {}
    for change in diff.changes:
        if sign * change.delta_bytes > 0:
            total = found.setdefault(what_of(change), [0, 0])
            total[0], total[1] = total[0] + 1, total[1] + change.delta_bytes
            largest.setdefault(what_of(change), change)
    ranked = sorted(found.items(), key=lambda item: -abs(item[1][1]))[:_REASONS]
    return "; ".join(
        f"{counted(count, 'tensor')} {what} ({format_delta(nbytes)}, {_named(largest[what])}"
        f"{' and others' if count > 1 else ''})"
        for what, (count, nbytes) in ranked
        if abs(nbytes) * 100 >= abs(diff.delta_bytes)
    )


def _named(change: TensorChange) -> str:
    return change.name if change.module == NO_MODULE else f"{change.module} {change.name}"


def place(analysis: Analysis) -> str:
    """A file and where its peak is."""
    timeline = analysis.timeline
    if not timeline.order:
        return f"{analysis.path}: no nodes"
    phase = analysis.phases.of[timeline.order[timeline.peak_step]]
    step = f"step {timeline.peak_step}/{len(timeline.order)}"
    state = "" if analysis.graph.state is None else ", state in place"
    return f"{analysis.path}: {step} ({phase}: {analysis.peak_node}){state}"


def work_lines(diff: Diff) -> list[str]:
    """Launches, bytes moved and time on a GPU; nothing of a CPU, which no roofline describes."""
    if on_host(diff.new.session.provider):
        return []
    return [compare_work(diff.old.work, diff.new.work)]


def graph_line(diff: Diff) -> str:
    """What differs between the graphs."""
    graph = diff.graph
    if graph.same:
        names = f" but for the names of {counted(graph.renamed, 'node')}" if graph.renamed else ""
        return f"graph: the same{names}"
    parts = [f"{counted(graph.common, 'node')} in both"]
    for word, ops in (("added", graph.added), ("removed", graph.removed)):
        if ops:
            parts.append(f"{sum(ops.values()):,} {word} ({_operators(ops)})")
    parts += [
        f"{count:,} {what}"
        for count, what in (
            (graph.copies, "added by the rewrite" if graph.copies else ""),
            (graph.resized, "tensors resized"),
            *((n, f"tensors {a} -> {b}") for (a, b), n in graph.retyped.items()),
            (graph.moved, "nodes run in another order"),
            (graph.renamed, "renamed"),
        )
        if count
    ]
    return f"graph: {', '.join(parts)}"


def _operators(ops: Mapping[str, int]) -> str:
    shown = [f"{count} {op}" for op, count in list(ops.items())[:_OPERATORS]]
    more = len(ops) - len(shown)
    return ", ".join(shown) + (f" and {counted(more, 'more kind')}" if more else "")


def dims_line(diff: Diff) -> str:
    """Dimensions that are bound to other sizes; empty where there are none."""
    before, after = diff.old.dims, diff.new.dims
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {before.get(name, '-')} -> {after.get(name, '-')}" for name in names)
