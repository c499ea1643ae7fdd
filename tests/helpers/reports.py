"""Reports as text, on lines that do not end."""

from __future__ import annotations

import io

from rich.console import Console

from memplan.report.parts import Report
from memplan.report.terminal.render import render


def text_of(report: Report, *, details: bool = False, width: int = 4000) -> str:
    """What a terminal of ``width`` columns shows."""
    console = Console(width=width, file=io.StringIO(), no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(render(report.parts, details=details))
    return capture.get()
