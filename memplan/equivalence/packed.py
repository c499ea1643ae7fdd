"""Masks that were packed eight elements to a byte, and what they unpack to.

A packed mask is eight rows of it in one row of bytes, and what comes back is a function of a byte
alone, the same in every column. So the operators between are run on a mask of 256 columns that has
every choice of eight elements once: where that comes back, every mask does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx

from memplan.equivalence.loop_call import Call, attributes_of
from memplan.equivalence.normal_forms import Applied, Converted, Output, View
from memplan.equivalence.terms import ABSENT, Terms
from memplan.shapes.fold import whole_numbers

_T = onnx.TensorProto
_BITS, _TOP = 8, 128
_DEEPEST = 16
Bytes = npt.NDArray[np.uint8]

_EVERY_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[None], axis=0)
"""Eight rows of 0 and 1: every choice of them is a column."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A mask with its elements in ``shape``, as a view of the term ``source``."""

    source: int
    shape: tuple[int, ...]


def unpacked(call: Call) -> Unpacked | None:
    """What ``byte >= 128`` or ``Cast(byte / 128)`` gives of a packed mask times weights."""
    terms, term, top = call.terms, call.read(0), call.read(1)
    if call.op == "Cast":
        divided = terms.made_by(term, 0)
        if call.attributes.get("to") != _T.BOOL or divided is None or divided.key != ":Div":
            return None
        term, top = divided.reads
    bound, form = terms.values.get(top), terms.forms[term] if term != ABSENT else None
    if bound is None or bound.dtype != np.uint8 or bound.shape or int(bound) != _TOP:
        return None
    columns = _Columns(terms)
    found = columns.of(form.root if isinstance(form, View) else term)
    if found is None or not np.array_equal(found >= _TOP, _EVERY_BYTE):
        return None
    shape = form.shape if isinstance(form, View) else terms.fact(columns.source).shape
    return None if shape is None or -1 in shape else Unpacked(columns.source, shape)


@dataclass(slots=True)
class _Columns:
    """Terms of bytes as they come of the mask ``source``, a matrix of eight rows, if its columns
    are those of ``_EVERY_BYTE``."""

    terms: Terms
    source: int = ABSENT
    known: dict[int, Bytes | None] = field(default_factory=dict)

    def of(self, term: int, depth: int = 0) -> Bytes | None:
        """The bytes of a term; None where that is not made of one mask, column by column."""
        if term == ABSENT or depth > _DEEPEST:
            return None
        if term not in self.known:
            self.known[term] = self._made(term, depth + 1)
        return self.known[term]

    def _made(self, term: int, depth: int) -> Bytes | None:
        form, value = self.terms.forms[term], self.terms.value(term)
        if value is not None:
            # One for all columns.
            alike = value.dtype == np.uint8 and value.shape in ((), (_BITS, 1))
            return value.astype(np.uint8) if alike else None
        if isinstance(form, Converted):
            return self._mask(form)
        if not isinstance(form, Output):
            return None
        made, slot = form.applied, form.slot
        if made.key == ":Split":
            return self._rows(made, slot, depth)
        if made.key not in (":Mul", ":Add") or slot:
            return None
        first, second = (self.of(read, depth) for read in made.reads)
        if first is None or second is None:
            return None
        return np.multiply(first, second) if made.key == ":Mul" else np.add(first, second)

    def _mask(self, form: Converted) -> Bytes | None:
        """The mask itself, of eight rows, as bytes."""
        fact = self.terms.fact(form.source)
        if form.dtype != _T.UINT8 or fact.dtype != _T.BOOL or fact.shape is None:
            return None
        if len(fact.shape) != 2 or fact.shape[0] != _BITS or form.source != self.source != ABSENT:
            return None
        self.source = form.source
        return _EVERY_BYTE

    def _rows(self, made: Applied, slot: int, depth: int) -> Bytes | None:
        """Some of the rows."""
        whole = self.of(made.reads[0], depth)
        counts = whole_numbers(self.terms.value((*made.reads, ABSENT)[1]))
        if whole is None or counts is None or not whole.ndim or attributes_of(made).get("axis", 0):
            return None
        if sum(counts) != len(whole) or min(counts, default=0) < 0 or slot >= len(counts):
            return None
        return whole[sum(counts[:slot]) : sum(counts[: slot + 1])]
