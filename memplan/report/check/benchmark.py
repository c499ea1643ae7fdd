"""What github-action-benchmark draws over time: peaks of today, of which smaller is better."""

from __future__ import annotations

import json

from memplan.api.check.checking import CheckResult
from memplan.report.check.findings import Finding, findings


def benchmark(result: CheckResult) -> str:
    """A JSON array for its tool ``customSmallerIsBetter``; what fails comes first."""
    points = [_point(finding) for finding in findings(result)]
    return json.dumps([point for point in points if point is not None], indent=2) + "\n"


def _point(finding: Finding) -> dict[str, object] | None:
    entry = finding.entry
    if entry is None or entry.now is None:
        return None
    dims = "".join(f" {name}={size}" for name, size in sorted(entry.now.entry.dims.items()))
    return {
        "name": f"{finding.path}{dims}",
        "unit": "bytes",
        "value": entry.now.entry.peak_bytes,
        "extra": "\n".join([finding.title, *finding.causes]),
    }
