"""What github-action-benchmark draws over time: peaks of today, of which smaller is better."""

from __future__ import annotations

import json

from memplan.api.check.checking import CheckResult
from memplan.api.check.finding import worst_first
from memplan.api.check.text import reasons, title


def benchmark(result: CheckResult) -> str:
    """A JSON array for its tool ``customSmallerIsBetter``; what fails comes first."""
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
    return json.dumps(points, indent=2) + "\n"
