"""One model against a size, or against its lock, in the words of ``check``: for tests of users."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from memplan.api.check.checking import run_check
from memplan.api.check.finding import Finding, Kind
from memplan.api.check.hints import seen_from_here
from memplan.api.check.measure import UnboundDimsError, measure
from memplan.api.check.peak import Binding, Peak
from memplan.api.check.targets import CheckRequest
from memplan.api.check.text import check_lines, finding_lines
from memplan.errors import UsageError
from memplan.proto.paths import as_path
from memplan.units import parse_size, printable


def assert_peak(
    model: PathLike[str] | str,
    max_peak: str | int | None = None,
    *,
    lock: PathLike[str] | str | None = None,
    dims: Mapping[str, int] | None = None,
    session: str | None = None,
    provider: str | None = None,
) -> int:
    """Assert that a model's predicted peak is within a limit. Nothing is run.

    Args:
        model: the file.
        max_peak: the largest peak that passes: ``"4GB"``, or bytes.
        lock: a file of ``memplan check`` with the limit; a failure then says what changed. Peaks of
            another memory model or runtime cannot be compared: that is a warning.
        dims: sizes of symbolic dimensions.
        session: with a lock, as recorded there; else ``tuned``.
        provider: with a lock, as recorded there; else ``cpu``.

    Returns:
        The predicted peak in bytes.

    Raises:
        AssertionError: the peak is above the limit; the message is that of ``memplan check``.
        MemplanError: no limit is given, the model or the lock cannot be read, or dimensions,
            session or provider are not those of the model or the lock.
    """
    __tracebackhide__ = True
    file, bound = seen_from_here(as_path(model)), dict(dims or {})
    cap = None if max_peak is None else _in_bytes(max_peak)
    if lock is not None:
        request = CheckRequest(
            lock=seen_from_here(as_path(lock)),
            models=(file,),
            dims=bound,
            session=session,
            provider=provider,
            max_peak_bytes=cap,
        )
        return _held_to_lock(request)
    if cap is None:
        raise UsageError(f"{file} has no limit", 'add max_peak="4GB" or lock="memplan.lock"')
    now = _measured(file, Binding(bound, session or "tuned", provider or "cpu"))
    if now.peak_bytes > cap:
        found = Finding(str(file), file, Kind.OVER_CAP, now=now, cap_bytes=cap)
        raise AssertionError(_words(finding_lines(found)))
    return now.peak_bytes


def _in_bytes(size: str | int) -> int:
    """A limit: ``"4GB"``, or a number of bytes.

    Raises:
        UsageError: it is no size, or a percentage.
    """
    nbytes = parse_size(str(size)).nbytes
    if nbytes is None:
        raise UsageError(f"max_peak {size}: expected a size, got a percentage", "4GB, 3.7GiB")
    return nbytes


def _held_to_lock(request: CheckRequest) -> int:
    __tracebackhide__ = True
    result = run_check(request)
    for error in result.errors.values():
        raise error
    (finding,) = result.findings
    told = result.failed or finding.kind is Kind.ACCOUNTING
    # Without the summary.
    text = _words(check_lines(result, brief=result.failed)[:-1]) if told else ""
    if result.failed:
        raise AssertionError(text)
    if text:
        warnings.warn(text, stacklevel=3)
    assert finding.now is not None  # only an orphan may have an open dimension, and that fails
    return finding.now.peak_bytes


def _words(lines: Sequence[str]) -> str:
    """The report with the limit under the name that it has here."""
    return "\n".join(line.replace("(--max-peak)", "(max_peak)") for line in lines)


def _measured(file: Path, binding: Binding) -> Peak:
    try:
        now, symbolic = measure(file, str(file), binding)
    except UnboundDimsError as error:
        error.hint = f'give it one: dims={{"{printable(error.names[0])}": 32}}'
        raise
    unknown = sorted(set(binding.dims) - symbolic)
    if unknown:
        known = ", ".join(sorted(symbolic)) or "none"
        raise UsageError(
            f"dims: {printable(str(file))} has no dimension '{unknown[0]}'",
            f"its symbolic dimensions: {printable(known)}",
        )
    return now
