"""TOML as a lock has it: read without surprises, with the lines of its tables; written."""

from __future__ import annotations

import re
import tomllib

# tomllib takes time and memory that grow with the square of the parts of a dotted key.
_MOST_PARTS = 100
_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*(?:"|$)|\'[^\'\n]*(?:\'|$)|#.*', re.MULTILINE)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


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


def lines_of_tables(text: str, parent: str) -> dict[str, int]:
    """The lines (from 1) of the tables ``[PARENT.KEY]``, by key."""
    found: dict[str, int] = {}
    # Not splitlines: it also breaks at characters that TOML allows inside strings.
    for number, line in enumerate(text.split("\n"), 1):
        key = _key_below(parent, line.strip())
        if key is not None:
            found.setdefault(key, number)
    return found


def _key_below(parent: str, line: str) -> str | None:
    """The ``KEY`` of a line ``[PARENT.KEY]``; parsing it covers every way to quote a key."""
    if not line.startswith("["):
        return None
    try:
        tables = parse_toml(line).get(parent)
    except ValueError:
        return None
    return next(iter(tables), None) if isinstance(tables, dict) else None


def toml_value(value: object) -> str:
    """A value as TOML: a table on one line, an array with a line for each element.

    In strings, characters that no editor shows (controls, directional marks) are escaped, so that
    a reviewer sees what is there.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        pairs = (f"{_key(name)} = {toml_value(item)}" for name, item in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, list):
        rows = (f"    {toml_value(item)},\n" for item in value)
        return "\n".join(["[", "".join(rows) + "]"]) if value else "[]"
    return f'"{"".join(map(_escaped, value))}"' if isinstance(value, str) else str(value)


def _key(text: str) -> str:
    return text if _BARE_KEY.fullmatch(text) else toml_value(text)


def _escaped(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
