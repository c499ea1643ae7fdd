"""Loops whose bodies differ: do they read the same, so that nothing but the body is to be assumed?

A loop may read less than the original's, as one does that hands on less from step to step. What it
does read must be what the original's read in the same place: the initial values of a state, by the
name under which the last ones leave, the number of steps, and sequences with axis and direction.
A loop that makes again what another made needs what that had: further sequences, and what its body
reads, may be what any loop of the original reads, what that is a product of, or what a loop gives,
cut and joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping

from memplan.equivalence.normal_forms import Final, Output, Stack, Transposed, View
from memplan.equivalence.numbering import Numbered
from memplan.equivalence.scans import read_scan
from memplan.equivalence.terms import ABSENT, Terms
from memplan.ops.book import SAME_ELEMENTS
from memplan.proto.nodes import captured_names

LOOPS = ("Scan", "Loop")
Role = tuple[object, ...]
_STEPS_AND_CONDITION = 2
_PRODUCTS = ("MatMul", "Gemm", "Add")  # with what is added to them
_MOVING = SAME_ELEMENTS | {":Concat", ":Slice", ":Transpose"}


def other_read(
    loop: Numbered,
    twin: Numbered,
    terms: Terms,
    names: Mapping[str, int],
    inner: Container[int],
) -> str | None:
    """What ``loop`` reads and its ``twin`` does not, in words; None if there is no such thing.

    ``names``: terms of the tensors around it; ``inner``: those that loops of the original read.
    """
    begin = f"the loop '{loop.node.name}' has another body, and reads"
    own = list(_roles(twin, terms))
    known = {role: slot for slot, role in own}
    left = Counter(role for _, role in own)
    for slot, role in _roles(loop, terms):
        given = loop.node.input[slot]
        left[role] -= 1
        # What the original's reads once, this one reads once.
        if left[role] < 0 and not _may_be_added(loop, twin, slot, terms, inner):
            return f"{begin} '{given}' as input {slot}, which the original's does not in this way"
        place = known.get(role, slot)
        if role in known and loop.applied.reads[slot] != twin.applied.reads[place]:
            its = twin.node.input[place]
            return f"{begin} '{given}' as input {slot}, which is not {_its_own(given, its)}"
    for name in captured_names(loop.node):
        if names[name] not in inner:
            return f"{begin} '{name}' in it, which no loop of the original does"
    return None


def outer_reads(nodes: Iterable[Numbered], names: Mapping[str, int], terms: Terms) -> set[int]:
    """The terms that loops read, or their bodies; and of what products those are made, which a loop
    may make step by step."""
    found: set[int] = set()
    for numbered in nodes:
        if numbered.node.op_type in LOOPS:
            found.update(numbered.applied.reads)
            found.update(names[name] for name in captured_names(numbered.node))
    waiting = list(found)
    while waiting:
        new = {read for read in _made_of(terms, waiting.pop()) if read not in found}
        found |= new
        waiting.extend(new)
    return found


def _made_of(terms: Terms, term: int) -> tuple[int, ...]:
    """What a product reads, or a view of one."""
    form = terms.forms[term] if term != ABSENT else None
    if isinstance(form, View | Transposed):
        return (form.root,)
    if isinstance(form, Output) and not form.applied.domain:
        if form.applied.op in _PRODUCTS:
            return form.applied.reads
        return form.applied.reads[:1] if form.applied.key in _MOVING else ()
    return ()


def _may_be_added(
    loop: Numbered, twin: Numbered, slot: int, terms: Terms, inner: Container[int]
) -> bool:
    """Whether an input is a sequence that may be new: not one of the twin's in another order."""
    states = sum(role[0] == "state" for _, role in _roles(loop, terms))
    term = loop.applied.reads[slot]
    if loop.node.op_type != "Scan" or slot < states or term in twin.applied.reads:
        return False
    return _from_loops(terms, term, inner)


def _from_loops(terms: Terms, term: int, inner: Container[int]) -> bool:
    """Whether all elements of a term are elements of what loops read or give."""
    form = terms.forms[term] if term != ABSENT else None
    if term in inner or isinstance(form, Stack | Final):
        return True
    if isinstance(form, View | Transposed):
        return _from_loops(terms, form.root, inner)
    if not isinstance(form, Output) or form.applied.key not in _MOVING:
        return False
    reads = form.applied.reads
    moved = reads if form.applied.op == "Concat" else reads[:1]
    return all(_from_loops(terms, read, inner) for read in moved)


def _its_own(mine: str, its: str) -> str:
    return "what it was" if mine == its else f"'{its}'"


def _roles(loop: Numbered, terms: Terms) -> Iterator[tuple[int, Role]]:
    """What each input of a loop is for, by slot."""
    reads, outputs = loop.applied.reads, loop.node.output
    if loop.node.op_type == "Loop":
        for slot in range(len(reads)):
            state = slot - _STEPS_AND_CONDITION
            yield slot, ("state", outputs[state] or state) if state >= 0 else ("steps", slot)
        return
    scan = read_scan(loop.node, reads, terms)
    for slot in range(len(scan.states)):
        yield slot, ("state", outputs[slot] or slot)
    for slot, sequence in enumerate(scan.sequences, len(scan.states)):
        yield slot, ("sequence", *sequence)
