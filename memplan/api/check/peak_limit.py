"""One model against a size, or against its lock, in the words of ``check``: what a test asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from memplan.units import format_bytes, listed, parse_size, printable

_MOST_CLASSES = 4


@dataclass(frozen=True, slots=True)
class PeakLimit:
    """What a model is held to: ``max_peak_bytes``, the peak in ``lock``, or both.

    ``dims`` are sizes of symbolic dimensions. ``session`` and ``provider`` are None where they are
    those of the lock, else ``tuned`` and ``cpu``.
    """

    max_peak_bytes: int | None = None
    lock: Path | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    session: str | None = None
    provider: str | None = None


@dataclass(frozen=True, slots=True)
class HeldPeak:
    """The predicted peak of a model, and what ``check`` reports of it.

    ``lines`` are empty for a model within its limit; where it is not ``exceeded``, they say why
    its peak cannot be compared with that in the lock.
    """

    peak_bytes: int
    exceeded: bool
    lines: tuple[str, ...] = ()


def size_in_bytes(size: str | int) -> int:
    """A ``max_peak``: ``"4GB"``, or a number of bytes.

    Raises:
        UsageError: it is no size, or a percentage.
    """
    nbytes = parse_size(str(size)).nbytes
    if nbytes is None:
        raise UsageError(f"max_peak {size}: expected a size, got a percentage", "4GB, 3.7GiB")
    return nbytes


def hold(file: Path, limit: PeakLimit) -> HeldPeak:
    """Predict the peak of the model in ``file`` and hold it to ``limit``. Nothing is run.

    Raises:
        MemplanError: the model or the lock cannot be read, or dimensions, session or provider are
            not those of the model or the lock.
    """
    file = seen_from_here(file)
    if limit.lock is not None:
        return _held_to_lock(file, seen_from_here(limit.lock), limit)
    now, cap = _measured(file, limit), limit.max_peak_bytes
    peak = now.entry.peak_bytes
    if cap is None or peak <= cap:
        return HeldPeak(peak, exceeded=False)
    return HeldPeak(peak, exceeded=True, lines=tuple(_report(file, now, cap)))


def _held_to_lock(file: Path, lock: Path, limit: PeakLimit) -> HeldPeak:
    request = CheckRequest(
        lock=lock,
        models=(file,),
        dims=limit.dims,
        session=limit.session,
        provider=limit.provider,
        max_peak_bytes=limit.max_peak_bytes,
    )
    result = run_check(request)
    for failure in result.failures:
        raise failure.error
    (entry,) = result.entries
    told = result.failed or entry.status is Status.ACCOUNTING
    lines = check_lines(result, brief=result.failed)[:-1] if told else []  # without the summary
    here = tuple(line.replace("(--max-peak)", "(max_peak)") for line in lines)
    # No peak is known of a model that is not in the lock and has an open dimension.
    return HeldPeak(entry.peak_bytes or 0, result.failed, here)


def _measured(file: Path, limit: PeakLimit) -> Current:
    binding = Binding(limit.dims, limit.session or "tuned", limit.provider or "cpu")
    try:
        now, symbolic = measure(file, str(file), binding)
    except UnboundDimsError as error:
        error.hint = f'give it one: dims={{"{printable(error.names[0])}": 32}}'
        raise
    unknown = sorted(set(limit.dims) - symbolic)
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
