"""What services read: annotations (GitHub), code quality (GitLab), JUnit, github-action-benchmark.

Every format asks the same of a finding: how bad it is, where it stands, what is there to copy.

1. GitHub keeps ten annotations of each level per step, so that nine are written and one that says
   how many more there are. In data, ``%`` and line ends are escaped; in properties ``:`` and ``,``
   too: what a model calls its tensors can end neither.
2. GitLab tells by fingerprints which findings a merge request brings. They are of lock, model and
   kind of finding, never of a figure or a line: a peak that changes again is the same finding.
3. JUnit has a case per model, as CI services show tests. What cannot be compared is skipped and not
   failed; what could not be read is an error.
4. github-action-benchmark draws peaks of today over time, of which smaller is better.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from memplan.api.check.checking import CheckResult
from memplan.api.check.finding import Finding, Kind, worst_first
from memplan.api.check.hints import seen_from_here
from memplan.api.check.text import finding_lines, reasons, title
from memplan.api.check.verdict import verdict
from memplan.units import counted, printable

COMMANDS = ("accept:", "fit:")
"""How lines begin that are there to be copied."""
MOST = 9
_TITLE = 120


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
_SEVERITIES = {Level.ERROR: "major", Level.WARNING: "minor", Level.NOTICE: "info"}


def level(finding: Finding) -> Level:
    """How bad it is; ``NONE`` of models that are as they were."""
    return Level.ERROR if finding.failed else _LEVELS.get(finding.kind, Level.NONE)


def in_repository(file: Path) -> str:
    """``file`` as a review names it: relative to the top of the repository it lies in, with ``/``;
    where it lies in none, as seen from here."""
    whole = Path(os.path.abspath(file))
    for folder in whole.parents:
        if os.path.lexists(folder / ".git"):
            return printable(whole.relative_to(folder).as_posix())
    return printable(seen_from_here(file).as_posix())


def github_annotations(result: CheckResult) -> str:
    """Workflow commands, which show beside the lines of a pull request, worst first, and the
    verdict as a line of the log."""
    found = _told(result)
    lines = [_command(finding, result) for finding in found[:MOST]]
    more = found[MOST:]
    if more:
        worst = Level.ERROR if level(more[0]) is Level.ERROR else Level.NOTICE
        text = f"{counted(len(more), 'more finding')}: see the log or the step summary"
        lines.append(f"::{worst} title=memplan::{_data(text)}")
    return "\n".join([*lines, printable(f"memplan: {verdict(result)}")]) + "\n"


def code_quality(result: CheckResult) -> str:
    """A JSON array of the findings; an empty one where nothing has changed."""
    return _array([_issue(finding, result) for finding in _told(result)])


def _array(items: Sequence[Mapping[str, object]]) -> str:
    """A line each, so that what changed is named on the first screen."""
    lines = ",\n".join(map(json.dumps, items))
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def junit(result: CheckResult) -> str:
    """The text of the report."""
    found = worst_first(result.findings)
    kinds = [_outcome(finding) for finding in found]
    counts = (
        f'tests="{len(found)}" failures="{kinds.count("failure")}" '
        f'errors="{kinds.count("error")}" time="0"'
    )
    skipped = f'skipped="{kinds.count("skipped")}"'
    lock = in_repository(result.lock) if result.has_lock else "memplan check"
    cases = [_case(finding, kind, lock) for finding, kind in zip(found, kinds, strict=True)]
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<testsuites name="memplan check" {counts}>',
            f"  <testsuite name={quoteattr(lock)} {counts} {skipped}>",
            *cases,
            "  </testsuite>",
            "</testsuites>",
            "",
        ]
    )


def benchmark(result: CheckResult) -> str:
    """A JSON array for the tool ``customSmallerIsBetter``; what fails comes first."""
    points: list[dict[str, object]] = []
    for finding in worst_first(result.entries):
        if finding.now is not None:
            dims = sorted(finding.now.dims.items())
            points.append(
                {
                    "name": finding.name + "".join(f" {name}={size}" for name, size in dims),
                    "unit": "bytes",
                    "value": finding.now.peak_bytes,
                    "extra": "\n".join([title(finding), *reasons(finding)]),
                }
            )
    return _array(points)


def _told(result: CheckResult) -> list[Finding]:
    return [each for each in worst_first(result.findings) if level(each) is not Level.NONE]


def _location(finding: Finding, result: CheckResult) -> tuple[str, int]:
    """The file in which it stands, and its line there (from 1): the table of the model in the lock;
    without a lock, the model itself."""
    if result.has_lock:
        return in_repository(result.lock), max(finding.line, 1)
    return in_repository(finding.file), 1


def _command(finding: Finding, result: CheckResult) -> str:
    file, line = _location(finding, result)
    heading = f"memplan: {finding.kind}: {finding.name}"
    shown = heading if len(heading) <= _TITLE else f"{heading[: _TITLE - 1]}…"
    properties = f"file={_property(file)},line={line},title={_property(shown)}"
    to_copy = [line.strip() for line in finding_lines(finding)]
    to_copy = [line for line in to_copy if line.startswith(COMMANDS)]
    body = "\n".join([title(finding), *reasons(finding), *to_copy])
    return f"::{level(finding)} {properties}::{_data(body)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _issue(finding: Finding, result: CheckResult) -> dict[str, object]:
    file, line = _location(finding, result)
    named = "\0".join((in_repository(result.lock), finding.name, finding.kind))
    return {
        "description": "; ".join([f"{finding.name}: {title(finding)}", *reasons(finding)]),
        "check_name": f"memplan-{finding.kind}",
        "fingerprint": hashlib.sha256(named.encode(errors="backslashreplace")).hexdigest(),
        "severity": _SEVERITIES[level(finding)],
        "location": {"path": file, "lines": {"begin": line}},
    }


def _outcome(finding: Finding) -> str:
    if finding.error is not None:
        return "error"
    if finding.failed:
        return "failure"
    return "skipped" if finding.kind is Kind.ACCOUNTING else "passed"


def _case(finding: Finding, outcome: str, lock: str) -> str:
    head = f'    <testcase name={quoteattr(finding.name)} classname={quoteattr(lock)} time="0"'
    # One line a case, so that what changed is named on the first screen of a log.
    text = escape("\n".join(finding_lines(finding)), {"\n": "&#10;"})
    if outcome == "passed":
        return f"{head}><system-out>{text}</system-out></testcase>"
    message = quoteattr("; ".join([title(finding), *reasons(finding)]))
    if outcome == "skipped":
        return f"{head}><skipped message={message}/></testcase>"
    inside = f"<{outcome} message={message} type={quoteattr(finding.kind)}>{text}</{outcome}>"
    return f"{head}>{inside}</testcase>"
