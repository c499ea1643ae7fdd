"""Reports as text, on lines that do not end, and as the elements of a page."""

import io
import json
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

from rich.console import Console

from memplan.report.parts import Report
from memplan.report.terminal.render import render


def text_of(report: Report, *, details: bool = False, width: int = 4000) -> str:
    """What a terminal of ``width`` columns shows."""
    console = Console(width=width, file=io.StringIO(), no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(render(report.parts, details=details))
    return capture.get()


class Page(HTMLParser):
    """Elements, attributes and texts of a page as a browser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def data_of(page: str) -> dict[str, Any]:
    """The JSON block that the script of a page reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    content: dict[str, Any] = json.loads(found[1])
    return content
