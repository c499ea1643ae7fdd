"""Loops whose bodies differ: do they read the same, so that nothing but the body is to be assumed?

A loop may read less than the original's, as one does that hands on less from step to step. What it
does read must be what the original's read in the same place: the initial values of a state, by the
name under which the last ones leave, the number of steps, and sequences with axis and direction.
In its body it may read what any loop of the original does: one that makes again what another made
needs what that had.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from memplan.equivalence.numbering import Numbered
from memplan.equivalence.scans import read_scan
from memplan.equivalence.terms import Terms
from memplan.proto.nodes import captured_names

LOOPS = ("Scan", "Loop")
Role = tuple[object, ...]
_STEPS_AND_CONDITION = 2


def other_read(
    loop: Numbered,
    twin: Numbered,
    terms: Terms,
    names: Mapping[str, int],
    inner: Container[int],
) -> str | None:
    """What ``loop`` reads and its ``twin`` does not, in words; None if there is no such thing.

    ``names``: terms of the tensors around it; ``inner``: those that its body may read.
    """
    begin = f"the loop '{loop.node.name}' has another body, and reads"
    known = {role: slot for slot, role in _roles(twin, terms)}
    for slot, role in _roles(loop, terms):
        given = loop.node.input[slot]
        if role not in known:
            return f"{begin} '{given}' as input {slot}, which the original's does not in this way"
        place = known[role]
        if loop.applied.reads[slot] != twin.applied.reads[place]:
            its = twin.node.input[place]
            return f"{begin} '{given}' as input {slot}, which is not {_its_own(given, its)}"
    for name in captured_names(loop.node):
        if names[name] not in inner:
            return f"{begin} '{name}' in it, which no loop of the original does"
    return None


def outer_reads(nodes: Iterable[Numbered], names: Mapping[str, int]) -> set[int]:
    """The terms that loops read, or their bodies."""
    found: set[int] = set()
    for numbered in nodes:
        if numbered.node.op_type in LOOPS:
            found.update(numbered.applied.reads)
            found.update(names[name] for name in captured_names(numbered.node))
    return found


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
