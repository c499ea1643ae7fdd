"""The formats of ``check`` by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memplan.api.check.checking import CheckResult
from memplan.api.check.json_report import check_json
from memplan.report.check.annotations import github_annotations
from memplan.report.check.benchmark import benchmark
from memplan.report.check.code_quality import code_quality
from memplan.report.check.junit import junit
from memplan.report.check.markdown import markdown

FORMATS: Mapping[str, Callable[[CheckResult], str]] = {
    "json": check_json,
    "markdown": markdown,
    "github": github_annotations,
    "gitlab": code_quality,
    "junit": junit,
    "benchmark": benchmark,
}
"""All but ``text``, which the command paints."""
