"""What ``check`` says, as plain text; the command adds colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.check.checking import Change, CheckResult, UpdateResult
from memplan.api.check.compare_locks import (
    CheckEntry,
    ClassDelta,
    FamilyDelta,
    LockDiff,
    Status,
    diff,
)
from memplan.api.check.current import Current
from memplan.api.check.hints import accept_command, fit_command, seen_from_here
from memplan.api.check.lock import LockEntry
from memplan.api.versions import version_notes
from memplan.units import counted, format_bytes, format_delta, printable

_INDENT = " " * 6
_UNCHANGED_CLASSES = 2
_MOST_FAMILIES = 6


def check_lines(result: CheckResult, *, brief: bool = False, details: bool = False) -> list[str]:
    """The report of a comparison: ``brief`` only what fails, ``details`` classes of everything."""
    lines: list[str] = []
    for entry in result.entries:
        if entry.failed or not brief:
            lines += _entry_lines(entry, result.lock, details)
    if result.failed or not brief:
        lines += [f"note: {note}" for note in _runtime_notes(result.entries)]
        lines.append(_summary(result))
    return lines


def _runtime_notes(entries: Iterable[CheckEntry]) -> list[str]:
    """Another runtime than the rules were measured on, and figures that a runtime may change."""
    now = [entry.now.entry for entry in entries if entry.now is not None]
    providers = dict.fromkeys(entry.provider for entry in now)
    notes = [note for provider in providers for note in version_notes(provider)]
    unasked = [entry.path for entry in now if entry.as_loaded is False]
    if unasked:
        notes.append(
            f"ONNX Runtime could not be asked what it makes of {printable(unasked[0])}"
            + (f" and {len(unasked) - 1} more" if len(unasked) > 1 else "")
            + ": fusions at load are not in the figures"
        )
    return list(dict.fromkeys(notes))


def update_lines(result: UpdateResult, *, brief: bool = False) -> list[str]:
    """The report of an update; ``brief`` leaves out what did not change."""
    lines: list[str] = []
    for entry, change in zip(result.entries, result.changes, strict=True):
        if entry.over_max_peak and entry.now is not None:
            lines += [_over_cap(entry, entry.now), fit_line(entry, entry.now)]
        elif result.accepted and not (brief and change is Change.UNCHANGED):
            lines += _change_lines(entry, change)
    if not result.accepted:
        lines.append(f"{_shown(result.lock)} was not changed")
    return lines


def _summary(result: CheckResult) -> str:
    counts = Counter(entry.status for entry in result.entries)
    total = len(result.entries) + len(result.failures)
    parts = [
        f"{counts[status]} {word}"
        for status, word in (
            (Status.REGRESSED, "regressed"),
            (Status.MISSING, "missing"),
            (Status.ORPHAN, "not in the lock"),
        )
        if counts[status]
    ]
    if result.failures:
        parts.append(f"{len(result.failures)} could not be read")
    if not parts:
        return f"{counted(total, 'model')} within the lock"
    first, _, rest = parts[0].partition(" ")
    return ", ".join([f"{first} of {counted(total, 'model')} {rest}", *parts[1:]])


def _entry_lines(entry: CheckEntry, lock: Path, details: bool) -> list[str]:
    if entry.status is Status.MISSING:
        return _missing_lines(entry, lock)
    if entry.status is Status.ORPHAN:
        return _orphan_lines(entry, lock)
    locked, now = entry.locked, entry.now
    assert locked is not None
    assert now is not None
    changes = diff(locked, now)
    if entry.status is Status.REGRESSED:
        return _regressed_lines(entry, locked, now, changes, lock)
    lines = [_passed_line(entry, locked, now, lock), *_notes(entry, now)]
    if entry.status is Status.OK and changes.fields:
        lines.append(
            f"{_INDENT}differs from the lock in {', '.join(changes.fields)}; "
            f"record it:  {accept_command(lock, entry.file)}"
        )
    if details:
        lines += [_place(now, locked), *_class_table(changes.classes, every=True)]
    return lines


def _passed_line(entry: CheckEntry, locked: LockEntry, now: Current, lock: Path) -> str:
    before, after = locked.peak_bytes, now.entry.peak_bytes
    head = f"{entry.status}  {printable(entry.path)}  "
    if entry.status is Status.ACCOUNTING and locked.accounting == now.entry.accounting:
        return (
            f"{head}{_basis(locked)} -> {_basis(now.entry)}: the locked {format_bytes(before)} and "
            f"today's {format_bytes(after)} cannot be compared; "
            f"record it:  {accept_command(lock, entry.file)}"
        )
    if entry.status is Status.ACCOUNTING:
        newer = (
            " (the lock is from a newer memplan)" if locked.accounting > ACCOUNTING_VERSION else ""
        )
        return (
            f"{head}memory model {locked.accounting} -> {now.entry.accounting}{newer}: the locked "
            f"{format_bytes(before)} and today's {format_bytes(after)} cannot be compared; "
            f"record it:  {accept_command(lock, entry.file)}"
        )
    if before == after:
        return f"{head}peak {format_bytes(after)}"
    line = f"{head}{_peak_change(before, after)}"
    if entry.status is Status.IMPROVED:
        return f"{line}   keep it:  {accept_command(lock, entry.file)}"
    return f"{line}   within the tolerance of {printable(str(locked.tolerance))}"


def _basis(entry: LockEntry) -> str:
    """What the figures of an entry rest on."""
    loaded = "as loaded by" if entry.as_loaded else "not as loaded by"
    return f"{loaded} {printable(entry.runtime or 'ONNX Runtime')}"


def _notes(entry: CheckEntry, now: Current) -> list[str]:
    cap, workspace = entry.max_peak_bytes, now.entry.peak_with_workspace_bytes
    if cap is None or workspace is None or workspace <= cap:
        return []
    return [
        f"{_INDENT}with kernel workspace the peak is {format_bytes(workspace)}, above the cap of "
        f"{format_bytes(cap)}"
    ]


def _regressed_lines(
    entry: CheckEntry, locked: LockEntry, now: Current, changes: LockDiff, lock: Path
) -> list[str]:
    peak = now.entry.peak_bytes
    grew = not entry.accounting_changed and peak > locked.limit_bytes
    # Peaks of two memory models must not be read as a change of the model.
    before = peak if entry.accounting_changed else locked.peak_bytes
    head = f"FAIL  {printable(entry.path)}  {_peak_change(before, peak)}"
    lines = []
    if grew:
        limit = f"{format_bytes(locked.limit_bytes)} ({_where(entry, lock)})"
        lines.append(f"{head}   limit {limit}")
        if entry.over_max_peak:
            lines.append(f"{_INDENT}{_above_cap(entry, now)}")
    else:
        lines.append(f"{head}   {_above_cap(entry, now)}")
    if entry.accounting_changed:
        lines.append(
            f"{_INDENT}the lock was made with another memory model or runtime: not compared"
        )
    lines.append(_place(now, locked))
    lines += _class_table(changes.classes, every=not grew)
    if grew:
        lines += _why(changes, locked, now)
        lines.append(f"{_INDENT}accept:  {accept_command(lock, entry.file)}")
    lines.append(fit_line(entry, now))
    return lines


def _missing_lines(entry: CheckEntry, lock: Path) -> list[str]:
    return [
        f"FAIL  {printable(entry.path)}  missing: the file is gone, but the lock still lists it "
        f"({_where(entry, lock)})",
        f"{_INDENT}accept:  {accept_command(lock, entry.file)}   (takes it out of the lock)",
    ]


def _orphan_lines(entry: CheckEntry, lock: Path) -> list[str]:
    peak = f"peak {format_bytes(entry.peak_bytes)}   " if entry.peak_bytes is not None else ""
    lines = [f"FAIL  {printable(entry.path)}  {peak}orphan: it is not in {_shown(lock)}"]
    if entry.over_max_peak and entry.now is not None:
        lines.append(f"{_INDENT}{_above_cap(entry, entry.now)}")
    asked = entry.now.entry.binding if entry.now is not None else entry.asked
    command = accept_command(lock, entry.file, asked, entry.unbound)
    return [*lines, f"{_INDENT}accept:  {command}"]


def _over_cap(entry: CheckEntry, now: Current) -> str:
    """The line of a model whose update is refused."""
    peak = format_bytes(now.entry.peak_bytes)
    return f"FAIL  {printable(entry.path)}  peak {peak}   {_above_cap(entry, now)}"


def _above_cap(entry: CheckEntry, now: Current) -> str:
    cap = entry.max_peak_bytes
    assert cap is not None
    excess = format_bytes(now.entry.peak_bytes - cap)
    return f"limit {format_bytes(cap)} (--max-peak), exceeded by {excess}"


def _place(now: Current, locked: LockEntry) -> str:
    node = printable(now.entry.peak_node)
    before = printable(locked.peak_node)
    was = "as before" if node == before else f"was: {before}"
    return f"{_INDENT}at step {now.step}/{now.steps}  {now.phase}: {node}  ({was})"


def _class_table(classes: Iterable[ClassDelta], *, every: bool) -> list[str]:
    """Changed classes, and the largest others so that the change can be judged."""
    classes = list(classes)
    others = sorted((c for c in classes if not c.delta_bytes), key=lambda c: -c.now_bytes)
    shown = classes if every else [c for c in classes if c.delta_bytes]
    shown = [*shown, *(() if every else others[:_UNCHANGED_CLASSES])]
    rows = [("class", "locked", "now", "delta")]
    for c in shown:
        before, after = format_bytes(c.locked_bytes), format_bytes(c.now_bytes)
        rows.append((c.name, before, after, format_delta(c.delta_bytes)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        f"{_INDENT}  {printable(row[0]):<{widths[0]}}   "
        + "   ".join(f"{text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


def _why(changes: LockDiff, locked: LockEntry, now: Current) -> list[str]:
    lines = []
    if changes.families:
        lines.append(f"{_INDENT}why: {_headline(changes.families)}")
        lines += family_rows(changes.families[:_MOST_FAMILIES])
        if len(changes.families) > _MOST_FAMILIES:
            lines.append(f"{_INDENT}  and {len(changes.families) - _MOST_FAMILIES} more kinds")
    for name, before, after in (
        ("dims", _dims(locked), _dims(now.entry)),
        ("graph", locked.fingerprint[:12], now.entry.fingerprint[:12]),
    ):
        if before != after:
            lines.append(f"{_INDENT}{name}: {printable(before)} -> {printable(after)}")
    if "fingerprint" not in changes.fields:
        lines.append(
            f"{_INDENT}graph: the same as in the lock; the lock was edited, or memplan counts "
            "differently"
        )
    return lines


def _headline(families: Iterable[FamilyDelta]) -> str:
    families = list(families)
    stashes = [f for f in families if f.family.tensors.tensor_class == "stash"]
    chosen = stashes or families
    count = sum(f.count for f in chosen)
    number = f"{count}" if all(f.exact for f in chosen) else f"up to {count}"
    what = "tensor" if count == 1 else "tensors"
    if not stashes:
        return f"{number} {what} more in memory at the peak"
    return f"{number} more {what} stay{'s' if count == 1 else ''} live into backward"


def family_rows(families: Iterable[FamilyDelta]) -> list[str]:
    """A line per kind of tensors: how many, of what size, and what holds them."""
    rows = []
    for delta in families:
        tensors, held = delta.family.tensors, delta.family.held_by
        up_to = "" if delta.exact else "up to "
        ready = held.startswith(("in use", "graph output", "nobody"))
        reason = held if ready else f"kept for {held}"
        if delta.grew_from_bytes is not None:
            reason += f"   (was {format_bytes(delta.grew_from_bytes)})"
        size = f"{up_to}{delta.count} x {format_bytes(tensors.nbytes)}"
        rows.append((printable(tensors.name), size, f"{tensors.tensor_class}, {printable(reason)}"))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [
        f"{_INDENT}  + {name:<{widths[0]}}   {size:>{widths[1]}}   {reason}"
        for name, size, reason in rows
    ]


def fit_line(entry: CheckEntry, now: Current) -> str:
    """The command that makes the model fit its limit, or why none does."""
    limit = entry.limit_bytes
    assert limit is not None
    if limit < now.floor_bytes:
        floor = format_bytes(now.floor_bytes)
        return f"{_INDENT}fit:     no rewrite goes below {floor}, the floor of this model"
    return f"{_INDENT}fit:     {fit_command(entry.file, limit, now.entry.binding)}"


def _change_lines(entry: CheckEntry, change: Change) -> list[str]:
    head = f"{change}  {printable(entry.path)}"
    if entry.now is None:
        return [f"{head}  (the file is gone)"]
    new = entry.now.entry
    if entry.locked is None:
        place = f"at {printable(new.peak_node)}, {new.session} session, {new.provider}"
        bound = f", {printable(_dims(new))}" if new.dims else ""
        return [f"{head}  peak {format_bytes(new.peak_bytes)} {place}{bound}"]
    if change is Change.UNCHANGED:
        return [f"{head}  peak {format_bytes(new.peak_bytes)}"]
    old, lines = entry.locked, [f"{head}  {_peak_change(entry.locked.peak_bytes, new.peak_bytes)}"]
    changes = diff(old, entry.now)
    for name, before, after in (
        ("fingerprint", old.fingerprint[:12], new.fingerprint[:12]),
        ("accounting", str(old.accounting), str(new.accounting)),
        ("session", old.session, new.session),
        ("provider", old.provider, new.provider),
        ("dims", _dims(old), _dims(new)),
        ("peak_with_workspace_bytes", *_workspace(old, new)),
        ("peak_node", old.peak_node, new.peak_node),
    ):
        if name in changes.fields:
            lines.append(f"{_INDENT}{name}: {printable(before)} -> {printable(after)}")
    if "top" in changes.fields:
        lines.append(f"{_INDENT}top: other tensors, or other sizes")
    moved = [c for c in changes.classes if c.delta_bytes]
    return lines + (_class_table(moved, every=True) if moved else [])


def _workspace(old: LockEntry, new: LockEntry) -> tuple[str, str]:
    before, after = old.peak_with_workspace_bytes, new.peak_with_workspace_bytes
    return "none" if before is None else f"{before:,}", "none" if after is None else f"{after:,}"


def _dims(entry: LockEntry) -> str:
    return " ".join(f"{name}={size}" for name, size in sorted(entry.dims.items())) or "none"


def _peak_change(before: int, after: int) -> str:
    """``peak +96.0 MiB (+12.4%)   775 MiB -> 871 MiB``; in bytes where rounding hides it."""
    if before == after:
        return f"peak {format_bytes(after)}"
    old, new = format_bytes(before), format_bytes(after)
    if old == new:
        old, new = f"{before:,} B", f"{after:,} B"
    share = f" ({_percent(after - before, before)})" if before else ""
    return f"peak {format_delta(after - before)}{share}   {old} -> {new}"


def _percent(delta: int, whole: int) -> str:
    percent = 100 * delta / whole
    if abs(percent) < 0.05:
        return "less than 0.1%"
    return f"{percent:+.1f}%"


def _shown(path: Path) -> str:
    return printable(str(seen_from_here(path)))


def _where(entry: CheckEntry, lock: Path) -> str:
    return f"{_shown(lock)}:{entry.line}" if entry.line else _shown(lock)
