"""How people read and write values: sizes (``4GB``, ``80%``), counts, and names out of files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction

from memplan.errors import UsageError

_DECIMAL = {"kB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
_BINARY = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
_UNITS = {name.lower(): factor for name, factor in {**_DECIMAL, **_BINARY, "B": 1}.items()}
_SIZE = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]+|%)?\s*")
_MOST_BYTES = 2**60  # a million tebibytes; sums of a few of these still fit into 64 bits
_MOST_PERCENT = 1_000_000
# What a CI service takes for a command: '::' at the start of a line, '##[' and '##vso[' anywhere.
_LINE_COMMAND = re.compile(r"^(\s*):(?=:)")
_COMMAND = re.compile(r"#(?=#(?:vso)?\[)")


@dataclass(frozen=True, slots=True)
class SizeSpec:
    """A size that may be relative: ``nbytes`` or ``fraction`` (of a peak not yet known) is set.

    Neither is where the least is asked for, whatever it comes to (:data:`LOWEST`).
    """

    text: str
    nbytes: int | None
    fraction: Fraction | None

    @property
    def is_lowest(self) -> bool:
        """Whether it is the least there is."""
        return self.nbytes is None and self.fraction is None

    def resolve(self, whole: int) -> int:
        """The size in bytes; a percentage is taken of ``whole`` (bytes) and rounded down. 0 where
        the least is asked for."""
        if self.fraction is None:
            return self.nbytes or 0
        return int(self.fraction * whole)


LOWEST = SizeSpec("min", None, None)


def parse_budget(text: str) -> SizeSpec:
    """Read a size, or ``min`` for the least that can be reached.

    Raises:
        UsageError: as :func:`parse_size`.
    """
    return LOWEST if text.strip().lower() == LOWEST.text else parse_size(text)


def parse_size(text: str) -> SizeSpec:
    """Read a size.

    Raises:
        UsageError: the text is not a size, has an ambiguous unit (``4G``), is zero or negative, or
            larger than any memory.
    """
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise UsageError(
            f"'{text}' is not a size",
            "write a positive number with a unit: 4GB, 3.7GiB, 512MiB, 80% or plain bytes",
        )
    number, unit = Fraction(match.group(1)), match.group(2)
    if number == 0:
        raise UsageError(f"a size of '{text}' leaves nothing", "give a size above zero")
    if unit == "%":
        if number > _MOST_PERCENT:
            raise UsageError(f"'{text}' is too much", f"give at most {_MOST_PERCENT}%")
        return SizeSpec(text.strip(), None, number / 100)
    nbytes = number * _factor(text, match.group(1), unit)
    if nbytes.denominator != 1 and unit is None:
        raise UsageError(f"'{text}' is not a whole number of bytes", "add a unit: 4.5GB")
    if not 1 <= nbytes <= _MOST_BYTES:
        which = "less than one byte" if nbytes < 1 else "more than any machine has"
        raise UsageError(f"'{text}' is {which}", "check the number and the unit")
    return SizeSpec(text.strip(), int(nbytes), None)


def _factor(text: str, number: str, unit: str | None) -> int:
    """Bytes per ``unit``."""
    if unit is None:
        return 1
    if len(unit) == 1 and unit.upper() in "KMGT":
        letter = unit.upper()
        decimal = "kB" if letter == "K" else f"{letter}B"
        raise UsageError(
            f"'{text}' is ambiguous",
            f"write {number}{decimal} (powers of 1000) or {number}{letter}iB (powers of 1024)",
        )
    factor = _UNITS.get(unit.lower())
    if factor is None:
        raise UsageError(
            f"'{text}' has an unknown unit '{unit}'",
            "use kB MB GB TB (powers of 1000), KiB MiB GiB TiB (powers of 1024) or %",
        )
    return factor


def format_bytes(nbytes: int) -> str:
    """``nbytes`` in the largest binary unit that keeps at least one digit before the point."""
    magnitude = abs(nbytes)
    for name, factor in reversed(_BINARY.items()):
        if magnitude >= factor:
            value = nbytes / factor
            digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
            return f"{value:.{digits}f} {name}"
    return f"{nbytes} B"


def told_apart(before: int, after: int) -> tuple[str, str]:
    """Two sizes as text; in bytes where rounding would make them look the same."""
    old, new = format_bytes(before), format_bytes(after)
    return (old, new) if old != new else (f"{before:,} B", f"{after:,} B")


def format_delta(nbytes: int) -> str:
    """A difference with its sign, or ``=`` when there is none."""
    if nbytes == 0:
        return "="
    return ("+" if nbytes > 0 else "-") + format_bytes(abs(nbytes))


def echo_size(spec: SizeSpec, nbytes: int) -> str:
    """A size in every notation: ``4GB = 4,000,000,000 B (3.73 GiB)``."""
    return f"{spec.text} = {nbytes:,} B ({format_bytes(nbytes)})"


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun: ``1 node``, ``1,016 nodes``; ``plural`` where it does not end in s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int) -> str:
    """``a, b and 3 more``: the first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The beginning of a hint: the nearest of ``names``; empty if none is near."""
    near = get_close_matches(str(name), names, 1)
    return f"did you mean '{near[0]}'? " if near else ""


def printable(text: str) -> str:
    """``text`` on one line, as a terminal or a CI log may safely show it.

    Names come from files that others wrote. Raw, they could break a line, steer a terminal
    (control characters of C0 and C1, escape sequences), reverse the reading direction, or be
    taken for a command by a CI service. What is not printable is escaped as in Python.
    """
    # A lone surrogate stands for a byte of a file name that is not UTF-8; it is escaped, too.
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return _harmless(line)


def _harmless(line: str) -> str:
    """With what a CI service would take for a command escaped."""
    return _COMMAND.sub(r"\\x23", _LINE_COMMAND.sub(r"\1\\x3a", line))


def shell_word(text: str) -> str:
    """``text`` as a word of a shell command, to be shown on one line and typed as it stands.

    What :func:`printable` would escape stands as ``$'a\\x0a'``, which bash, zsh and POSIX.1-2024
    read as the bytes that it means.
    """
    if printable(text) == text:
        return shlex.quote(text)
    plain = text.translate({ord("\\"): "\\\\", ord("'"): "\\'"})
    return "$'" + _harmless("".join(c if c.isprintable() else _bytes_of(c) for c in plain)) + "'"


def _bytes_of(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))
