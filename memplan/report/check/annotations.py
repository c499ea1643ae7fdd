"""Workflow commands of GitHub Actions: a finding beside the lines of a pull request.

GitHub keeps ten annotations of each level per step, so that nine are written and one that says how
many more there are. In data, ``%`` and line ends are escaped; in properties ``:`` and ``,`` too:
what a model calls its tensors can end neither.
"""

from __future__ import annotations

from memplan.api.check.checking import CheckResult
from memplan.api.check.finding import Finding, worst_first
from memplan.api.check.text import reasons, title
from memplan.api.check.verdict import verdict
from memplan.report.check.findings import Level, commands, level, location
from memplan.units import counted, printable

MOST = 9
_TITLE = 120


def github_annotations(result: CheckResult) -> str:
    """The commands, worst first, and the verdict as a line of the log."""
    found = [each for each in worst_first(result.findings) if level(each) is not Level.NONE]
    lines = [_command(finding, result) for finding in found[:MOST]]
    more = found[MOST:]
    if more:
        worst = Level.ERROR if level(more[0]) is Level.ERROR else Level.NOTICE
        text = f"{counted(len(more), 'more finding')}: see the log or the step summary"
        lines.append(f"::{worst} title=memplan::{_data(text)}")
    return "\n".join([*lines, printable(f"memplan: {verdict(result)}")]) + "\n"


def _command(finding: Finding, result: CheckResult) -> str:
    file, line = location(finding, result)
    properties = (
        f"file={_property(file)},line={line},"
        f"title={_property(_short(f'memplan: {finding.kind}: {finding.name}'))}"
    )
    body = "\n".join([title(finding), *reasons(finding), *commands(finding)])
    return f"::{level(finding)} {properties}::{_data(body)}"


def _short(text: str) -> str:
    return text if len(text) <= _TITLE else f"{text[: _TITLE - 1]}…"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
