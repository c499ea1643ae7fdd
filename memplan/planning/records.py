"""Frozen dataclasses as JSON, and back from files that anybody may have edited.

The hints of the fields say what is expected: texts, flags, whole numbers from 0 on, finite numbers,
tuples, mappings from names, records and unions of these, :data:`typing.Annotated` with what a value
must be besides. A field whose default is None may be missing, and is left out where it is None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from memplan.errors import PlanError
from memplan.units import printable

_MOST = 2**63 - 1
_SHOWN = 40
_HINT = "memplan rewrite MODEL --plan-out FILE writes one"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class OneOf:
    """Beside a hint: the texts that are known."""

    known: tuple[str, ...]

    def holds(self, value: Any) -> bool:
        """Whether a value is one of them."""
        return value in self.known

    def __str__(self) -> str:
        return f"one of {', '.join(self.known)}"


@dataclass(frozen=True, slots=True)
class Least:
    """Beside a hint: the smallest number."""

    number: float

    def holds(self, value: Any) -> bool:
        """Whether a value is at least that."""
        return bool(value >= self.number)

    def __str__(self) -> str:
        return f"a number from {self.number:g} on"


def record_json(record: Any) -> dict[str, object]:
    """A record's JSON object: its fields by name, in their order; mappings are sorted."""
    every = ((each, getattr(record, each.name)) for each in fields(record))
    return {each.name: _json(v) for each, v in every if v is not None or each.default is not None}


def _json(value: Any) -> object:
    if is_dataclass(value):
        return record_json(value)
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    return [_json(each) for each in value] if isinstance(value, tuple) else value


def read_record(kind: type[_T], data: object, file: str) -> _T:
    """The record in a JSON object.

    Args:
        kind: a dataclass.
        data: what stands in the file.
        file: what errors call the file.

    Raises:
        PlanError: an entry is missing, or is of another kind; the message says which.
    """
    found: _T = _record(kind, data, "", file)
    return found


def wrong(file: str, place: str, expected: str, value: object) -> PlanError:
    """The error for an entry; ``place``: where it stands, empty: it is the whole."""
    if isinstance(value, dict | list):
        shown = "an object" if isinstance(value, dict) else "a list"
    else:
        shown = printable(json.dumps(value))
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    where = f"{printable(place)}: " if place else ""
    return PlanError(f"{file} is not a plan: {where}expected {expected}, got {shown}", _HINT)


def _record(kind: Any, value: object, place: str, file: str) -> Any:
    if not isinstance(value, dict):
        raise wrong(file, place, "an object", value)
    found: dict[str, Any] = {}
    for name, (hint, optional) in _fields(kind).items():
        where = f"{place}.{name}" if place else name
        if name in value:
            found[name] = _read(hint, value[name], where, file)
        elif not optional:
            raise PlanError(f"{file} is not a plan: {printable(where)} is missing", _HINT)
    return kind(**found)


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Hint of every field, and whether it may be missing."""
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: (hints[each.name], each.default is None) for each in fields(kind)}


def _read(hint: Any, value: Any, place: str, file: str) -> Any:
    """The value at ``place`` as its hint says."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        found = _read(args[0], value, place, file)
        for each in args[1:]:
            if not each.holds(found):
                raise wrong(file, place, str(each), value)
        return found
    if origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        known = [each for each in args if each is not NoneType]
        text = str in known and isinstance(value, str)
        return _read(str if text else known[-1], value, place, file)
    if origin is tuple:
        if not isinstance(value, list):
            raise wrong(file, place, "a list", value)
        return tuple(_read(args[0], v, f"{place}[{k}]", file) for k, v in enumerate(value))
    if origin is not None:  # a mapping
        if not isinstance(value, dict):
            raise wrong(file, place, "an object", value)
        return {name: _read(args[1], v, f"{place}.{name}", file) for name, v in value.items()}
    if is_dataclass(hint):
        return _record(hint, value, place, file)
    expected, reader = _SCALARS[hint]
    found = reader(value)
    if found is None:
        raise wrong(file, place, expected, value)
    return found


def _whole(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
    return value if whole else None


def _number(value: Any) -> float | None:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST:
        return float(value)
    return value if isinstance(value, float) and math.isfinite(value) else None


_SCALARS: Mapping[Any, tuple[str, Callable[[Any], Any]]] = {
    str: ("a text", lambda value: value if isinstance(value, str) else None),
    bool: ("true or false", lambda value: value if isinstance(value, bool) else None),
    int: ("a whole number from 0 on", _whole),
    float: ("a finite number", _number),
}
