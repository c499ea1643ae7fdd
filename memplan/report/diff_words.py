"""A diff in sentences, for text and HTML alike; names in them come from the files."""

from __future__ import annotations

from collections.abc import Mapping

from memplan.api.analysis import Analysis
from memplan.api.diff.diff_result import Diff
from memplan.api.diff.peak_changes import Change, How, TensorChange
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
_AWAY = "off the peak as it moved"
_REASONS, _OPERATORS = 3, 4


def what_of(change: TensorChange) -> str:
    """What became of a tensor, in words."""
    if change.change is Change.PEAK_MOVED and not change.new_bytes:
        return _AWAY
    return WORDS[change.how or change.change]


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
    against = _most(diff, -sign, abs(diff.delta_bytes) // 100)
    return _most(diff, sign) + (f"; against that {against}" if against else "")


def _most(diff: Diff, sign: int, least: int = 0) -> str:
    """What most of the bytes that were added (1) or taken away (-1) are, but for kinds of less than
    ``least``."""
    found: dict[str, list[int]] = {}
    largest: dict[str, TensorChange] = {}
    for change in diff.changes:
        if sign * change.delta_bytes > 0:
            total = found.setdefault(what_of(change), [0, 0])
            total[0], total[1] = total[0] + 1, total[1] + change.delta_bytes
            largest.setdefault(what_of(change), change)
    ranked = sorted(found.items(), key=lambda item: -abs(item[1][1]))[:_REASONS]
    return "; ".join(
        f"{counted(count, 'tensor')} {what} ({format_delta(nbytes)}, {largest[what].name}"
        f"{' and others' if count > 1 else ''})"
        for what, (count, nbytes) in ranked
        if abs(nbytes) >= least
    )


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
    if diff.new.session.provider != "cuda":
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
