"""What every format asks of a finding: how bad it is, where it stands, what is there to copy."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

from memplan.api.check.checking import CheckResult
from memplan.api.check.finding import Finding, Kind
from memplan.api.check.hints import seen_from_here
from memplan.api.check.text import finding_lines
from memplan.units import printable

COMMANDS = ("accept:", "fit:")
"""How lines begin that are there to be copied."""


class Level(StrEnum):
    """How bad a finding is; only an error makes the command exit with 1 or more."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"
    NONE = "none"


_LEVELS = {
    Kind.UNREADABLE: Level.ERROR,
    Kind.ACCOUNTING: Level.WARNING,
    Kind.IMPROVED: Level.NOTICE,
}


def level(finding: Finding) -> Level:
    """How bad it is; ``NONE`` of models that are as they were."""
    return Level.ERROR if finding.failed else _LEVELS.get(finding.kind, Level.NONE)


def location(finding: Finding, result: CheckResult) -> tuple[str, int]:
    """The file in which it stands, and its line there (from 1): the table of the model in the lock;
    without a lock, the model itself."""
    if result.has_lock:
        return in_repository(result.lock), max(finding.line, 1)
    return in_repository(finding.file), 1


def in_repository(file: Path) -> str:
    """``file`` as a review names it: relative to the top of the repository it lies in, with ``/``;
    where it lies in none, as seen from here."""
    whole = Path(os.path.abspath(file))
    for folder in whole.parents:
        if os.path.lexists(folder / ".git"):
            return printable(whole.relative_to(folder).as_posix())
    return printable(seen_from_here(file).as_posix())


def commands(finding: Finding) -> list[str]:
    """The lines of the text report that are there to be copied."""
    lines = [line.strip() for line in finding_lines(finding)]
    return [line for line in lines if line.startswith(COMMANDS)]
