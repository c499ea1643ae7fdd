"""The answer of a check in one sentence, and what deserves to be read first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from memplan.api.check.checking import CheckResult
from memplan.api.check.finding import Finding, Kind, worst_first
from memplan.units import counted, format_bytes, format_delta, printable, told_apart

_ACCEPTED, _LESS = "need more memory, as the lock allows", "need less memory"
COUNTED = {
    Kind.REGRESSED: "need more memory",
    Kind.OVER_CAP: "above --max-peak",
    Kind.MISSING: "missing",
    Kind.ORPHAN: "not in the lock",
    Kind.TOO_LOOSE: "locked too loosely",
    Kind.UNREADABLE: "could not be read",
    Kind.ACCOUNTING: "not comparable",
    Kind.IMPROVED: _LESS,
    Kind.NEW: "new",
    Kind.REMOVED: "removed",
}
"""How models of each kind are counted: words that follow a number."""
_SUMMED = {COUNTED[kind]: "regressed" for kind in (Kind.REGRESSED, Kind.OVER_CAP)}
_SUMMED |= dict.fromkeys((_LESS, _ACCEPTED), "")
# In the order in which they are told.
_WORDS = list(dict.fromkeys(("regressed", *COUNTED.values())))
_WORDS.insert(_WORDS.index(_LESS), _ACCEPTED)


def summary(result: CheckResult) -> str:
    """The last line of a log: ``1 of 4 models regressed``."""
    words = [_counted(finding) for finding in result.findings]
    good = "within the lock" if result.has_lock else "unchanged"
    return _told([_SUMMED.get(word, word) for word in words], good)


def verdict(result: CheckResult) -> str:
    """The same for people who see only this: ``1 of 4 models needs more memory``."""
    return _told([_counted(finding) for finding in result.findings], "unchanged")


def _counted(finding: Finding) -> str:
    """How a model stands, in words that follow a number; empty: as it was."""
    if finding.kind is Kind.OK and finding.change_bytes:
        return _ACCEPTED if finding.change_bytes > 0 else _LESS
    return COUNTED.get(finding.kind, "")


def _told(standings: Sequence[str], good: str) -> str:
    parts = [(standings.count(words), words) for words in _WORDS if words in standings]
    models = counted(len(standings), "model")
    if not parts:
        return f"{models} {good}"
    (number, words), *rest = parts
    verb = words.replace("need ", "needs ", 1) if number == 1 else words
    return ", ".join([f"{number} of {models} {verb}", *(f"{n} {words}" for n, words in rest)])


def headline(result: CheckResult) -> tuple[str, str] | None:
    """The model that grew most and by how much: ``gpt_tiny``, ``+96.0 MiB (+12.4%)``."""
    entries = [finding for finding in worst_first(result.entries) if finding.change_bytes]
    if not entries or (result.failed and not entries[0].failed):
        return None
    path = entries[0].path
    name, others = short_name(path), [short_name(entry.path) for entry in result.entries]
    return name if others.count(name) == 1 else entries[0].name, growth(entries[0])


def short_name(path: str) -> str:
    """The name of a model without folders and endings; its path where nothing would be left."""
    name = PurePosixPath(path).name
    return printable(name.split(".")[0] or name or path)


def growth(finding: Finding) -> str:
    """``+96.0 MiB (+12.4%)``: against what the model is held to; where that is what it needs, since
    the base."""
    delta = finding.change_bytes
    before = finding.now.peak_bytes - delta if finding.now is not None else 0
    return f"{format_delta(delta)}{_share(delta, before)}"


def peak_change(before: int, after: int) -> list[str]:
    """``peak +96.0 MiB (+12.4%)`` and ``775 MiB -> 871 MiB``; in bytes where rounding hides it."""
    if before == after:
        return [f"peak {format_bytes(after)}"]
    delta, (old, new) = after - before, told_apart(before, after)
    return [f"peak {format_delta(delta)}{_share(delta, before)}", f"{old} -> {new}"]


def _share(delta: int, whole: int) -> str:
    """A part of the whole with its sign; nothing is called 0% that is not."""
    if not whole:
        return ""
    share = 100 * delta / whole
    return " (less than 0.1%)" if abs(share) < 0.05 else f" ({share:+.1f}%)"
