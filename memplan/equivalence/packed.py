"""Masks that were packed eight elements to a byte, and what they unpack to.

Elements of a bool are 0 or 1, so eight of them, each times another power of two, add up to a byte
without a carry; bit k of the byte is then the element that was weighed by 2^k, for any mask. Times
2^(7-k) the byte overflows, and what is left has that element as its top bit: 128 or more, or a
quotient of 1 by 128.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from memplan.equivalence.loop_call import Call, attributes_of
from memplan.equivalence.normal_forms import Applied, Converted, Output, View
from memplan.equivalence.terms import ABSENT, Terms

_T = onnx.TensorProto
_BITS, _TOP = 8, 128
_DEEPEST = 16


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A mask with its elements in ``shape``, as a view of the term ``source``."""

    source: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of bytes: each the sum of some of the eight rows of ``source``, a mask of ``columns``,
    by row: the power of two that it is weighed by."""

    source: int
    columns: int
    rows: tuple[Mapping[int, int], ...]


def unpacked(call: Call) -> Unpacked | None:
    """What ``byte >= 128`` or ``Cast(byte / 128)`` gives of a packed mask times weights."""
    terms, term = call.terms, call.read(0)
    if call.op == "Cast":
        divided = _made(terms, term, "Div")
        if call.attributes.get("to") != _T.BOOL or divided is None:
            return None
        term, top = divided.reads
    else:
        top = call.read(1)
    if not _is_byte(terms, top, _TOP):
        return None
    form = terms.forms[term] if term != ABSENT else None
    root = form.root if isinstance(form, View) else term
    shifted = _made(terms, root, "Mul")
    if shifted is None:
        return None
    found, weights = _rows(terms, shifted.reads[0], 0), terms.value(shifted.reads[1])
    if found is None or len(found.rows) != 1 or weights is None:
        return None
    if weights.dtype != np.uint8 or weights.shape != (_BITS, 1):
        return None
    # Each row of the mask has a bit of its own (a sum below 256 of eight powers of two), which the
    # weight of that row moves to the top.
    bits = {row: int(weight) for row, weight in enumerate(weights[:, 0])}
    if sorted(bits.values()) != [1 << bit for bit in range(_BITS)]:
        return None
    if any(found.rows[0].get(row, 0) * bits[row] != _TOP for row in bits):
        return None
    shape = form.shape if isinstance(form, View) else (_BITS, found.columns)
    return None if -1 in shape else Unpacked(found.source, shape)


def _rows(terms: Terms, term: int, depth: int) -> _Rows | None:
    """What a term of bytes is a sum of, or None."""
    if term == ABSENT or depth > _DEEPEST:
        return None
    form = terms.forms[term]
    if isinstance(form, Converted):
        return _first(terms, form)
    if not isinstance(form, Output) or form.applied.domain:
        return None
    made = form.applied
    if made.op == "Split":
        return _part(terms, made, form.slot, depth)
    if form.slot or len(made.reads) != 2:
        return None
    if made.op == "Mul":
        return _weighed(terms, made, depth)
    return _sum(terms, made, depth) if made.op == "Add" else None


def _first(terms: Terms, form: Converted) -> _Rows | None:
    """A mask of eight rows, as bytes."""
    fact = terms.fact(form.source)
    if form.dtype != _T.UINT8 or fact.dtype != _T.BOOL or fact.shape is None:
        return None
    if len(fact.shape) != 2 or fact.shape[0] != _BITS:
        return None
    return _Rows(form.source, fact.shape[1], tuple({row: 1} for row in range(_BITS)))


def _part(terms: Terms, made: Applied, slot: int, depth: int) -> _Rows | None:
    """Some of the rows."""
    whole = _rows(terms, made.reads[0], depth + 1)
    sizes = terms.value(made.reads[1]) if len(made.reads) > 1 else None
    if whole is None or sizes is None or attributes_of(made).get("axis", 0):
        return None
    counts = [int(size) for size in sizes.reshape(-1)]
    if sum(counts) != len(whole.rows) or min(counts, default=0) < 0 or slot >= len(counts):
        return None
    start = sum(counts[:slot])
    return _Rows(whole.source, whole.columns, whole.rows[start : start + counts[slot]])


def _weighed(terms: Terms, made: Applied, depth: int) -> _Rows | None:
    """All rows times a power of two."""
    found, weight = _rows(terms, made.reads[0], depth + 1), terms.value(made.reads[1])
    if found is None or weight is None or weight.shape != () or weight.dtype != np.uint8:
        return None
    rows = tuple({row: w * int(weight) for row, w in each.items()} for each in found.rows)
    return _Rows(found.source, found.columns, rows) if _hold(rows) else None


def _sum(terms: Terms, made: Applied, depth: int) -> _Rows | None:
    """Row by row."""
    first, second = (_rows(terms, read, depth + 1) for read in made.reads)
    if first is None or second is None:
        return None
    if (first.source, len(first.rows)) != (second.source, len(second.rows)):
        return None
    pairs = tuple(zip(first.rows, second.rows, strict=True))
    if any(a.keys() & b.keys() for a, b in pairs):
        return None
    rows = tuple({**a, **b} for a, b in pairs)
    return _Rows(first.source, first.columns, rows) if _hold(rows) else None


def _hold(rows: tuple[Mapping[int, int], ...]) -> bool:
    """Whether a byte holds the sums, whatever the elements are."""
    return all(sum(each.values()) < 1 << _BITS for each in rows)


def _made(terms: Terms, term: int, op: str) -> Applied | None:
    made = terms.made_by(term, 0)
    return made if made is not None and (made.domain, made.op) == ("", op) else None


def _is_byte(terms: Terms, term: int, value: int) -> bool:
    found = terms.value(term) if term != ABSENT else None
    if found is None or found.dtype != np.uint8 or found.shape != ():
        return False
    return int(found) == value
