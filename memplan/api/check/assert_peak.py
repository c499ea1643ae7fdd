"""One model against a size, or against its lock, in the words of ``check``: for tests of users."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from memplan.api.check.checking import run_check
from memplan.api.check.compare_locks import CheckEntry, FamilyDelta, Status
from memplan.api.check.current import Current, UnboundDimsError, measure
from memplan.api.check.detail_lines import INDENT, family_rows, fit_line
from memplan.api.check.hints import seen_from_here
from memplan.api.check.lock import Binding
from memplan.api.check.targets import CheckRequest
from memplan.api.check.text import check_lines
from memplan.errors import UsageError
from memplan.proto.paths import as_path
from memplan.units import format_bytes, listed, parse_size, printable

_MOST_CLASSES = 4


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
        binding = CheckRequest(
            lock=seen_from_here(as_path(lock)),
            models=(file,),
            dims=bound,
            session=session,
            provider=provider,
            max_peak_bytes=cap,
        )
        return _held_to_lock(binding)
    if cap is None:
        raise UsageError(f"{file} has no limit", 'add max_peak="4GB" or lock="memplan.lock"')
    now = _measured(file, Binding(bound, session or "tuned", provider or "cpu"))
    if now.entry.peak_bytes > cap:
        raise AssertionError("\n".join(_report(file, now, cap)))
    return now.entry.peak_bytes


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
    for failure in result.failures:
        raise failure.error
    (entry,) = result.entries
    told = result.failed or entry.status is Status.ACCOUNTING
    lines = check_lines(result, brief=result.failed)[:-1] if told else []  # without the summary
    text = "\n".join(line.replace("(--max-peak)", "(max_peak)") for line in lines)
    if result.failed:
        raise AssertionError(text)
    if text:
        warnings.warn(text, stacklevel=3)
    # No peak is known of a model that is not in the lock and has an open dimension.
    return entry.peak_bytes or 0


def _measured(file: Path, binding: Binding) -> Current:
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


def _report(file: Path, now: Current, cap: int) -> list[str]:
    """What is above the limit, by how much and where; of what it consists; what would fit."""
    peak, at = now.entry.peak_bytes, f"step {now.step}/{now.steps}  {now.phase}"
    limit = f"limit {format_bytes(cap)} (max_peak), exceeded by {format_bytes(peak - cap)}"
    classes = sorted(now.entry.classes.items(), key=lambda item: -item[1])
    shown = [f"{name} {format_bytes(nbytes)}" for name, nbytes in classes]
    lines = [
        f"FAIL  {printable(str(file))}  peak {format_bytes(peak)}   {limit}",
        f"{INDENT}at {at}: {printable(now.entry.peak_node)}",
        f"{INDENT}classes: {listed(shown, _MOST_CLASSES)}",
    ]
    # What is less than a hundredth of the peak explains nothing.
    large = [f for f in now.families if f.tensors.total_bytes * 100 >= peak]
    if large:
        lines.append(f"{INDENT}why: the largest tensors at this step")
        lines += family_rows([FamilyDelta(f, f.tensors.count, True, None) for f in large])
    entry = CheckEntry(now.entry.path, file, Status.REGRESSED, now=now, max_peak_bytes=cap)
    return [*lines, fit_line(entry, now)]
