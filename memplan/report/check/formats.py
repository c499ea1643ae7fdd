"""The formats of ``check`` by name, each in a module that is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan.api.check.checking import CheckResult

FORMATS = {
    "text": "memplan.api.check.text:check_text",
    "json": "memplan.api.check.json_report:check_json",
    "markdown": "memplan.report.check.markdown:markdown",
    "github": "memplan.report.check.services:github_annotations",
    "gitlab": "memplan.report.check.services:code_quality",
    "junit": "memplan.report.check.services:junit",
    "benchmark": "memplan.report.check.services:benchmark",
}
"""The function that writes each of them."""


def rendered(result: CheckResult, form: str) -> str:
    """A result in one of the formats."""
    module, _, function = FORMATS[form].partition(":")
    return str(getattr(import_module(module), function)(result))
