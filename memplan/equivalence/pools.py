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

from memplan.equivalence.call import Call, attributes_of
from memplan.equivalence.forms import Applied
from memplan.equivalence.terms import ABSENT, Terms

_IMAGES = 4  # rank: batch, channels, rows, columns


def first_index(call: Call) -> int | None:
    """The first index of each plane is the first of its first row, plus what the rows skipped
    before it hold: with windows of one element it depends on that element alone."""
    terms, planes = call.terms, call.terms.value(call.read(1))
    cut = terms.made_by(call.read(0), 0)
    if planes is None or cut is None or not _takes(terms, cut, {2: (0, 1), 3: (0, 1)}):
        return None
    pool = terms.made_by(cut.reads[0], 1)
    if pool is None or (pool.domain, pool.op) != ("", "MaxPool") or not _is_unit_pool(pool):
        return None
    row = terms.made_by(pool.reads[0], 0)
    if row is None or not _takes(terms, row, {2: (0, 1)}):
        return None
    shape = terms.fact(row.reads[0]).shape
    if shape is None or len(shape) != _IMAGES:
        return None
    batch, channels, rows, columns = shape
    skipped = np.arange(batch * channels, dtype=np.int64) * ((rows - 1) * columns)
    if planes.shape != (batch, channels, 1, 1) or planes.tobytes() != skipped.tobytes():
        return None
    indices = terms.output(replace(pool, reads=(row.reads[0],)), 1)
    return terms.output(replace(cut, reads=(indices, *cut.reads[1:])), 0)


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
    return {axis % _IMAGES: (start, end) for axis, start, end in taken} == spans


def _ints(terms: Terms, term: int) -> Sequence[int] | None:
    value = None if term == ABSENT else terms.value(term)
    return None if value is None else [int(v) for v in value.reshape(-1)]


def _is_unit_pool(pool: Applied) -> bool:
    """Whether a pool of images looks at each element by itself, and counts along rows."""
    given = attributes_of(pool)
    windows = [*given.get("kernel_shape", [0]), *given.get("strides", [1])]
    return (
        len(given.get("kernel_shape", [])) == _IMAGES - 2
        and all(size == 1 for size in windows)
        and not any(given.get("pads", []))
        and not given.get("storage_order", 0)
    )
