"""TOML that others wrote: read without surprises, with the lines on which things stand."""

from __future__ import annotations

import re
import tomllib

# tomllib takes time and memory that grow with the square of the parts of a dotted key.
_MOST_PARTS = 100
_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*(?:"|$)|\'[^\'\n]*(?:\'|$)|#.*', re.MULTILINE)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}")


def parse_toml(text: str) -> dict[str, object]:
    """The table of a TOML document.

    Raises:
        ValueError: it is not TOML, or nested too deeply; where tomllib knows the line, the
            message ends in ``(at line N, column M)``.
    """
    if _LONG_KEY.search(_STRING_OR_COMMENT.sub("s", text)):
        raise ValueError("nested too deeply")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


class Lines:
    """The lines of a document, to tell on which one something stands.

    ``headers`` are the lines (from 1) of the tables ``[PARENT.KEY]``, by key.
    """

    def __init__(self, text: str, parent: str) -> None:
        # Not splitlines: it also breaks at characters that TOML allows inside strings.
        self._lines = text.split("\n")
        self.headers: dict[str, int] = {}
        for number, line in enumerate(self._lines, 1):
            key = _key_below(parent, line.strip())
            if key is not None:
                self.headers.setdefault(key, number)

    def line_of(self, name: str, start: int = 1) -> int:
        """Line of ``name = ...`` from line ``start`` to the end of that table; 0 if not found."""
        pattern = re.compile(rf"\s*\"?{re.escape(name)}\"?\s*=")
        for number in range(start, len(self._lines) + 1):
            line = self._lines[number - 1]
            if pattern.match(line):
                return number
            if number > start and line.lstrip().startswith("["):
                break
        return 0


def _key_below(parent: str, line: str) -> str | None:
    """The ``KEY`` of a line ``[PARENT.KEY]``; parsing it covers every way to quote a key."""
    if not line.startswith("["):
        return None
    try:
        tables = parse_toml(line).get(parent)
    except ValueError:
        return None
    return next(iter(tables), None) if isinstance(tables, dict) else None
