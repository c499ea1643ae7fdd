"""Scans: what a step of one loop reads of another, in the terms of that other's step.

A Scan is known by its *core*: how many steps it takes, its initial states and how a step changes
them. A stacked output is the core and what a step hands out; so a forward Scan that stores less is
the same Scan. What a backward step reads of a stacked tensor is that tensor's term with the symbols
of the forward step replaced: its state there, and its slices of what it reads itself. A backward
step that makes the tensor again from those has the same term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import onnx
from onnx import helper

from memplan.equivalence.loop_call import Call
from memplan.equivalence.normal_forms import (
    Applied,
    Converted,
    Core,
    Element,
    Form,
    Output,
    Stack,
    State,
    StateAt,
    There,
    Transposed,
    View,
)
from memplan.equivalence.rewrite_rules import same_as, view, view_root
from memplan.equivalence.terms import ABSENT, UNKNOWN, Terms, plain_attributes
from memplan.proto.loop_node import body_of, loop_layout
from memplan.shapes.fold import whole_numbers

_FLOAT = onnx.TensorProto.FLOAT
_END = 2**31 - 1
_ADDED_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class ScanCall:
    """A Scan node as it is read: terms of its initial states and of its sequences, with an axis and
    a direction for each; axes and directions of what it stacks."""

    states: tuple[int, ...]
    sequences: tuple[tuple[int, int, bool], ...]
    stacked: tuple[tuple[int, bool], ...]
    steps: int | None


def read_scan(node: onnx.NodeProto, reads: tuple[int, ...], terms: Terms) -> ScanCall:
    """Read a Scan of opset 9 or newer."""
    layout = loop_layout("Scan", plain_attributes(node), len(reads))
    states = layout.states
    sequences = tuple(
        (term, layout.input_axis(slot), layout.input_reversed(slot))
        for slot, term in enumerate(reads[states:])
    )
    stacked = tuple(
        (layout.output_axis(slot), layout.output_reversed(slot))
        for slot in range(len(body_of(node).output) - states)
    )
    shapes = ((terms.fact(term).shape, axis) for term, axis, _ in sequences)
    steps = next((shape[axis] for shape, axis in shapes if shape is not None), None)
    return ScanCall(reads[:states], sequences, stacked, steps)


def added_at_once(rows: int, inner: int, columns: int) -> bool:
    """Whether a float32 product of two matrices has the same bits however it is computed.

    ONNX Runtime's CPU kernels add up to 128 terms in one go, packed or not. Of more, how many they
    add at a time depends on that and on the columns that a thread has. A single row or column has
    another kernel (``sgemm.cpp``; measured: tests/ort/test_same_kernels.py).
    """
    return min(rows, columns) > 1 and 0 < inner <= _ADDED_AT_ONCE


@dataclass(frozen=True, slots=True)
class Steps:
    """Elements of sequences in the steps of a Scan at ``depth``, which takes ``steps`` of them."""

    terms: Terms
    opset: int
    depth: int
    steps: int | None

    def element(self, sequence: int, axis: int, mirrored: bool) -> int:
        """The term of what a step reads of a sequence."""
        form = self.terms.forms[sequence]
        if isinstance(form, Stack) and form.axis == axis and self._as_long(form.core):
            return self._moved(form.inner, form.core, mirrored != form.mirrored)
        found = self._shifted(sequence, axis, mirrored)
        if found is not None:
            return found
        row = self._product(sequence, axis, mirrored)
        if row is not None and self._adds_alike(sequence, row):
            return self.terms.output(row, 0)
        free = self.terms.free[sequence] | 1 << self.depth
        element = self.terms.of(Element(sequence, axis, mirrored, self.depth), UNKNOWN, free)
        if row is not None:
            self.terms.rows.setdefault(replace(row, packed=()), (element, sequence))
        return element

    def _core(self, core: int) -> Core:
        form = self.terms.forms[core]
        assert isinstance(form, Core)
        return form

    def _as_long(self, core: int) -> bool:
        return self.steps is not None and self._core(core).steps == self.steps

    def _state_at(self, core: int, place: int, mirrored: bool) -> int:
        free = self.terms.free[core] | 1 << self.depth
        return self.terms.of(StateAt(core, place, mirrored, self.depth), UNKNOWN, free)

    def _moved(self, inner: int, core: int, mirrored: bool) -> int:
        """A term of a step of the Scan ``core``, in the symbols of this one's step."""
        depth = self._core(core).depth

        def symbol(form: Form, free: int) -> int | None:
            if isinstance(form, State) and form.depth == depth:
                return self._state_at(core, form.place, mirrored)
            if isinstance(form, Element) and form.depth == depth:
                return self.element(form.sequence, form.axis, form.mirrored != mirrored)
            if isinstance(form, StateAt | There) and form.depth == depth:
                seen = replace(form, mirrored=form.mirrored != mirrored, depth=self.depth)
                return self.terms.of(seen, UNKNOWN, free & ~(1 << depth) | 1 << self.depth)
            return None

        hidden = There(inner, core, mirrored, self.depth)
        return _Substitution(self.terms, self.opset, depth, symbol, hidden).of(inner)

    def _shifted(self, sequence: int, axis: int, mirrored: bool) -> int | None:
        """Initial state and all later ones but the last: the states as the steps find them."""
        joined = self.terms.made_by(sequence, 0)
        if joined is None or (joined.domain, joined.op) != ("", "Concat") or len(joined.reads) != 2:
            return None
        if joined.attributes[:-1] != (_attribute("axis", axis),):
            return None
        for backwards in (False, True):
            first, rest = joined.reads[:: -1 if backwards else 1]
            stack = self._all_but_last(rest, axis, backwards)
            if stack is None or not self._as_long(stack.core):
                continue
            core = self._core(stack.core)
            for place, (start, after) in enumerate(zip(core.initial, core.updates, strict=True)):
                if after == stack.inner and self._as_row(first, start, axis):
                    return self._state_at(stack.core, place, mirrored != backwards)
        return None

    def _all_but_last(self, term: int, axis: int, backwards: bool) -> Stack | None:
        """What is stacked, if the term is that without the step that ran last."""
        cut = self.terms.made_by(term, 0)
        if cut is None or (cut.domain, cut.op) != ("", "Slice") or len(cut.reads) != 4:
            return None
        stack = self.terms.forms[cut.reads[0]]
        starts, ends, axes = (whole_numbers(self.terms.value(read)) for read in cut.reads[1:])
        if not isinstance(stack, Stack) or (stack.axis, stack.mirrored) != (axis, backwards):
            return None
        if axes != [axis] or not starts or not ends:
            return None
        kept = (starts == [1] and ends[0] >= _END) if backwards else (starts, ends) == ([0], [-1])
        return stack if kept else None

    def _as_row(self, term: int, start: int, axis: int) -> bool:
        """Whether a term is ``start`` with one more dimension of size 1 at ``axis``."""
        terms = self.terms
        shape = terms.fact(start).shape
        if shape is not None:
            return term == view(terms, start, [*shape[:axis], 1, *shape[axis:]])
        made = terms.made_by(term, 0)
        return (
            made is not None
            and (made.domain, made.op) == ("", "Unsqueeze")
            and made.reads[0] == start
            and (len(made.reads) == 2 and whole_numbers(terms.value(made.reads[1])) == [axis])
        )

    def _product(self, sequence: int, axis: int, mirrored: bool) -> Applied | None:
        """A slice of a product with a matrix is the product of the slice, up to rounding. A single
        row is left alone."""
        terms = self.terms
        fact = terms.fact(sequence)
        if axis or fact.dtype != _FLOAT or fact.shape is None or len(fact.shape) != 3:
            return None
        if fact.shape[1] < 2:
            return None
        source, product = sequence, terms.made_by(sequence, 0)
        if product is not None and (product.domain, product.op) == ("", "MatMul"):
            source = product.reads[0]
        elif isinstance(form := terms.forms[sequence], View):
            product = terms.made_by(form.root, 0)
            if product is None or (product.domain, product.op) != ("", "Gemm"):
                return None
            if _attribute("transA", 1) in product.attributes:
                return None
            source = self._unflattened(product.reads[0], fact.shape)
        else:
            return None
        ranks = [len(terms.fact(term).shape or ()) for term in product.reads[1:]]
        given = terms.fact(source).shape
        if ranks[:1] != [2] or ranks[1:] not in ([], [1]) or given is None or len(given) != 3:
            return None
        if given[:2] != fact.shape[:2]:
            return None
        reads = (self.element(source, 0, mirrored), *product.reads[1:])
        return replace(product, reads=reads, free=product.free | 1 << self.depth)

    def _adds_alike(self, sequence: int, row: Applied) -> bool:
        """Whether rows of a product have the same bits whatever rows stand beside them."""
        rows, columns = (self.terms.fact(sequence).shape or (0, 0))[-2:]
        inner = (self.terms.fact(row.reads[1]).elements or 0) // max(columns, 1)
        return self.terms.provider == "cpu" and added_at_once(rows, inner, columns)

    def _unflattened(self, term: int, shape: tuple[int, ...]) -> int:
        """The sequence that a matrix of all its rows is a view of."""
        root = view_root(self.terms, term)
        columns = (self.terms.fact(term).shape or (0, 0))[-1]
        return view(self.terms, root, [*shape[:2], columns])


def _attribute(name: str, value: int) -> tuple[str, str]:
    """An attribute as it stands among those of an operator."""
    content: bytes = helper.make_attribute(name, value).SerializeToString(deterministic=True)
    return (name, content.hex())


@dataclass(frozen=True, slots=True)
class _Substitution:
    """Replaces the symbols of a step in terms. ``hidden``: where what cannot be seen through is."""

    terms: Terms
    opset: int
    depth: int
    symbol: Callable[[Form, int], int | None]
    hidden: There

    def of(self, term: int) -> int:
        """``term`` with its symbols replaced; terms without any stay."""
        if term == ABSENT or not self.terms.free[term] >> self.depth & 1:
            return term
        terms, form = self.terms, self.terms.forms[term]
        found = self.symbol(form, self.terms.free[term])
        if found is not None:
            return found
        if isinstance(form, View):
            return view(terms, self.of(form.root), form.shape)
        if isinstance(form, Converted | Transposed):
            return self._again(form)
        if isinstance(form, Output) and not (form.applied.bodies or form.applied.occurrence):
            reads = tuple(self.of(read) for read in form.applied.reads)
            free = 0
            for read in reads:
                free |= terms.free[read] if read != ABSENT else 0
            return terms.output(replace(form.applied, reads=reads, free=free), form.slot)
        # A draw of random numbers, an inner loop: the value that it had there, nothing more.
        free = terms.free[term] & ~(1 << self.depth)
        free |= terms.free[self.hidden.core] | 1 << self.hidden.depth
        return terms.of(replace(self.hidden, inner=term), UNKNOWN, free)

    def _again(self, form: Converted | Transposed) -> int:
        """A cast or transpose of what its source becomes, by the rule for a node of that kind."""
        given: Mapping[str, object]
        if isinstance(form, Converted):
            op, source, given = "Cast", form.source, {"to": form.dtype}
        else:
            op, source, given = "Transpose", form.root, {"perm": form.perm}
        found = same_as(Call(op, (self.of(source),), given, self.opset, self.terms))
        assert found is not None
        return found
