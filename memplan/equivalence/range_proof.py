"""Between which bounds whole numbers lie, whatever a run is given; and casts that lose none.

Interval arithmetic over terms (Moore, "Interval Analysis", 1966). An index of a pool is also known
relative to its window: on the CPU it lies there whatever the elements are, NaN included
(``pool_functors.h``; measured: tests/ort/test_free_bytes.py), so that little is left of it when the
window's first index is taken away. On CUDA it does not (:mod:`memplan.equivalence.pool_proof`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from memplan.equivalence.loop_call import Call, attributes_of
from memplan.equivalence.normal_forms import (
    Applied,
    Broadcast,
    Converted,
    Output,
    Part,
    Transposed,
    View,
)
from memplan.equivalence.pool_proof import plane_begins, take_constants, takes_first_index
from memplan.equivalence.terms import ABSENT, Array, Terms
from memplan.ops.book import MOVING

_T = onnx.TensorProto
_BITS: Mapping[int, int] = {_T.INT8: 8, _T.INT16: 16, _T.INT32: 32, _T.INT64: 64}
_UNSIGNED: Mapping[int, int] = {
    _T.BOOL: 1,
    _T.UINT8: 8,
    _T.UINT16: 16,
    _T.UINT32: 32,
    _T.UINT64: 64,
}
_DEEPEST = 32
_IMAGES = 4

Bounds = tuple[int, int]


def type_bounds(dtype: int) -> Bounds | None:
    """The least and the largest number of an element type of whole numbers, or of bool."""
    if dtype in _BITS:
        return -(1 << (_BITS[dtype] - 1)), (1 << (_BITS[dtype] - 1)) - 1
    return (0, (1 << _UNSIGNED[dtype]) - 1) if dtype in _UNSIGNED else None


def narrowed_and_back(call: Call) -> int | None:
    """A cast back from a narrower type of whole numbers that held them all."""
    terms, wanted = call.terms, call.attributes.get("to")
    form = terms.forms[call.read(0)]
    if not isinstance(form, Converted) or not isinstance(wanted, int):
        return None
    room, given = type_bounds(form.dtype), terms.fact(form.source).dtype
    if given != wanted or given not in _BITS or room is None or form.dtype == _T.BOOL:
        return None
    found = bounds_of(terms, form.source)
    return form.source if found is not None and _within(found, room) else None


def added_again(call: Call) -> int | None:
    """What a whole number gets back that was taken from it before; it may wrap in between."""
    terms, taken = call.terms, call.read(1)
    made = terms.made_by(call.read(0), 0)
    if made is None or (made.domain, made.op) != ("", "Sub") or taken == ABSENT:
        return None
    source, difference = made.reads[0], _without_sum(terms, taken)
    shape = terms.fact(source).shape
    if made.reads[1] != taken or terms.fact(source).dtype not in _BITS:
        return None
    if shape is None or difference is None or not _fits(difference.shape, shape):
        return None
    return source


def _fits(part: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether a shape is broadcast to another without widening that."""
    pairs = zip(reversed(part), reversed(whole), strict=False)
    return len(part) <= len(whole) and all(p in (1, w) for p, w in pairs)


def bounds_of(terms: Terms, term: int, depth: int = 0) -> Bounds | None:
    """Bounds of the elements of a term of whole numbers, or None."""
    found = _bounds(terms, term, depth) if term != ABSENT and depth < _DEEPEST else None
    room = type_bounds(terms.fact(term).dtype) if term != ABSENT else None
    # A result that does not fit its type has wrapped.
    return found if found is not None and room is not None and _within(found, room) else room


def _within(inner: Bounds, outer: Bounds) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _bounds(terms: Terms, term: int, depth: int) -> Bounds | None:
    value, form = terms.value(term), terms.forms[term]
    if value is not None:
        whole = value.size and value.dtype.kind in "biu"
        return (int(value.min()), int(value.max())) if whole else None
    if isinstance(form, Broadcast | Part | View | Transposed):
        return bounds_of(terms, form.root, depth + 1)
    if isinstance(form, Converted):
        whole = type_bounds(terms.fact(form.source).dtype) is not None
        return bounds_of(terms, form.source, depth + 1) if whole else None
    if not isinstance(form, Output) or form.applied.domain or form.applied.bodies:
        return None
    made = form.applied
    if made.op == "MaxPool" and form.slot == 1:
        return _index_bounds(terms, made)
    if made.op == "Sub" and (relative := _relative(terms, made)) is not None:
        return relative
    if made.key in MOVING and form.slot == 0:
        return _all_of(terms, made.reads[:1], depth)
    if made.key == ":Concat":
        return _all_of(terms, made.reads, depth)
    if made.op in _ARITHMETIC and len(made.reads) == 2:
        first, second = (bounds_of(terms, read, depth + 1) for read in made.reads)
        return None if first is None or second is None else _ARITHMETIC[made.op](first, second)
    if made.op == "Where":
        return _all_of(terms, made.reads[1:], depth)
    return _place_bounds(terms, made, form.slot)


def _all_of(terms: Terms, reads: Sequence[int], depth: int) -> Bounds | None:
    found = [bounds_of(terms, read, depth + 1) for read in reads]
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


def _place_bounds(terms: Terms, made: Applied, slot: int) -> Bounds | None:
    """Places along an axis: of a largest element, or of the k largest."""
    shape = terms.fact(made.reads[0]).shape if made.reads and made.reads[0] != ABSENT else None
    if not shape or (made.op, slot) not in (("ArgMax", 0), ("ArgMin", 0), ("TopK", 1)):
        return None
    axis = attributes_of(made).get("axis", -1 if made.op == "TopK" else 0)
    return 0, shape[axis] - 1


def _index_bounds(terms: Terms, pool: Applied) -> Bounds | None:
    """Indices count all elements; on CUDA each coordinate may be -1."""
    shape = terms.fact(pool.reads[0]).shape
    if shape is None or not math.prod(shape):
        return None
    return -2 * math.prod(shape[2:]) - 1, math.prod(shape) - 1


def _relative(terms: Terms, made: Applied) -> Bounds | None:
    """The index of a pool of images less that of its window's first place."""
    window = _without_sum(terms, made.reads[1])
    if terms.provider != "cpu" or window is None:
        return None
    source, begun = made.reads[0], None
    outer = terms.made_by(source, 0)
    if outer is not None and (outer.domain, outer.op) == ("", "Sub"):
        source, begun = outer.reads
    form = terms.forms[source]
    indices = form.source if isinstance(form, Converted) else source
    pool = terms.made_by(indices, 1)
    if pool is None or (pool.domain, pool.op) != ("", "MaxPool"):
        return None
    found = windows_of(terms, pool)
    if found is None or begun is None:
        return None
    first, reach, shape = found
    batch, channels, rows, columns = shape
    planes = _without_sum(terms, begun)
    own = planes is not None and _equal(planes, plane_begins(batch, channels, rows * columns))
    if not own and not takes_first_index(terms, begun, pool.reads[0]):
        return None
    return (0, reach) if _equal(window, first) else None


def _equal(first: Array, second: Array) -> bool:
    return first.shape == second.shape and bool(np.all(first == second))


def _without_sum(terms: Terms, term: int) -> Array | None:
    """The content of a constant, or of a sum of constants."""
    rest, constants = take_constants(terms, term, "Add", [])
    value = terms.value(rest) if rest != ABSENT else None
    if value is None or any(v.dtype.kind != "i" for v in (value, *constants)):
        return None
    total = value.astype(np.int64)
    for constant in constants:
        total = total + constant.astype(np.int64)
    return total


def windows_of(terms: Terms, pool: Applied) -> tuple[Array, int, tuple[int, ...]] | None:
    """The first place of each window of a pool of images within its plane, how far its last place
    is from there, and the shape of the images; None where that is not known."""
    shape, given = terms.fact(pool.reads[0]).shape, attributes_of(pool)
    kernel = [int(k) for k in given.get("kernel_shape", [])]
    if shape is None or len(shape) != _IMAGES or len(kernel) != _IMAGES - 2:
        return None
    if given.get("storage_order", 0) or given.get("auto_pad", b"NOTSET") not in (
        b"NOTSET",
        b"VALID",
    ):
        return None
    steps, pads = given.get("strides", [1, 1]), given.get("pads", [0, 0, 0, 0])
    apart = given.get("dilations", [1, 1])
    rows, columns = (
        np.arange(_window_count(shape[2 + k], kernel[k], steps[k], pads[k] + pads[k + 2], apart[k]))
        * steps[k]
        - pads[k]
        for k in range(2)
    )
    first = rows.reshape(1, 1, -1, 1) * shape[3] + columns.reshape(1, 1, 1, -1)
    reach = (kernel[0] - 1) * apart[0] * shape[3] + (kernel[1] - 1) * apart[1]
    return first, reach, shape


def _window_count(size: int, kernel: int, step: int, padding: int, apart: int) -> int:
    """How many windows there are along an axis (ONNX, MaxPool, rounded down)."""
    return (size + padding - apart * (kernel - 1) - 1) // step + 1
