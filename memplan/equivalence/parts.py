"""Chunks: a part of a whole, and a sum of parts, followed up to rounding.

A new Slice is a *part*: a range of a term along an axis. An operator that computes every range of
its result from the same range of what it reads, applied to parts, gives that part of what it gives
for the wholes. Parts that are joined without a gap are the whole. A product along parts of its
inner axes, or a plain sum over a part, is a *summand*; summands that are added without a gap are
the whole, too.

In exact arithmetic all of that holds for every value. In floating point, a kernel may add in
another order for other sizes; sums of summands do. So wholes that are found here are equal up to
rounding, and :attr:`Terms.rounded` names them. Which operators compute ranges from ranges stands
in the operator book (:mod:`memplan.ops.book`), whose every line is tried on the runtime; how ranges
are followed shares nothing with the pass that chunks a graph (:mod:`memplan.passes.chunk`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from memplan.equivalence.loop_call import Call
from memplan.equivalence.normal_forms import (
    Applied,
    Broadcast,
    Part,
    Product,
    Summed,
    Transposed,
    View,
)
from memplan.equivalence.rewrite_rules import same_as, view
from memplan.equivalence.terms import ABSENT, IN_CHUNKS, Fact, Terms
from memplan.ops.book import PRODUCTS, VIEWS, operator
from memplan.ops.facets import WHOLE, Use
from memplan.ops.instance import Instance

_DOMAINS = ("", "com.microsoft")


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor as the axis rules look at it; they go by shapes alone."""

    shape: tuple[int, ...]
    dtype: int = 0
    nbytes: int = 0


def product_of(applied: Applied, given: Mapping[str, Any], terms: Terms) -> Product | None:
    """The product of two matrices that an operator gives, its third input added; None if it is
    none, or is scaled in other ways."""
    if applied.key not in PRODUCTS or len(applied.reads) < 2:
        return None
    if any(given.get(name, 0) for name in ("transBatchA", "transBatchB")):
        return None
    if any(len(terms.fact(t).shape or ()) != 2 for t in applied.reads[:2]):
        return None
    added = applied.reads[2] if len(applied.reads) > 2 else ABSENT
    if added != ABSENT and given.get("beta", 1.0) != 1.0:
        return None
    a, trans_a = _untransposed(terms, applied.reads[0], bool(given.get("transA", 0)))
    b, trans_b = _untransposed(terms, applied.reads[1], bool(given.get("transB", 0)))
    return Product(a, trans_a, b, trans_b, float(given.get("alpha", 1.0)), added)


def _untransposed(terms: Terms, term: int, flipped: bool) -> tuple[int, bool]:
    form = terms.forms[term]
    if isinstance(form, Transposed) and form.perm == (1, 0):
        return form.root, not flipped
    return term, flipped


@dataclass(slots=True)
class Parts:
    """The parts in one graph, beside the terms of the reference.

    ``slices``: what new Slices are parts of.
    """

    terms: Terms
    opset: int
    slices: dict[int, Part] = field(default_factory=dict)

    def outputs(self, applied: Applied, given: Mapping[str, Any], count: int) -> dict[int, int]:
        """The terms of what is applied, by output slot, where parts are involved; else empty.

        Args:
            applied: an operator of the graph itself (not of a body).
            given: its attributes.
            count: how many outputs the node lists.
        """
        if applied.domain not in _DOMAINS or applied.bodies or applied.occurrence:
            return {}
        call = Call(applied.op, applied.reads, given, self.opset, self.terms)
        if not any(self._part(t) or self._summed(t) for t in applied.reads):
            return self._late_sum(applied) or self._repeated(applied, call)
        for rule in (self._joined, self._added, self._accumulated, self._viewed, self._expanded):
            term = rule(applied, call)
            if term is not None:
                return {0: term}
        return self._ranged(applied, call, count)

    def _part(self, term: int) -> Part | None:
        form = self.terms.forms[term] if term != ABSENT else None
        return form if isinstance(form, Part) else self.slices.get(term)

    def _summed(self, term: int) -> Summed | None:
        form = self.terms.forms[term] if term != ABSENT else None
        return form if isinstance(form, Summed) else None

    def _of(self, root: int, axis: int, start: int, stop: int) -> int:
        """The term of a part."""
        part = Part(root, axis, start, stop)
        return self.terms.of(part, Fact(self.terms.fact(root).dtype, self._cut(part)))

    def note_slice(self, applied: Applied, given: Mapping[str, Any], made: int) -> None:
        """Note that the term ``made`` is a range of one axis, if that is what a Slice gives."""
        call = Call(applied.op, applied.reads, given, self.opset, self.terms)
        found = None if applied.domain or applied.op != "Slice" else self._slice(call)
        if found is not None:
            self.slices[made] = found
            whole = self.terms.fact(found.root)
            self.terms.learn(made, Fact(whole.dtype, self._cut(found)))

    def _cut(self, part: Part) -> tuple[int, ...] | None:
        """The shape of a part."""
        shape = self.terms.fact(part.root).shape
        if shape is None:
            return None
        return (*shape[: part.axis], part.stop - part.start, *shape[part.axis + 1 :])

    def _slice(self, call: Call) -> Part | None:
        shape = call.fact().shape
        starts, ends, axes = call.ints(1), call.ints(2), call.ints(3)
        if shape is None or not (starts and ends and axes) or len(call.reads) > 4:
            return None
        if not len(starts) == len(ends) == len(axes) == 1 or not 0 <= axes[0] < len(shape):
            return None
        if not 0 <= starts[0] < ends[0] <= shape[axes[0]]:
            return None
        return Part(call.read(0), axes[0], starts[0], ends[0])

    def _whole(self, term: int) -> int:
        return self.terms.grant(term, IN_CHUNKS)

    def _joined(self, applied: Applied, call: Call) -> int | None:
        """Parts of one whole, from its beginning to its end."""
        parts = [self._part(t) for t in applied.reads]
        first = parts[0]
        if applied.op != "Concat" or first is None:
            return None
        shape, reached = self.terms.fact(first.root).shape, 0
        for part in parts:
            if part is None or (part.root, part.axis, part.start) != (
                first.root,
                first.axis,
                reached,
            ):
                return None
            reached = part.stop
        rank = len(shape or ())
        axis = call.attributes.get("axis")
        if shape is None or axis is None or axis % rank != first.axis or reached != shape[axis]:
            return None
        return self._whole(first.root)

    def _sum(self, found: Summed) -> int:
        """The term of a sum of summands; of all of them, the whole."""
        if (found.start, found.stop) != (0, found.size):
            return self.terms.of(found, self.terms.fact(found.root))
        product = self.terms.forms[found.root]
        whole = self.terms.products.get(product) if isinstance(product, Product) else found.root
        return found.root if whole is None else self._whole(whole)

    def _added(self, applied: Applied, call: Call) -> int | None:
        """Two sums, where one goes on from the other."""
        if applied.op not in ("Add", "Sum") or len(applied.reads) != 2:
            return None
        one, other = (self._summed(t) for t in applied.reads)
        if one is None or other is None:
            return None
        if one.stop != other.start:
            one, other = other, one
        same = (one.axis, one.size) == (other.axis, other.size) and one.stop == other.start
        if not same or other.root not in (one.root, self._unadded(one.root)):
            return None
        return self._sum(replace(one, stop=other.stop))

    def _unadded(self, root: int) -> int:
        """A product without what is added to it."""
        form = self.terms.forms[root]
        return self.terms.of(replace(form, added=ABSENT)) if isinstance(form, Product) else root

    def _late_sum(self, applied: Applied) -> dict[int, int]:
        """A whole product, to which something is added behind it."""
        if applied.op != "Add" or len(applied.reads) != 2:
            return {}
        for slot in (0, 1):
            product = self.terms.forms[applied.reads[slot]]
            if isinstance(product, Product) and product.added == ABSENT:
                key = replace(product, added=applied.reads[1 - slot])
                whole = self.terms.products.get(key)
                if whole is not None:
                    return {0: self._whole(whole)}
        return {}

    def _repeated(self, applied: Applied, call: Call) -> dict[int, int]:
        """Repetitions that are joined are one of as many more."""
        forms = [self.terms.forms[t] if t != ABSENT else None for t in applied.reads]
        first, axis = forms[0] if forms else None, call.attributes.get("axis")
        if applied.op != "Concat" or not isinstance(first, Broadcast) or axis is None:
            return {}
        rank = len(first.shape)
        axis, source = axis % rank, self.terms.fact(first.root).shape
        own = axis - rank + len(source or ())
        if source is None or (own >= 0 and source[own] != 1):
            return {}
        size = 0
        for form in forms:
            if not isinstance(form, Broadcast) or form.root != first.root:
                return {}
            if (*form.shape[:axis], *form.shape[axis + 1 :]) != (
                *first.shape[:axis],
                *first.shape[axis + 1 :],
            ):
                return {}
            size += form.shape[axis]
        shape = (*first.shape[:axis], size, *first.shape[axis + 1 :])
        fact = Fact(self.terms.fact(applied.reads[0]).dtype, shape)
        return {0: self.terms.of(Broadcast(first.root, shape), fact)}

    def _accumulated(self, applied: Applied, call: Call) -> int | None:
        """A product along parts of both inner axes: a summand, on top of a sum or not."""
        product = product_of(applied, call.attributes, self.terms)
        if product is None:
            return None
        a, b = self._inner(product.a, not product.trans_a), self._inner(product.b, product.trans_b)
        if a is None or b is None or (a.start, a.stop) != (b.start, b.stop):
            return None
        size = (self.terms.fact(a.root).shape or (0, 0))[a.axis]
        first, trans_a = _untransposed(self.terms, a.root, product.trans_a)
        second, trans_b = _untransposed(self.terms, b.root, product.trans_b)
        if (self.terms.fact(b.root).shape or (0, 0))[b.axis] != size:
            return None
        before = self._summed(product.added)
        alone = Product(first, trans_a, second, trans_b, product.alpha, ABSENT)
        if before is None:
            if product.added != ABSENT and a.start:
                return None  # it would be added once more
            fact = self.terms.fact(self.terms.products.get(alone, ABSENT))
            root = self.terms.of(replace(alone, added=product.added), fact)
            return self._sum(Summed(root, 0, a.start, a.stop, size))
        ahead = self.terms.forms[before.root]
        if not isinstance(ahead, Product) or replace(ahead, added=ABSENT) != alone:
            return None
        if (before.stop, before.size) != (a.start, size):
            return None
        return self._sum(replace(before, stop=a.stop))

    def _inner(self, term: int, last: bool) -> Part | None:
        """The part that a factor is, if it is cut along its inner axis: the last or the first."""
        part = self._part(term)
        return part if part is not None and part.axis == int(last) else None

    def _viewed(self, applied: Applied, call: Call) -> int | None:
        """A view of a part is a part of a view: of one that the reference has, if there is one."""
        part = self._part(applied.reads[0])
        if applied.key not in VIEWS or part is None:
            return None
        found = same_as(call)
        whole, cut = self.terms.fact(part.root).shape, self.terms.fact(applied.reads[0]).shape
        if found is None or whole is None or cut is None:
            return None
        form = self.terms.forms[found]
        shape = form.shape if isinstance(form, View) else cut
        inside = prod(cut[part.axis + 1 :])
        best: tuple[bool, int] | None = None
        for axis, size in enumerate(shape):
            unit = prod(shape[axis + 1 :])
            ends = part.start * inside, part.stop * inside, whole[part.axis] * inside
            if prod(shape[:axis]) != prod(cut[: part.axis]) or any(end % unit for end in ends):
                continue
            start, stop, length = (end // unit for end in ends)
            if stop - start != size:
                continue
            root = view(self.terms, part.root, [*shape[:axis], length, *shape[axis + 1 :]])
            known = root < self.terms.known
            if best is None or (known and not best[0]):
                best = known, self._of(root, axis, start, stop)
        return None if best is None else best[1]

    def _expanded(self, applied: Applied, call: Call) -> int | None:
        """A part that is repeated along other axes is a part of what is repeated."""
        part = self._part(applied.reads[0])
        found = same_as(call) if applied.op == "Expand" and part is not None else None
        form = self.terms.forms[found] if found is not None else None
        if part is None or not isinstance(form, Broadcast) or form.root != applied.reads[0]:
            return None
        cut, whole = self.terms.fact(form.root).shape, self.terms.fact(part.root).shape
        if cut is None or whole is None:
            return None
        axis = part.axis + len(form.shape) - len(cut)
        if form.shape[axis] != cut[part.axis]:
            return None
        shape = (*form.shape[:axis], whole[part.axis], *form.shape[axis + 1 :])
        fact = Fact(self.terms.fact(form.root).dtype, shape)
        root = self.terms.of(Broadcast(part.root, shape), fact)
        return self._of(root, axis, part.start, part.stop)

    def _ranged(self, applied: Applied, call: Call, count: int) -> dict[int, int]:
        """An operator that computes ranges from ranges, applied to parts."""
        rule = operator(applied.key).axes
        instance = self._instance(call, count)
        if rule is None or instance is None:
            return {}
        # What holds the shape of the result is another for the whole; what is added to a sum is
        # added once.
        uses = [use for use in rule(instance) if use.shape_slot < 0 and use.addend < 0]
        for slot, term in enumerate(applied.reads):
            part = self._part(term)
            for use in uses:
                if part is not None and use.reads[slot] == part.axis:
                    return self._result(applied, call, use, part)
        return {}

    def _instance(self, call: Call, count: int) -> Instance | None:
        """What is applied, with ``count`` outputs; None if the shape of an operand is not known.

        A part counts as two long along its axis at least: it is not repeated, even if it is one.
        """
        operands: list[_Operand | None] = []
        for term in call.reads:
            shape, part = self.terms.fact(term).shape, self._part(term)
            if term != ABSENT and shape is None:
                return None
            if shape is not None and part is not None:
                long = max(shape[part.axis], 2)
                shape = (*shape[: part.axis], long, *shape[part.axis + 1 :])
            operands.append(None if shape is None else _Operand(shape))
        return Instance(call.attributes, operands, [None] * count, self.opset, call.ints)

    def _result(self, applied: Applied, call: Call, use: Use, anchor: Part) -> dict[int, int]:
        """The part of what the wholes give; empty if some operand is not the part it should be."""
        size = (self.terms.fact(anchor.root).shape or ())[anchor.axis]
        reads = []
        for term, axis in zip(applied.reads, use.reads, strict=True):
            whole = term if axis == WHOLE else self._whole_operand(term, axis, anchor, size)
            if whole is None:
                return {}
            reads.append(whole)
        whole_applied = self.terms.as_known(replace(applied, reads=tuple(reads)))
        if use.sums:
            root = self.terms.output(whole_applied, 0)
            return {0: self._sum(Summed(root, use.reads[0], anchor.start, anchor.stop, size))}
        made: dict[int, int] = {}
        for slot, axis in enumerate(use.makes):
            root = self._applied_to(call, whole_applied, slot)
            made[slot] = self._of(root, axis, anchor.start, anchor.stop)
        return made

    def _applied_to(self, call: Call, whole: Applied, slot: int) -> int:
        """The term of an output of what is applied to wholes, as the reference has it."""
        if slot == 0:
            first = self.terms.first.get(whole)
            again = replace(call, reads=whole.reads, applied=whole)
            known = same_as(again) if first is None else first
            if known is not None:
                return known
        return self.terms.output(whole, slot)

    def _whole_operand(self, term: int, axis: int, anchor: Part, size: int) -> int | None:
        """The whole of an operand that is to be the same range as ``anchor`` along ``axis``."""
        part, form = self._part(term), self.terms.forms[term]
        if part is not None:
            shape = self.terms.fact(part.root).shape
            same = (part.axis, part.start, part.stop) == (axis, anchor.start, anchor.stop)
            return part.root if same and shape is not None and shape[axis] == size else None
        if isinstance(form, Broadcast):
            own = axis - (len(form.shape) - len(self.terms.fact(form.root).shape or ()))
            repeats = own < 0 or (self.terms.fact(form.root).shape or ())[own] == 1
            if repeats and form.shape[axis] == anchor.stop - anchor.start:
                shape = (*form.shape[:axis], size, *form.shape[axis + 1 :])
                fact = self.terms.fact(term)
                return self.terms.of(Broadcast(form.root, shape), Fact(fact.dtype, shape))
        return None
