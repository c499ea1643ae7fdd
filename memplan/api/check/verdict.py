"""The answer of a check in one sentence, and what deserves to be read first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from memplan.api.check.checking import CheckResult
from memplan.api.check.compare_locks import CheckEntry, Status
from memplan.units import counted, format_bytes, format_delta, printable

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
_IN_LOG = {Status.REGRESSED: "regressed"}
_IN_WORDS = {Status.REGRESSED: "need more memory", Status.IMPROVED: "need less memory"}


def worst_first(entries: Iterable[CheckEntry]) -> list[CheckEntry]:
    """What fails before what does not, the largest growth first; then by path."""
    return sorted(entries, key=_rank)


def _rank(entry: CheckEntry) -> tuple[int, int, str]:
    rank = _LOOSE if entry.failed and entry.too_loose else _ORDER[entry.status]
    return rank, -_excess(entry) if rank == 0 else -abs(entry.growth_bytes), entry.path


def _excess(entry: CheckEntry) -> int:
    """Bytes by which an entry grew, or is above the cap for all."""
    over = (entry.peak_bytes or 0) - (entry.max_peak_bytes or 0) if entry.over_max_peak else 0
    return max(entry.growth_bytes, over)


def summary(result: CheckResult) -> str:
    """The last line of a log: ``1 of 4 models regressed``."""
    return _told(result, _IN_LOG, "within the lock" if result.has_lock else "unchanged")


def verdict(result: CheckResult) -> str:
    """The same for people who see only this: ``1 of 4 models needs more memory``."""
    return _told(result, _IN_WORDS, "unchanged")


def _told(result: CheckResult, words: Mapping[Status, str], good: str) -> str:
    entries = result.entries
    counts = Counter(entry.status for entry in entries)
    loose = sum(entry.failed and entry.too_loose for entry in entries)
    total = len(entries) + len(result.failures)
    named = (
        (counts[Status.REGRESSED], words.get(Status.REGRESSED, "")),
        (counts[Status.MISSING], "missing"),
        (counts[Status.ORPHAN], "not in the lock"),
        (loose, "locked too loosely"),
        (len(result.failures), "could not be read"),
        (counts[Status.ACCOUNTING], "not comparable"),
        (counts[Status.IMPROVED] - loose, words.get(Status.IMPROVED, "")),
        (counts[Status.NEW], "new"),
        (counts[Status.REMOVED], "removed"),
    )
    parts = [(number, word) for number, word in named if number and word]
    if not parts:
        return f"{counted(total, 'model')} {good}"
    (number, word), *rest = parts
    verb = word.replace("need ", "needs ", 1) if number == 1 else word
    first = f"{number} of {counted(total, 'model')} {verb}"
    return ", ".join([first, *(f"{n} {w}" for n, w in rest)])


def headline(result: CheckResult) -> tuple[str, str] | None:
    """The model that grew most and by how much: ``gpt_tiny``, ``+96.0 MiB (+12.4%)``."""
    entries = [e for e in worst_first(result.entries) if e.growth_bytes]
    if not entries or (result.failed and not entries[0].failed):
        return None
    return short_name(entries[0].path), growth(entries[0])


def short_name(path: str) -> str:
    """The name of a model without folders and endings; its path where nothing would be left."""
    name = PurePosixPath(path).name
    return printable(name.split(".")[0] or name or path)


def growth(entry: CheckEntry) -> str:
    """``+96.0 MiB (+12.4%)``."""
    before = entry.before
    assert before is not None
    delta = entry.growth_bytes
    share = f" ({percent(delta, before.peak_bytes)})" if before.peak_bytes else ""
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
    old, new = format_bytes(before), format_bytes(after)
    if old == new:
        old, new = f"{before:,} B", f"{after:,} B"
    share = f" ({percent(after - before, before)})" if before else ""
    return f"peak {format_delta(after - before)}{share}   {old} -> {new}"
