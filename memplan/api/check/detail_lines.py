"""Parts of the text of ``check`` and ``check --update``: tables, places, limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from memplan.api.check.compare_locks import CheckEntry, FamilyDelta, LockDiff
from memplan.api.check.current import Current
from memplan.api.check.hints import fit_command, seen_from_here
from memplan.api.check.lock import LockEntry
from memplan.proto.metadata import IN_PLACE
from memplan.units import format_bytes, format_delta, printable

INDENT = " " * 6
_UNCHANGED_CLASSES = 2
_MOST_FAMILIES = 6


def class_table(entry: CheckEntry, changes: LockDiff, *, every: bool) -> list[str]:
    """Changed classes, and the largest others so that the change can be judged. The base has a
    column where it is known."""
    classes, base, locked = changes.classes, entry.base, entry.locked
    others = sorted((c for c in classes if not c.delta_bytes), key=lambda c: -c.now_bytes)
    chosen = classes if every else [c for c in classes if c.delta_bytes]
    chosen = [*chosen, *(() if every else others[:_UNCHANGED_CLASSES])]
    named = (["locked"] if locked else []) + (["base"] if base else [])
    rows = [("class", *named, "now", "delta")]
    if base is not None and entry.now is not None:
        figures = ([locked.peak_bytes] if locked else []) + [base.entry.peak_bytes]
        rows.append(_row("peak", *figures, entry.now.entry.peak_bytes))
    for c in chosen:
        old = [c.locked_bytes] if locked else []
        old += [base.entry.classes.get(c.name, 0)] if base else []
        rows.append(_row(c.name, *old, c.now_bytes))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        f"{INDENT}  {printable(row[0]):<{widths[0]}}   "
        + "   ".join(f"{text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


def _row(name: str, *figures: int) -> tuple[str, ...]:
    """Figures of one kind, the first of which is what the last is held against."""
    return (name, *map(format_bytes, figures), format_delta(figures[-1] - figures[0]))


def family_rows(families: Sequence[FamilyDelta]) -> list[str]:
    """The tensors that came, most bytes first."""
    rows = []
    for delta in families[:_MOST_FAMILIES]:
        tensors, held = delta.family.tensors, delta.family.held_by
        up_to = "" if delta.exact else "up to "
        ready = held.startswith(("in use", "graph output", "unused"))
        reason = held if ready else f"kept for {held}"
        if delta.grew_from_bytes is not None:
            reason += f"   (was {format_bytes(delta.grew_from_bytes)})"
        size = f"{up_to}{delta.count} x {format_bytes(tensors.nbytes)}"
        rows.append((printable(tensors.name), size, f"{tensors.tensor_class}, {printable(reason)}"))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    lines = [
        f"{INDENT}  + {name:<{widths[0]}}   {size:>{widths[1]}}   {reason}"
        for name, size, reason in rows
    ]
    more = len(families) - _MOST_FAMILIES
    return [*lines, f"{INDENT}  and {more} more kinds"] if more > 0 else lines


def above_cap(entry: CheckEntry, now: Current) -> str:
    """By how much a peak exceeds the cap for all."""
    cap = entry.max_peak_bytes
    assert cap is not None
    excess = format_bytes(now.entry.peak_bytes - cap)
    return f"limit {format_bytes(cap)} (--max-peak), exceeded by {excess}"


def place(now: Current, before: LockEntry) -> str:
    """Where the peak is, and was."""
    node, old = printable(now.entry.peak_node), printable(before.peak_node)
    was = "as before" if node == old else f"was: {old}"
    step = f"{INDENT}at step {now.step}/{now.steps}  {now.phase}: {node}  ({was})"
    return step + counted_words(now.entry)


def counted_words(entry: LockEntry) -> str:
    """What was counted: state in place, if it is; no workspace, where there is some at the peak."""
    whole = entry.peak_with_workspace_bytes or 0
    alone = f", tensors alone ({format_bytes(whole)} with workspace)"
    state = ", state in place" if entry.state == IN_PLACE else ""
    return (alone if whole > entry.peak_bytes else "") + state


def fit_line(entry: CheckEntry, now: Current) -> str:
    """The command that rewrites the model to its limit; below the floor only chunks might."""
    limit = entry.limit_bytes
    assert limit is not None
    if limit < now.floor_bytes:
        floor = format_bytes(now.floor_bytes)
        command = fit_command(entry.file, limit, now.entry.binding, chunks=True)
        return f"{INDENT}fit:     below {floor}, the floor, only chunks may bring it: {command}"
    return f"{INDENT}fit:     {fit_command(entry.file, limit, now.entry.binding)}"


def dims_text(entry: LockEntry) -> str:
    """Dimensions on one line."""
    return " ".join(f"{name}={size}" for name, size in sorted(entry.dims.items())) or "none"


def shown(path: Path) -> str:
    """A path as seen from here, on one line."""
    return printable(str(seen_from_here(path)))
