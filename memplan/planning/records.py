"""Frozen dataclasses as JSON, and back.

The hints of the fields say what is expected: texts, flags, whole numbers from 0 on, numbers,
tuples, mappings from names, records, and unions of these. A field whose default is None may be
missing, and is left out where it is None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from memplan.errors import PlanError
from memplan.units import printable

_SHOWN = 40
_HINT = "memplan rewrite MODEL --plan-out FILE writes one"
_SCALARS = {
    str: "a text",
    bool: "true or false",
    int: "a whole number from 0 on",
    float: "a number",
}
_T = TypeVar("_T")


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
    found: _T = _read(kind, data, "", file)
    return found


def wrong(file: str, place: str, expected: str, value: object) -> PlanError:
    """The error for an entry; ``place``: where it stands, empty: it is the whole."""
    shown = printable(json.dumps(value))
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    where = f"{printable(place)}: " if place else ""
    return PlanError(f"{file} is not a plan: {where}expected {expected}, got {shown}", _HINT)


def _read(hint: Any, value: Any, place: str, file: str) -> Any:
    """The value at ``place`` as its hint says."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        known = [each for each in args if each is not NoneType]
        text = str in known and isinstance(value, str)
        return _read(str if text else known[-1], value, place, file)
    if hint in _SCALARS:
        number = hint in (int, float) and type(value) in (int, hint)
        if not (number or type(value) is hint) or (hint is int and value < 0):
            raise wrong(file, place, _SCALARS[hint], value)
        return float(value) if hint is float else value
    if origin is tuple:
        if not isinstance(value, list):
            raise wrong(file, place, "a list", value)
        return tuple(_read(args[0], v, f"{place}[{k}]", file) for k, v in enumerate(value))
    if not isinstance(value, dict):
        raise wrong(file, place, "an object", value)
    below = f"{place}." if place else ""
    if origin is not None:  # a mapping
        return {name: _read(args[1], v, below + name, file) for name, v in value.items()}
    hints, found = get_type_hints(hint), {}
    for each in fields(hint):
        if each.name in value:
            found[each.name] = _read(hints[each.name], value[each.name], below + each.name, file)
        elif each.default is not None:
            raise PlanError(f"{file} is not a plan: {below}{each.name} is missing", _HINT)
    return hint(**found)
