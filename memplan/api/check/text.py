"""What ``check`` says of its findings, as plain text; the command adds colour.

Every report says a finding by these lines: the first is its title, the others follow from what it
is held against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.check.checking import CheckResult
from memplan.api.check.differences import (
    NewTensors,
    changed_fields,
    class_changes,
    less_in_place,
    new_tensors,
)
from memplan.api.check.finding import Change, Finding, Kind, change_of, worst_first
from memplan.api.check.hints import fit_command, shown
from memplan.api.check.peak import Peak
from memplan.api.check.verdict import peak_change, summary
from memplan.api.versions import version_notes
from memplan.proto.metadata import APART, IN_PLACE
from memplan.units import format_bytes, format_delta, listed, printable

INDENT = " " * 6
_UNCHANGED_CLASSES, _MOST_CLASSES = 2, 4
_MOST_FAMILIES = 6


def check_text(result: CheckResult) -> str:
    """The report of a comparison as it goes to a file."""
    return "\n".join(check_lines(result)) + "\n"


def check_lines(result: CheckResult, *, brief: bool = False, details: bool = False) -> list[str]:
    """The report of a comparison: ``brief`` only what fails, ``details`` classes of everything."""
    lines: list[str] = []
    told = [f for f in worst_first(result.entries) if f.failed or not brief]
    blocks = [finding_lines(finding, details) for finding in told]
    if sum(len(block) > 1 for block in blocks) > 1:  # all that changed is named before any reason
        lines += [block[0] for block in blocks]
        for finding, block in zip(told, blocks, strict=True):
            lines += [f"{finding.name}:", *block[1:]] if len(block) > 1 else []
    else:
        lines += [line for block in blocks for line in block]
    if result.failed or not brief:
        lines += [f"note: {note}" for note in notes(result)]
        lines.append(summary(result))
    return lines


def update_lines(result: CheckResult, *, brief: bool = False) -> list[str]:
    """The report of an update; ``brief`` leaves out what did not change."""
    lines: list[str] = []
    for finding in result.entries:
        now = finding.now
        if finding.over_cap_bytes and now is not None:
            peak = f"peak {format_bytes(now.peak_bytes)}"
            lines.append(f"FAIL  {finding.name}  {peak}   {_above_cap(finding)}")
            lines.append(_fit_line(finding, now))
        elif result.updated and not (brief and change_of(finding) is Change.UNCHANGED):
            lines += _change_lines(finding)
    if not result.updated:
        lines.append(f"{shown(result.lock)} was not changed")
    return lines


def _change_lines(finding: Finding) -> list[str]:
    change, old, new = change_of(finding), finding.locked, finding.now
    head = f"{change}  {finding.name}"
    if new is None:
        return [f"{head}  (the file is gone)"]
    peak = f"peak {format_bytes(new.peak_bytes)}"
    if old is None:
        place = f"at {printable(new.peak_node)}, {new.session} session, {new.provider}"
        bound = f", {printable(_dims(new))}" if new.dims else ""
        return [f"{head}  {peak} {place}{_counted(new)}{bound}"]
    if change is Change.UNCHANGED:
        return [f"{head}  {peak}"]
    return [
        f"{head}  {'   '.join(peak_change(old.peak_bytes, new.peak_bytes))}",
        f"{INDENT}changed: {', '.join(changed_fields(old, new))}",
        _place(new, old),
        *_class_table({"locked": old, "now": new}, 0),
        *_other_fields(old, new),
    ]


def notes(result: CheckResult) -> list[str]:
    """Another runtime than the rules were measured on, figures that a runtime may change, and
    models whose base is not known."""
    now = [finding.now for finding in result.entries if finding.now is not None]
    providers = dict.fromkeys(peak.provider for peak in now)
    found = [note for provider in providers for note in version_notes(provider)]
    if unasked := [peak for peak in now if peak.as_loaded is False]:
        found.append(
            f"ONNX Runtime could not be asked what it makes of {_named(unasked)}: fusions at load "
            "are not in the figures"
        )
    unknown = [f"{f.name}: {f.base_problem}" for f in result.entries if f.base_problem]
    return [
        *dict.fromkeys(found),
        *([result.base.note] if result.base is not None and result.base.note else []),
        *(f"not compared with the base: {text}" for text in unknown),
    ]


def _named(peaks: Sequence[Peak]) -> str:
    return listed([printable(peak.path) for peak in peaks], 1)


def title(finding: Finding) -> str:
    """The first line without the path."""
    return ", ".join(_title(finding)).replace(":  ", ": ")


def _title(finding: Finding) -> list[str]:
    """The parts of the first line behind the path."""
    kind, source, now = finding.kind, finding.source, finding.now
    before = finding.locked if kind is Kind.ACCOUNTING else finding.against
    peak = [f"peak {format_bytes(now.peak_bytes)}"] if now is not None else []
    if kind is Kind.UNREADABLE:
        return ["could not be read"]
    if kind is Kind.MISSING:
        return [f"missing: the file is gone, but the lock still lists it ({source})"]
    if kind is Kind.ORPHAN:
        return [*peak, f"orphan: it is not in {source}"]
    if kind is Kind.NEW:
        return [*peak, f"nothing to compare with {source}"]
    if kind is Kind.REMOVED:
        was = f", with a peak of {format_bytes(before.peak_bytes)}" if before else ""
        return [f"it was there {source}{was}"]
    assert now is not None
    if before is None:
        return [*peak, _above_cap(finding)]
    if kind is Kind.ACCOUNTING:
        return [_not_compared(before, now, finding.accept)]
    change = peak_change(before.peak_bytes, now.peak_bytes)
    if kind is Kind.REGRESSED:
        return [*change, f"limit {format_bytes(before.limit_bytes)} ({source})"]
    if kind is Kind.OVER_CAP:
        return [*change, _above_cap(finding)]
    if kind is Kind.TOO_LOOSE:
        more = format_bytes(before.peak_bytes - now.peak_bytes)
        allowed = f"the lock allows {more} more than is needed (--strict)"
        return [*change, f"{allowed}; tighten it:  {finding.accept}"]
    if kind is Kind.IMPROVED:
        return [*change, f"keep it:  {finding.accept}" if before is finding.locked else source]
    if before.peak_bytes != now.peak_bytes:
        return [*change, f"within the tolerance of {printable(str(before.tolerance))}"]
    told = [f"{peak[0]}{_counted(now)}"]
    if finding.base is not None and finding.locked is not None and finding.change_bytes:
        base = format_bytes(finding.base.peak_bytes)
        told.append(f"{format_delta(finding.change_bytes)} since the base ({base}), as in the lock")
    return told


def _not_compared(before: Peak, now: Peak, accept: str) -> str:
    what = f"{_basis(before)} -> {_basis(now)}"
    if before.accounting != now.accounting:
        newer = before.accounting > ACCOUNTING_VERSION
        what = f"memory model {before.accounting} -> {now.accounting}"
        what += " (the lock is from a newer memplan)" if newer else ""
    elif less_in_place(before, now):
        what = f"state not recorded -> {IN_PLACE}"
    return (
        f"{what}: the locked {format_bytes(before.peak_bytes)} and today's "
        f"{format_bytes(now.peak_bytes)} cannot be compared; record it:  {accept}"
    )


def _basis(peak: Peak) -> str:
    """What figures rest on."""
    loaded = "as loaded by" if peak.as_loaded else "not as loaded by"
    return f"{loaded} {printable(peak.runtime or 'ONNX Runtime')}"


def reasons(finding: Finding) -> list[str]:
    """Why it is found, one line each."""
    if finding.error is not None:
        return [printable(finding.error.message)]
    return [cause.line for cause in finding.causes]


def finding_lines(finding: Finding, details: bool = False) -> list[str]:
    """All that is said of one model."""
    if finding.error is not None:
        message, hint = printable(finding.error.message), printable(finding.error.hint)
        return [f"error: {message}", *([f"hint: {hint}"] if hint else [])]
    word = "FAIL" if finding.failed else finding.kind
    lines = [f"{word}  {finding.name}  {'   '.join(_title(finding))}"]
    kind, now, before = finding.kind, finding.now, finding.against or finding.locked
    if finding.over_cap_bytes and kind in (Kind.REGRESSED, Kind.ORPHAN):
        lines.append(f"{INDENT}{_above_cap(finding)}")
    if kind in (Kind.MISSING, Kind.ORPHAN):
        note = "   (takes it out of the lock)" if kind is Kind.MISSING else ""
        return [*lines, f"{INDENT}accept:  {finding.accept}{note}"]
    if now is None or kind is Kind.NEW:
        return lines
    if kind in (Kind.REGRESSED, Kind.OVER_CAP):
        return lines + _growth_lines(finding, now, before)
    cap, workspace = finding.cap_bytes, now.peak_with_workspace_bytes
    if cap is not None and workspace is not None and workspace > cap:
        lines.append(
            f"{INDENT}with kernel workspace the peak is {format_bytes(workspace)}, above the cap "
            f"of {format_bytes(cap)}"
        )
    assert before is not None
    fields = changed_fields(before, now)
    if kind is Kind.OK and fields and before is finding.locked:
        lines.append(
            f"{INDENT}differs from the lock in {', '.join(fields)}; record it:  {finding.accept}"
        )
    if details:
        lines += [_place(now, before), *_class_table(_columns(finding, now))]
    return lines


def _growth_lines(finding: Finding, now: Peak, before: Peak | None) -> list[str]:
    """Why a peak is above its limit, where it is, what accepts it and what makes it fit."""
    grew, lines = finding.kind is Kind.REGRESSED, list[str]()
    if grew and finding.explained is not None:
        for number, cause in enumerate(finding.causes):
            lines.append(f"{INDENT}{'    ' if number else 'why:'} {cause.text}")
        lines += _family_rows(new_tensors(finding.explained, now))
    if finding.locked is not None and finding.against is not finding.locked:
        lines.append(
            f"{INDENT}the lock was made with another memory model or runtime: not compared"
        )
    lines.append(_place(now, before))
    if before is None:
        lines += _contents(now)
    else:
        lines += _class_table(_columns(finding, now), _UNCHANGED_CLASSES if grew else None)
        lines += _other_fields(before, now) if grew else []
    if grew:
        lines.append(f"{INDENT}accept:  {finding.accept}")
    return [*lines, _fit_line(finding, now)]


def _place(now: Peak, before: Peak | None) -> str:
    """Where the peak is, and was."""
    node, was = printable(now.peak_node), ""
    if before is not None:
        old = printable(before.peak_node)
        was = f"  ({'as before' if node == old else f'was: {old}'})"
    return f"{INDENT}at step {now.step}/{now.steps}  {now.phase}: {node}{was}{_counted(now)}"


def _contents(now: Peak) -> list[str]:
    """Of what a peak consists that is held against nothing but the cap."""
    classes = sorted(now.classes.items(), key=lambda item: -item[1])
    sizes = [f"{printable(name)} {format_bytes(nbytes)}" for name, nbytes in classes]
    lines = [f"{INDENT}classes: {listed(sizes, _MOST_CLASSES)}"]
    # What is less than a hundredth of the peak explains nothing.
    large = [t for t in now.top if t.total_bytes * 100 >= now.peak_bytes]
    if large:
        lines.append(f"{INDENT}why: the largest tensors at this step")
        lines += _family_rows([NewTensors(tensors, tensors.count) for tensors in large])
    return lines


def _columns(finding: Finding, now: Peak) -> dict[str, Peak]:
    """The peaks that stand side by side, what it is held against first."""
    compared = finding.against is None or finding.against is finding.locked
    locked = finding.locked if compared else None
    columns = {"locked": locked, "base": finding.base, "now": now}
    return {name: peak for name, peak in columns.items() if peak is not None}


def _class_table(columns: Mapping[str, Peak], most_unchanged: int | None = None) -> list[str]:
    """Classes that changed from the first peak to the last, and the largest ``most_unchanged``
    others, so that the change can be judged; None: all in their order."""
    first, *_, last = columns.values()
    rows = [("class", *columns, "delta")]
    if "base" in columns:
        rows.append(_row("peak", [peak.peak_bytes for peak in columns.values()]))
    chosen = list(dict.fromkeys((*last.classes, *first.classes)))
    if most_unchanged is not None:
        changes = class_changes(first, last)
        same = sorted((c for c in chosen if not changes[c]), key=lambda c: -last.classes.get(c, 0))
        chosen = [c for c in chosen if changes[c]] + same[:most_unchanged]
    if not chosen:
        return []
    for name in chosen:
        figures = [peak.classes.get(name, 0) for peak in columns.values()]
        rows.append(_row(printable(name), figures))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{INDENT}  {row[0]:<{widths[0]}}   "
        + "   ".join(f"{text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


def _row(name: str, figures: Sequence[int]) -> tuple[str, ...]:
    """Figures of one kind, the first of which is what the last is held against."""
    return (name, *map(format_bytes, figures), format_delta(figures[-1] - figures[0]))


def _family_rows(families: Sequence[NewTensors]) -> list[str]:
    """The tensors that came, most bytes first."""
    rows = []
    for new in families[:_MOST_FAMILIES]:
        tensors, held = new.tensors, new.tensors.held_by
        ready = held.startswith(("in use", "graph output", "unused"))
        reason = held if ready else f"kept for {held}"
        if new.grew_from_bytes is not None:
            reason += f"   (was {format_bytes(new.grew_from_bytes)})"
        if tensors.line:
            reason += f"; made at {tensors.line}"
        size = f"{'' if new.exact else 'up to '}{new.count} x {format_bytes(tensors.nbytes)}"
        rows.append((tensors.place, size, f"{tensors.tensor_class}, {printable(reason)}"))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    lines = [
        f"{INDENT}  + {name:<{widths[0]}}   {size:>{widths[1]}}   {reason}"
        for name, size, reason in rows
    ]
    more = len(families) - _MOST_FAMILIES
    return [*lines, f"{INDENT}  and {more} more kinds"] if more > 0 else lines


def _other_fields(before: Peak, now: Peak) -> list[str]:
    """What else is not as it was."""
    pairs = (
        ("memory model", str(before.accounting), str(now.accounting)),
        ("session", before.session, now.session),
        ("provider", before.provider, now.provider),
        ("state", before.state, now.state),
        ("dims", _dims(before), _dims(now)),
        ("graph", before.fingerprint[:12], now.fingerprint[:12]),
    )
    return [
        f"{INDENT}{name}: {printable(old or APART)} -> {printable(new or APART)}"
        for name, old, new in pairs
        if old != new
    ]


def _above_cap(finding: Finding) -> str:
    """By how much a peak exceeds the cap for all."""
    excess = format_bytes(finding.over_cap_bytes)
    return f"limit {format_bytes(finding.cap_bytes or 0)} (--max-peak), exceeded by {excess}"


def _counted(peak: Peak) -> str:
    """What was counted: state in place, if it is; no workspace, where there is some at the peak."""
    whole = peak.peak_with_workspace_bytes or 0
    alone = f", tensors alone ({format_bytes(whole)} with workspace)"
    state = ", state in place" if peak.state == IN_PLACE else ""
    return (alone if whole > peak.peak_bytes else "") + state


def _fit_line(finding: Finding, now: Peak) -> str:
    """The command that rewrites the model to its limit; below the floor only chunks might."""
    limit = finding.limit_bytes
    assert limit is not None
    chunks = limit < now.floor_bytes
    command = fit_command(finding.file, limit, now.binding, chunks=chunks)
    floor = f"below {format_bytes(now.floor_bytes)}, the floor, only chunks may bring it: "
    return f"{INDENT}fit:     {floor if chunks else ''}{command}"


def _dims(peak: Peak) -> str:
    """Dimensions on one line."""
    return " ".join(f"{name}={size}" for name, size in sorted(peak.dims.items())) or "none"
