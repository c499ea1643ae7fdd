"""Indices of pools: what ONNX Runtime's kernels say of where a largest element was.

The index of a window of an image is that of its plane's first element, plus what depends on the
elements of the window, its place in the plane and the plane's number of columns alone. That holds
on the CPU (``pool_functors.h``) and on CUDA (``max_pool_with_index.cu``), where a window of which
no element is above its first less 1 (NaN, large numbers) gets an index outside the plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from memplan.equivalence.loop_call import Call, attributes_of
from memplan.equivalence.normal_forms import Applied
from memplan.equivalence.terms import ABSENT, Array, Terms
from memplan.ops.pool_indices import IMAGES, is_unit_pool, plane_begins


def first_index(call: Call) -> int | None:
    """The first index of each plane is the first of its first row, plus what the rows skipped
    before it hold: with windows of one element it depends on that element alone."""
    terms = call.terms
    if not _is_constant(terms, call.read(1)) or _is_constant(terms, call.read(0)):
        return None
    source, added = take_constants(terms, call.read(0), "Add", [call.read(1)])
    cut = terms.made_by(source, 0)
    if cut is None or not _takes(terms, cut, {2: (0, 1), 3: (0, 1)}):
        return None
    pool = terms.made_by(cut.reads[0], 1)
    if pool is None or (pool.domain, pool.op) != ("", "MaxPool"):
        return None
    if not is_unit_pool(attributes_of(pool)):
        return None
    row = terms.made_by(pool.reads[0], 0)
    if row is None or not _takes(terms, row, {2: (0, 1)}):
        return None
    shape = terms.fact(row.reads[0]).shape
    if shape is None or len(shape) != IMAGES:
        return None
    batch, channels, rows, columns = shape
    by_batch, by_channel = plane_begins(batch, channels, (rows - 1) * columns)
    if not _sum_is(added, by_batch + by_channel):
        return None
    indices = terms.output(replace(pool, reads=(row.reads[0],)), 1)
    return terms.output(replace(cut, reads=(indices, *cut.reads[1:])), 0)


def takes_first_index(terms: Terms, term: int, source: int) -> bool:
    """Whether a term is the index of the first element of each plane of ``source``."""
    cut = terms.made_by(term, 0)
    if cut is None or not _takes(terms, cut, {2: (0, 1), 3: (0, 1)}):
        return False
    pool = terms.made_by(cut.reads[0], 1)
    return (
        pool is not None
        and pool.op == "MaxPool"
        and is_unit_pool(attributes_of(pool))
        and (not pool.domain and pool.reads[0] == source)
    )


def _is_constant(terms: Terms, term: int) -> bool:
    return term != ABSENT and terms.value(term) is not None


def take_constants(
    terms: Terms, term: int, op: str, begun: Sequence[int]
) -> tuple[int, list[Array]]:
    """What constants are added to (``Add``) or taken from (``Sub``) one after the other, and those
    constants, with the terms in ``begun``."""
    constants = [value for t in begun if (value := terms.value(t)) is not None]
    while (made := terms.made_by(term, 0)) is not None and (made.domain, made.op) == ("", op):
        value = terms.value(made.reads[1]) if made.reads[1] != ABSENT else None
        if value is None:
            break
        constants.append(value)
        term = made.reads[0]
    return term, constants


def _sum_is(constants: Sequence[Array], expected: Array) -> bool:
    """Whether integers add up to an array of that shape and content."""
    if not all(value.dtype.kind == "i" for value in constants):
        return False
    total = sum((value.astype(object) for value in constants), np.zeros((), object))
    return total.shape == expected.shape and bool(np.all(total == expected))


def _takes(terms: Terms, applied: Applied, spans: dict[int, tuple[int, int]]) -> bool:
    """Whether a ``Slice`` of images takes these spans of these axes, and all of the others."""
    if (applied.domain, applied.op) != ("", "Slice") or len(applied.reads) != 4:
        return False
    starts, ends, axes = (_ints(terms, read) for read in applied.reads[1:])
    if starts is None or ends is None or axes is None:
        return False
    if not len(starts) == len(ends) == len(axes) == len(spans):
        return False
    taken = zip(axes, starts, ends, strict=True)
    return {axis % IMAGES: (start, end) for axis, start, end in taken} == spans


def _ints(terms: Terms, term: int) -> Sequence[int] | None:
    value = None if term == ABSENT else terms.value(term)
    return None if value is None else [int(v) for v in value.reshape(-1)]
