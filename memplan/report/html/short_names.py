"""Texts in the HTML report: escaped, names short, and each kept once where it repeats."""

from __future__ import annotations

import html

from memplan.units import printable

_NAME_CHARACTERS = 80


class NameTable:
    """Distinct texts in order of first use."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._index: dict[str, int] = {}

    def index(self, name: str) -> int:
        """Position of ``name``, added when it is new."""
        if name not in self._index:
            self._index[name] = len(self.names)
            self.names.append(name)
        return self._index[name]


def escape(text: str) -> str:
    """``text`` as the page may hold it: no markup, and nothing that would steer the terminal or
    the CI log that the page is written to."""
    return html.escape(printable(text))


def shorten(name: str) -> str:
    """``name`` on one line, without its middle where it is long."""
    name = printable(name)
    if len(name) <= _NAME_CHARACTERS:
        return name
    half = (_NAME_CHARACTERS - 1) // 2
    return f"{name[:half]}…{name[-half:]}"
