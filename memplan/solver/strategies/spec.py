"""Specs: ``name{option=value,...}``, where a frozen dataclass *is* the spec.

The fields of the class are the options, and their defaults say what a value must be: a whole
number, a number or a text. So there is one list of options, and it is the class (as xdsl does it
for passes).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

from memplan.errors import UsageError
from memplan.units import did_you_mean

NAME = r"[A-Za-z0-9_-]+"
_SPEC = re.compile(rf"(?P<name>{NAME})(\{{(?P<options>[^{{}}]*)\}})?")

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec taken apart; ``options`` are texts as they were written."""

    name: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a class. ``allowed``: its values; empty: any of its kind. ``meaning``: what it
    is for, or empty."""

    name: str
    default: int | float | str
    allowed: tuple[str, ...]
    meaning: str = ""

    @property
    def kind(self) -> str:
        """``text`` or ``number``."""
        return "text" if isinstance(self.default, str) else "number"


def split_spec(text: str) -> Spec | None:
    """``name`` or ``name{option=value,...}``, taken apart; None if it is neither."""
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        return None
    options = {}
    for part in filter(None, (item.strip() for item in (match.group("options") or "").split(","))):
        key, _, value = part.partition("=")
        options[key.strip()] = value.strip()
    return Spec(match.group("name"), options)


def options_of(kind: type[Any]) -> tuple[Option, ...]:
    """The options of a class, in the order of its fields.

    Class variables may tell more, by option: ``words`` lists the values of those that have few,
    ``meanings`` says what they are for.
    """
    words: Mapping[str, tuple[str, ...]] = getattr(kind, "words", {})
    meanings: Mapping[str, str] = getattr(kind, "meanings", {})
    return tuple(
        Option(
            field.name,
            cast(int | float | str, field.default),
            tuple(words.get(field.name, ())),
            str(meanings.get(field.name, "")),
        )
        for field in fields(kind)
    )


def build(kind: type[Kind], spec: Spec, noun: str, where: str = "") -> Kind:
    """An object of the class, a dataclass with a ``name``, with the options of ``spec``.

    Args:
        kind: the class.
        spec: its name was already looked at.
        noun: what messages call such a thing (``strategy``).
        where: begins every message (``--strategy: ``).

    Raises:
        UsageError: there is no such option, or it has a value that it cannot have.
    """
    known = {option.name: option for option in options_of(kind)}
    name = getattr(kind, "name", spec.name)
    values: dict[str, Any] = {}
    for key, text in spec.options.items():
        if key not in known:
            offered = ", ".join(sorted(known)) or "none"
            raise UsageError(
                f"{where}{noun} '{name}' has no option '{key}'",
                f"{did_you_mean(key, known)}it has: {offered}",
            )
        values[key] = _value(known[key], text, f"{where}{name}{{{key}={text}}}")
    return kind(**values)


def _value(option: Option, text: str, where: str) -> int | float | str:
    if option.allowed and text not in option.allowed:
        raise UsageError(f"{where}: unknown value", f"values: {', '.join(option.allowed)}")
    if isinstance(option.default, str):
        return text
    if isinstance(option.default, float):
        return _number(text, where)
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{where}: expected a whole number")
    return int(text)


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise UsageError(f"{where}: expected a number of at least 0")
    return value
