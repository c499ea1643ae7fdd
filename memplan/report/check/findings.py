"""What a check has to report, worst first: one value that every format spells in its own way."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from memplan.api.check.causes import causes_of
from memplan.api.check.checking import CheckResult, Unreadable
from memplan.api.check.compare_locks import CheckEntry, Status
from memplan.api.check.hints import seen_from_here
from memplan.api.check.text import entry_lines
from memplan.api.check.verdict import worst_first
from memplan.units import printable


class Level(StrEnum):
    """How bad a finding is; only an error makes the command exit with 1 or more."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is reported of one model.

    ``kind`` is what sort of finding it is, in a word of the JSON contract; ``title`` one line
    without the path; ``causes`` why, one line each; ``lines`` all that the text report says.
    ``file`` is the file in which it stands, from the root of the repository, and ``line`` its line
    there (from 1).
    """

    path: str
    kind: str
    level: Level
    title: str
    causes: tuple[str, ...]
    lines: tuple[str, ...]
    file: str
    line: int
    entry: CheckEntry | None = None


_LEVELS = {
    Status.OK: Level.NONE,
    Status.NEW: Level.NONE,
    Status.REMOVED: Level.NONE,
    Status.IMPROVED: Level.NOTICE,
    Status.ACCOUNTING: Level.WARNING,
}


def findings(result: CheckResult) -> list[Finding]:
    """One finding per model, what fails first, what could not be read at the head of the rest."""
    told = [_of_entry(entry, result) for entry in worst_first(result.entries)]
    failing = [finding for finding in told if finding.level is Level.ERROR]
    others = [finding for finding in told if finding.level is not Level.ERROR]
    return [*failing, *(_of_failure(failure, result) for failure in result.failures), *others]


def _of_entry(entry: CheckEntry, result: CheckResult) -> Finding:
    lines = entry_lines(entry, result)
    _, _, said = lines[0].partition(printable(entry.path))
    file, line = _location(entry, result)
    return Finding(
        path=printable(entry.path),
        kind=_kind(entry),
        level=Level.ERROR if entry.failed else _LEVELS[entry.status],
        title=re.sub(" {2,}", ", ", said.strip()),
        causes=tuple(cause.line for cause in causes_of(entry)),
        lines=tuple(lines),
        file=file,
        line=line,
        entry=entry,
    )


def _of_failure(failure: Unreadable, result: CheckResult) -> Finding:
    message, hint = printable(failure.error.message), printable(failure.error.hint)
    return Finding(
        path=printable(failure.path),
        kind="unreadable",
        level=Level.ERROR,
        title="could not be read",
        causes=(message,),
        lines=(f"error: {message}", *([f"hint: {hint}"] if hint else [])),
        file=in_repository(result.lock if result.has_lock else Path(failure.path)),
        line=1,
    )


def _kind(entry: CheckEntry) -> str:
    if entry.failed and entry.too_loose:
        return "too-loose"
    over = entry.status is Status.REGRESSED and entry.growth_bytes <= 0
    return "over-max-peak" if over else str(entry.status)


def _location(entry: CheckEntry, result: CheckResult) -> tuple[str, int]:
    """The table of the model in the lock; without a lock, the model itself."""
    if result.has_lock:
        return in_repository(result.lock), max(entry.line, 1)
    return in_repository(entry.file), 1


def in_repository(file: Path) -> str:
    """``file`` as a review names it: relative to the top of the repository it lies in, with ``/``;
    where it lies in none, as seen from here."""
    whole = Path(os.path.abspath(file))
    for folder in whole.parents:
        if os.path.lexists(folder / ".git"):
            return printable(whole.relative_to(folder).as_posix())
    return printable(seen_from_here(file).as_posix())


def failing(found: Iterable[Finding]) -> list[Finding]:
    """Those that make the command fail."""
    return [finding for finding in found if finding.level is Level.ERROR]


def reported(found: Iterable[Finding]) -> list[Finding]:
    """Those that say something: all but models that are as they were."""
    return [finding for finding in found if finding.level is not Level.NONE]


def commands(finding: Finding) -> list[str]:
    """The lines of the text report that are there to be copied."""
    return [line.strip() for line in finding.lines if line.lstrip().startswith(("accept:", "fit:"))]
