"""GitLab's code quality report: a JSON array with one object per finding.

The fingerprint is of lock, model and kind of finding, never of a figure or a line: GitLab tells by
it which findings a merge request brings, and a peak that changes again is the same finding.
"""

from __future__ import annotations

import hashlib
import json

from memplan.api.check.checking import CheckResult
from memplan.api.check.finding import Finding, worst_first
from memplan.api.check.text import reasons, title
from memplan.report.check.findings import Level, in_repository, level, location

_SEVERITIES = {Level.ERROR: "major", Level.WARNING: "minor", Level.NOTICE: "info"}


def code_quality(result: CheckResult) -> str:
    """The text of the report, a line for each finding; an empty array where nothing has changed."""
    found = [each for each in worst_first(result.findings) if level(each) in _SEVERITIES]
    lines = ",\n".join(json.dumps(_issue(finding, result)) for finding in found)
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def _issue(finding: Finding, result: CheckResult) -> dict[str, object]:
    file, line = location(finding, result)
    named = "\0".join((in_repository(result.lock), finding.name, finding.kind))
    return {
        "description": "; ".join([f"{finding.name}: {title(finding)}", *reasons(finding)]),
        "check_name": f"memplan-{finding.kind}",
        "fingerprint": hashlib.sha256(named.encode(errors="backslashreplace")).hexdigest(),
        "severity": _SEVERITIES[level(finding)],
        "location": {"path": file, "lines": {"begin": line}},
    }
