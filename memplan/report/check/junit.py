"""JUnit's XML: a case per model, as CI services show tests.

What cannot be compared is skipped and not failed; what could not be read is an error.
"""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from memplan.api.check.checking import CheckResult
from memplan.api.check.finding import Finding, Kind, worst_first
from memplan.api.check.text import finding_lines, reasons, title
from memplan.report.check.findings import in_repository


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
