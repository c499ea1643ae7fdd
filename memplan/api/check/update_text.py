"""What ``check --update`` says, as plain text; the command adds colour."""

from __future__ import annotations

from dataclasses import replace

from memplan.api.check.checking import Change, UpdateResult
from memplan.api.check.compare_locks import CheckEntry, diff
from memplan.api.check.current import Current
from memplan.api.check.detail_lines import (
    INDENT,
    above_cap,
    class_table,
    counted_words,
    dims_text,
    fit_line,
    shown,
)
from memplan.api.check.lock import LockEntry
from memplan.api.check.verdict import peak_change
from memplan.proto.metadata import APART
from memplan.units import format_bytes, printable


def update_lines(result: UpdateResult, *, brief: bool = False) -> list[str]:
    """The report of an update; ``brief`` leaves out what did not change."""
    lines: list[str] = []
    for entry, change in zip(result.entries, result.changes, strict=True):
        if entry.over_max_peak and entry.now is not None:
            lines += [_over_cap(entry, entry.now), fit_line(entry, entry.now)]
        elif result.accepted and not (brief and change is Change.UNCHANGED):
            lines += _change_lines(entry, change)
    if not result.accepted:
        lines.append(f"{shown(result.lock)} was not changed")
    return lines


def _over_cap(entry: CheckEntry, now: Current) -> str:
    """The line of a model whose update is refused."""
    peak = format_bytes(now.entry.peak_bytes)
    return f"FAIL  {printable(entry.path)}  peak {peak}   {above_cap(entry, now)}"


def _change_lines(entry: CheckEntry, change: Change) -> list[str]:
    head = f"{change}  {printable(entry.path)}"
    if entry.now is None:
        return [f"{head}  (the file is gone)"]
    new = entry.now.entry
    if entry.locked is None:
        place = f"at {printable(new.peak_node)}, {new.session} session, {new.provider}"
        place += counted_words(new)
        bound = f", {printable(dims_text(new))}" if new.dims else ""
        return [f"{head}  peak {format_bytes(new.peak_bytes)} {place}{bound}"]
    if change is Change.UNCHANGED:
        return [f"{head}  peak {format_bytes(new.peak_bytes)}"]
    old, lines = entry.locked, [f"{head}  {peak_change(entry.locked.peak_bytes, new.peak_bytes)}"]
    changes = diff(old, entry.now)
    for name, before, after in (
        ("fingerprint", old.fingerprint[:12], new.fingerprint[:12]),
        ("accounting", str(old.accounting), str(new.accounting)),
        ("session", old.session, new.session),
        ("provider", old.provider, new.provider),
        ("state", old.state or APART, new.state or APART),
        ("dims", dims_text(old), dims_text(new)),
        ("peak_with_workspace_bytes", *_workspace(old, new)),
        ("peak_node", old.peak_node, new.peak_node),
    ):
        if name in changes.fields:
            lines.append(f"{INDENT}{name}: {printable(before)} -> {printable(after)}")
    if "top" in changes.fields:
        lines.append(f"{INDENT}top: other tensors, or other sizes")
    moved = replace(changes, classes=tuple(c for c in changes.classes if c.delta_bytes))
    return lines + (class_table(entry, moved, every=True) if moved.classes else [])


def _workspace(old: LockEntry, new: LockEntry) -> tuple[str, str]:
    before, after = old.peak_with_workspace_bytes, new.peak_with_workspace_bytes
    return "none" if before is None else f"{before:,}", "none" if after is None else f"{after:,}"
