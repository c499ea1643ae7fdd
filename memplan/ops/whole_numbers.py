"""Between which bounds the whole numbers lie that an operator makes, whatever a run is given.

Interval arithmetic (Moore, "Interval Analysis", 1966), operator by operator. Who asks walks the
graph: :mod:`memplan.passes.narrow` one of nodes, the proof
(:mod:`memplan.equivalence.range_proof`) one of terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from memplan.ops.book import MOVING

Bounds = tuple[int, int]
"""The least and the largest number."""

_T = onnx.TensorProto
_SIGNED: Mapping[int, int] = {_T.INT8: 8, _T.INT16: 16, _T.INT32: 32, _T.INT64: 64}
_UNSIGNED: Mapping[int, int] = {
    _T.BOOL: 1,
    _T.UINT8: 8,
    _T.UINT16: 16,
    _T.UINT32: 32,
    _T.UINT64: 64,
}
# Operators whose first output holds elements of some inputs: of the first, or from one on.
_HANDED_ON = MOVING | {":Cast"}
_ALL_FROM = {"Concat": 0, "Where": 1}


def type_bounds(dtype: int) -> Bounds | None:
    """The least and the largest number of an element type of whole numbers, or of bool."""
    if dtype in _SIGNED:
        return -(1 << (_SIGNED[dtype] - 1)), (1 << (_SIGNED[dtype] - 1)) - 1
    return (0, (1 << _UNSIGNED[dtype]) - 1) if dtype in _UNSIGNED else None


def within(inner: Bounds, outer: Bounds) -> bool:
    """Whether all numbers of the first lie in the second."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def within_type(found: Bounds | None, dtype: int) -> Bounds | None:
    """The bounds of numbers of that type: a result that does not fit it has wrapped."""
    room = type_bounds(dtype)
    return found if found is not None and room is not None and within(found, room) else room


@dataclass(frozen=True, slots=True)
class Applied:
    """A standard operator: its name and attributes, how many inputs it has, the shape of the first
    (None: not known), and the ``bounds`` of each by slot."""

    op: str
    attributes: Mapping[str, object]
    inputs: int
    shape: Sequence[int] | None
    bounds: Callable[[int], Bounds | None]


def made_bounds(made: Applied, slot: int) -> Bounds | None:
    """The bounds of an output before it wraps; None: nothing is known but its type."""
    if f":{made.op}" in _HANDED_ON and not slot:
        return made.bounds(0)
    if made.op in _ALL_FROM:
        return _hull(made.bounds(k) for k in range(_ALL_FROM[made.op], made.inputs))
    if made.op in _ARITHMETIC and made.inputs == 2:
        first, second = made.bounds(0), made.bounds(1)
        return None if first is None or second is None else _ARITHMETIC[made.op](first, second)
    if not made.shape or not math.prod(made.shape):
        return None
    if (made.op, slot) == ("MaxPool", 1):
        # Indices count all elements; on CUDA each coordinate may be -1.
        return -2 * math.prod(made.shape[2:]) - 1, math.prod(made.shape) - 1
    if (made.op, slot) not in (("ArgMax", 0), ("ArgMin", 0), ("TopK", 1)):
        return None
    axis = made.attributes.get("axis", -1 if made.op == "TopK" else 0)
    return (0, made.shape[axis] - 1) if isinstance(axis, int) else None


def _hull(every: Iterable[Bounds | None]) -> Bounds | None:
    found = list(every)
    known = [bounds for bounds in found if bounds is not None]
    if not known or len(known) < len(found):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _products(first: Bounds, second: Bounds) -> Bounds:
    every = [a * b for a in first for b in second]
    return min(every), max(every)


_ARITHMETIC: Mapping[str, Callable[[Bounds, Bounds], Bounds]] = {
    "Add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "Sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "Mul": _products,
    "Max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "Min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
}
