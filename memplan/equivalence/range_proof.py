"""Between which bounds whole numbers lie, whatever a run is given; and casts that lose none.

Interval arithmetic over terms, by the facts of :mod:`memplan.ops.whole_numbers`. An index of a pool
is also known relative to its window (:mod:`memplan.ops.pool_indices`): on the CPU little is left of
it when the window's first index is taken away. On CUDA that does not hold
(:mod:`memplan.equivalence.pool_proof`).
"""

from __future__ import annotations

from collections.abc import Sequence

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
from memplan.equivalence.pool_proof import take_constants, takes_first_index
from memplan.equivalence.terms import ABSENT, Array, Terms
from memplan.ops import whole_numbers
from memplan.ops.pool_indices import plane_begins, window_places
from memplan.ops.whole_numbers import Bounds, made_bounds, type_bounds, within, within_type

_T = onnx.TensorProto
_SIGNED = (_T.INT8, _T.INT16, _T.INT32, _T.INT64)
_DEEPEST = 32


def narrowed_and_back(call: Call) -> int | None:
    """A cast back from a narrower type of whole numbers that held them all."""
    terms, wanted = call.terms, call.attributes.get("to")
    form = terms.forms[call.read(0)]
    if not isinstance(form, Converted) or not isinstance(wanted, int):
        return None
    room, given = type_bounds(form.dtype), terms.fact(form.source).dtype
    if given != wanted or given not in _SIGNED or room is None or form.dtype == _T.BOOL:
        return None
    found = bounds_of(terms, form.source)
    return form.source if found is not None and within(found, room) else None


def added_again(call: Call) -> int | None:
    """What a whole number gets back that was taken from it before; it may wrap in between."""
    terms, taken = call.terms, call.read(1)
    made = terms.made_by(call.read(0), 0)
    if made is None or (made.domain, made.op) != ("", "Sub") or taken == ABSENT:
        return None
    source, difference = made.reads[0], _without_sum(terms, taken)
    shape = terms.fact(source).shape
    if made.reads[1] != taken or terms.fact(source).dtype not in _SIGNED:
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
    if term == ABSENT:
        return None
    found = _bounds(terms, term, depth) if depth < _DEEPEST else None
    return within_type(found, terms.fact(term).dtype)


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
    if made.op == "Sub" and (relative := _relative(terms, made)) is not None:
        return relative
    reads = made.reads
    shape = terms.fact(reads[0]).shape if reads and reads[0] != ABSENT else None
    applied = whole_numbers.Applied(
        made.op,
        attributes_of(made),
        len(reads),
        shape,
        lambda slot: bounds_of(terms, reads[slot], depth + 1),
    )
    return made_bounds(applied, form.slot)


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
    shape = terms.fact(pool.reads[0]).shape
    found = None if shape is None else window_places(shape, attributes_of(pool))
    if shape is None or found is None or begun is None:
        return None
    rows, columns, reach = found
    planes = _without_sum(terms, begun)
    by_batch, by_channel = plane_begins(shape[0], shape[1], shape[2] * shape[3])
    own = planes is not None and _equal(planes, by_batch + by_channel)
    if not own and not takes_first_index(terms, begun, pool.reads[0]):
        return None
    return (0, reach) if _equal(window, rows + columns) else None


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
