"""GitLab's code quality report: a JSON array with one object per finding.

The fingerprint is of lock, model and kind of finding, never of a figure or a line: GitLab tells by
it which findings a merge request brings, and a peak that changes again is the same finding.
"""

from __future__ import annotations

import hashlib
import json

from memplan.api.check.checking import CheckResult
from memplan.report.check.findings import Finding, Level, findings, in_repository, reported

_SEVERITIES = {Level.ERROR: "major", Level.WARNING: "minor", Level.NOTICE: "info"}


def code_quality(result: CheckResult) -> str:
    """The text of the report; an empty array where nothing has changed."""
    lock = in_repository(result.lock)
    issues = [_issue(finding, lock) for finding in reported(findings(result))]
    return json.dumps(issues, indent=2) + "\n"


def _issue(finding: Finding, lock: str) -> dict[str, object]:
    about = "; ".join([f"{finding.path}: {finding.title}", *finding.causes])
    named = "\0".join((lock, finding.path, finding.kind)).encode(errors="backslashreplace")
    return {
        "description": about,
        "check_name": f"memplan-{finding.kind}",
        "fingerprint": hashlib.sha256(named).hexdigest(),
        "severity": _SEVERITIES[finding.level],
        "location": {"path": finding.file, "lines": {"begin": finding.line}},
    }
