"""What ``check`` says, as plain text; the command adds colour. What fails comes first."""

from __future__ import annotations

from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.check.causes import Kind, causes_of
from memplan.api.check.checking import CheckResult
from memplan.api.check.compare_locks import CheckEntry, LockDiff, Status, diff
from memplan.api.check.current import Current
from memplan.api.check.detail_lines import (
    INDENT,
    above_cap,
    class_table,
    counted_words,
    dims_text,
    family_rows,
    fit_line,
    place,
    shown,
)
from memplan.api.check.hints import accept_command
from memplan.api.check.lock import LockEntry
from memplan.api.check.verdict import peak_change, summary, worst_first
from memplan.api.versions import version_notes
from memplan.proto.metadata import APART
from memplan.units import format_bytes, format_delta, printable


def check_lines(result: CheckResult, *, brief: bool = False, details: bool = False) -> list[str]:
    """The report of a comparison: ``brief`` only what fails, ``details`` classes of everything."""
    lines: list[str] = []
    for entry in worst_first(result.entries):
        if entry.failed or not brief:
            lines += entry_lines(entry, result, details)
    if result.failed or not brief:
        lines += [f"note: {note}" for note in notes(result)]
        lines.append(summary(result))
    return lines


def notes(result: CheckResult) -> list[str]:
    """Another runtime than the rules were measured on, figures that a runtime may change, and
    models whose base is not known."""
    entries = result.entries
    now = [entry.now.entry for entry in entries if entry.now is not None]
    providers = dict.fromkeys(entry.provider for entry in now)
    found = [note for provider in providers for note in version_notes(provider)]
    unasked = [entry.path for entry in now if entry.as_loaded is False]
    if unasked:
        found.append(
            f"ONNX Runtime could not be asked what it makes of {printable(unasked[0])}"
            + (f" and {len(unasked) - 1} more" if len(unasked) > 1 else "")
            + ": fusions at load are not in the figures"
        )
    unsaid = [
        entry
        for entry in entries
        if entry.now is not None and entry.now.state_unsaid and entry.now.trained_in_place
    ]
    if unsaid:
        path = printable(unsaid[0].path)
        found.append(
            f"{path}{f' and {len(unsaid) - 1} more' if len(unsaid) > 1 else ''}: state counted "
            "apart, as when the lock was recorded; memplan.Trainer updates it in place; record "
            f"that:  {accept_command(result.lock, unsaid[0].file)}"
        )
    unknown = [f"{printable(e.path)}: {e.base_problem}" for e in entries if e.base_problem]
    base = [result.base.note] if result.base is not None and result.base.note else []
    return [
        *dict.fromkeys(found),
        *base,
        *(f"not compared with the base: {text}" for text in unknown),
    ]


def entry_lines(entry: CheckEntry, result: CheckResult, details: bool = False) -> list[str]:
    """All that is said of one model."""
    if entry.status in _WITHOUT_COMPARISON:
        return _WITHOUT_COMPARISON[entry.status](entry, result)
    now, before = entry.now, entry.locked or entry.before
    assert now is not None
    if entry.status is Status.REGRESSED:
        return _regressed_lines(entry, now, before, result)
    assert before is not None
    changes = diff(before, now)
    lines = [_passed_line(entry, before, now, result), *_notes(entry, now)]
    if entry.status is Status.OK and changes.fields and before is entry.locked:
        lines.append(
            f"{INDENT}differs from the lock in {', '.join(changes.fields)}; "
            f"record it:  {accept_command(result.lock, entry.file)}"
        )
    if details:
        lines += [place(now, before), *class_table(entry, changes, every=True)]
    return lines


def _passed_line(entry: CheckEntry, before: LockEntry, now: Current, result: CheckResult) -> str:
    old, new = before.peak_bytes, now.entry.peak_bytes
    command = accept_command(result.lock, entry.file)
    head = f"{'FAIL' if entry.failed else entry.status}  {printable(entry.path)}  "
    if entry.status is Status.ACCOUNTING:
        newer = before.accounting > ACCOUNTING_VERSION
        what = f"{_basis(before)} -> {_basis(now.entry)}"
        if before.accounting != now.entry.accounting:
            what = f"memory model {before.accounting} -> {now.entry.accounting}"
            what += " (the lock is from a newer memplan)" if newer else ""
        return (
            f"{head}{what}: the locked {format_bytes(old)} and today's {format_bytes(new)} cannot "
            f"be compared; record it:  {command}"
        )
    if entry.failed:
        allowed = f"the lock allows {format_bytes(old - new)} more than is needed"
        return f"{head}{peak_change(old, new)}   {allowed} (--strict); tighten it:  {command}"
    if entry.too_loose:
        return f"{head}{peak_change(old, new)}   keep it:  {command}"
    if old == new:
        return f"{head}peak {format_bytes(new)}{counted_words(now.entry)}{_than_base(entry)}"
    line = f"{head}{peak_change(old, new)}"
    if entry.status is Status.IMPROVED:
        return f"{line}   {result.against}"
    return f"{line}   within the tolerance of {printable(str(before.tolerance))}"


def _than_base(entry: CheckEntry) -> str:
    """What the lock has accepted since the base."""
    if entry.base is None or entry.locked is None or not entry.since_base_bytes:
        return ""
    base = format_bytes(entry.base.entry.peak_bytes)
    return f"   {format_delta(entry.since_base_bytes)} since the base ({base}), as in the lock"


def _basis(entry: LockEntry) -> str:
    """What the figures of an entry rest on."""
    loaded = "as loaded by" if entry.as_loaded else "not as loaded by"
    return f"{loaded} {printable(entry.runtime or 'ONNX Runtime')}"


def _notes(entry: CheckEntry, now: Current) -> list[str]:
    cap, workspace = entry.max_peak_bytes, now.entry.peak_with_workspace_bytes
    if cap is None or workspace is None or workspace <= cap:
        return []
    return [
        f"{INDENT}with kernel workspace the peak is {format_bytes(workspace)}, above the cap of "
        f"{format_bytes(cap)}"
    ]


def _regressed_lines(
    entry: CheckEntry, now: Current, before: LockEntry | None, result: CheckResult
) -> list[str]:
    peak, agreed = now.entry.peak_bytes, entry.before
    grew = agreed is not None and peak > agreed.limit_bytes
    # Peaks of two memory models must not be read as a change of the model.
    head = (
        f"FAIL  {printable(entry.path)}  {peak_change(agreed.peak_bytes if agreed else peak, peak)}"
    )
    lines = []
    if grew and agreed is not None:
        where = _where(entry, result) if agreed is entry.locked else result.against
        lines.append(f"{head}   limit {format_bytes(agreed.limit_bytes)} ({where})")
        if entry.over_max_peak:
            lines.append(f"{INDENT}{above_cap(entry, now)}")
    else:
        lines.append(f"{head}   {above_cap(entry, now)}")
    changes = diff(before, now) if before is not None else None
    if grew and entry.explained_by is not None:
        lines += _why(entry, entry.explained_by, now)
    if entry.accounting_changed:
        lines.append(
            f"{INDENT}the lock was made with another memory model or runtime: not compared"
        )
    if before is not None and changes is not None:
        lines.append(place(now, before))
        lines += class_table(entry, changes, every=not grew)
        lines += _graphs(changes, before, now) if grew else []
    if grew:
        asked = None if entry.locked is not None else now.entry.binding
        lines.append(f"{INDENT}accept:  {accept_command(result.lock, entry.file, asked)}")
    lines.append(fit_line(entry, now))
    return lines


def _why(entry: CheckEntry, before: LockEntry, now: Current) -> list[str]:
    """The causes, and below them the tensors that show it."""
    heads = ("why:", *["    "] * len(Kind))
    found = zip(heads, causes_of(entry), strict=False)
    lines = [f"{INDENT}{head} {cause.text}" for head, cause in found]
    return lines + family_rows(diff(before, now).families)


def _graphs(changes: LockDiff, before: LockEntry, now: Current) -> list[str]:
    pairs = (
        ("state", before.state, before.state if now.state_unsaid else now.entry.state),
        ("dims", dims_text(before), dims_text(now.entry)),
        ("graph", before.fingerprint[:12], now.entry.fingerprint[:12]),
    )
    return [
        f"{INDENT}{name}: {printable(old or APART)} -> {printable(new or APART)}"
        for name, old, new in pairs
        if old != new
    ]


def _missing_lines(entry: CheckEntry, result: CheckResult) -> list[str]:
    return [
        f"FAIL  {printable(entry.path)}  missing: the file is gone, but the lock still lists it "
        f"({_where(entry, result)})",
        f"{INDENT}accept:  {accept_command(result.lock, entry.file)}   (takes it out of the lock)",
    ]


def _orphan_lines(entry: CheckEntry, result: CheckResult) -> list[str]:
    peak = f"peak {format_bytes(entry.peak_bytes)}   " if entry.peak_bytes is not None else ""
    lines = [f"FAIL  {printable(entry.path)}  {peak}orphan: it is not in {shown(result.lock)}"]
    if entry.over_max_peak and entry.now is not None:
        lines.append(f"{INDENT}{above_cap(entry, entry.now)}")
    asked = entry.now.entry.binding if entry.now is not None else entry.asked
    command = accept_command(result.lock, entry.file, asked, entry.unbound)
    return [*lines, f"{INDENT}accept:  {command}"]


def _new_lines(entry: CheckEntry, result: CheckResult) -> list[str]:
    peak = f"peak {format_bytes(entry.peak_bytes or 0)}"
    return [f"new  {printable(entry.path)}  {peak}   nothing to compare with {result.against}"]


def _removed_lines(entry: CheckEntry, result: CheckResult) -> list[str]:
    was = f", with a peak of {format_bytes(entry.base.entry.peak_bytes)}" if entry.base else ""
    return [f"removed  {printable(entry.path)}  it was there {result.against}{was}"]


_WITHOUT_COMPARISON = {
    Status.MISSING: _missing_lines,
    Status.ORPHAN: _orphan_lines,
    Status.NEW: _new_lines,
    Status.REMOVED: _removed_lines,
}


def _where(entry: CheckEntry, result: CheckResult) -> str:
    return f"{shown(result.lock)}:{entry.line}" if entry.line else shown(result.lock)
