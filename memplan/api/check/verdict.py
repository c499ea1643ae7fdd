"""The answer of a check in one sentence, and what deserves to be read first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from memplan.api.check.checking import CheckResult
from memplan.api.check.compare_locks import CheckEntry, Status
from memplan.units import counted, format_bytes, format_delta, printable, told_apart

_ORDER = {
    Status.REGRESSED: 0,
    Status.MISSING: 1,
    Status.ORPHAN: 2,
    Status.ACCOUNTING: 4,
    Status.NEW: 5,
    Status.REMOVED: 6,
    Status.IMPROVED: 7,
    Status.OK: 8,
}
_LOOSE = 3
_ACCEPTED = "need more memory, as the lock allows"
_WORDS = {
    Status.MISSING: "missing",
    Status.ORPHAN: "not in the lock",
    Status.ACCOUNTING: "not comparable",
    Status.NEW: "new",
    Status.REMOVED: "removed",
}
_STANDINGS = (
    *("regressed", "need more memory", "above --max-peak", "missing", "not in the lock"),
    *("locked too loosely", "could not be read", "not comparable", _ACCEPTED, "need less memory"),
    *("new", "removed"),
)


def worst_first(entries: Iterable[CheckEntry]) -> list[CheckEntry]:
    """What fails before what does not, the largest growth first; then by path."""
    return sorted(entries, key=_rank)


def _rank(entry: CheckEntry) -> tuple[int, int, str]:
    rank = _LOOSE if entry.failed and entry.too_loose else _ORDER[entry.status]
    change = abs(entry.growth_bytes or entry.since_base_bytes)
    return rank, -_excess(entry) if rank == 0 else -change, entry.path


def _excess(entry: CheckEntry) -> int:
    """Bytes by which an entry grew, or is above the cap for all."""
    over = (entry.peak_bytes or 0) - (entry.max_peak_bytes or 0) if entry.over_max_peak else 0
    return max(entry.growth_bytes, over)


def summary(result: CheckResult) -> str:
    """The last line of a log: ``1 of 4 models regressed``."""
    counts = Counter(_standing(entry) for entry in result.entries)
    counts["regressed"] = counts.pop("need more memory", 0) + counts.pop("above --max-peak", 0)
    for news in ("need less memory", _ACCEPTED):
        del counts[news]
    return _told(result, counts, "within the lock" if result.has_lock else "unchanged")


def verdict(result: CheckResult) -> str:
    """The same for people who see only this: ``1 of 4 models needs more memory``."""
    return _told(result, Counter(map(_standing, result.entries)), "unchanged")


def _standing(entry: CheckEntry) -> str:
    """How a model stands, in words that follow a number; empty: as it was."""
    if entry.status in _WORDS:
        return _WORDS[entry.status]
    if entry.status is Status.REGRESSED:
        return "need more memory" if entry.growth_bytes > 0 else "above --max-peak"
    if entry.failed:
        return "locked too loosely"
    delta = entry.growth_bytes or entry.since_base_bytes
    return (_ACCEPTED if delta > 0 else "need less memory") if delta else ""


def _told(result: CheckResult, counts: Counter[str], good: str) -> str:
    counts["could not be read"] = len(result.failures)
    total = len(result.entries) + len(result.failures)
    parts = [(counts[words], words) for words in _STANDINGS if counts[words]]
    if not parts:
        return f"{counted(total, 'model')} {good}"
    (number, words), *rest = parts
    verb = words.replace("need ", "needs ", 1) if number == 1 else words
    first = f"{number} of {counted(total, 'model')} {verb}"
    return ", ".join([first, *(f"{n} {w}" for n, w in rest)])


def headline(result: CheckResult) -> tuple[str, str] | None:
    """The model that grew most and by how much: ``gpt_tiny``, ``+96.0 MiB (+12.4%)``."""
    entries = [e for e in worst_first(result.entries) if e.growth_bytes or e.since_base_bytes]
    if not entries or (result.failed and not entries[0].failed):
        return None
    path = entries[0].path
    name, others = short_name(path), [short_name(entry.path) for entry in result.entries]
    return name if others.count(name) == 1 else printable(path), growth(entries[0])


def short_name(path: str) -> str:
    """The name of a model without folders and endings; its path where nothing would be left."""
    name = PurePosixPath(path).name
    return printable(name.split(".")[0] or name or path)


def growth(entry: CheckEntry) -> str:
    """``+96.0 MiB (+12.4%)``: against what the model is held to; where that is what it needs, since
    the base."""
    delta = entry.growth_bytes or entry.since_base_bytes
    before = (entry.peak_bytes or 0) - delta
    share = f" ({percent(delta, before)})" if before else ""
    return f"{format_delta(delta)}{share}"


def percent(delta: int, whole: int) -> str:
    """A share of the whole with its sign; nothing is called 0% that is not."""
    share = 100 * delta / whole
    if abs(share) < 0.05:
        return "less than 0.1%"
    return f"{share:+.1f}%"


def peak_change(before: int, after: int) -> str:
    """``peak +96.0 MiB (+12.4%)   775 MiB -> 871 MiB``; in bytes where rounding hides it."""
    if before == after:
        return f"peak {format_bytes(after)}"
    old, new = told_apart(before, after)
    share = f" ({percent(after - before, before)})" if before else ""
    return f"peak {format_delta(after - before)}{share}   {old} -> {new}"
