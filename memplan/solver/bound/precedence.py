"""Which nodes run for the first time before which others, whatever the order and the recomputation.

A node reads tensors, and each was made by something that ran before. Where only one node can have
made a tensor (or every other maker reads, in the end, what that node alone makes), that node's
first run lies before the reader's: an edge. What edges reach, every sequence has in this order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from memplan.solver.problem import NONE, Problem

# How far a rebuild rule is followed back to the node that it replaces.
_LONGEST_RULE = 24


@dataclass(frozen=True, slots=True)
class Precedence:
    """``before[n]`` and ``after[n]``: nodes whose first runs are next before and after that of
    ``n``, without duplicates. What a node reaches is looked up once: events come again."""

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    _ancestors: dict[int, frozenset[int]] = field(default_factory=dict)
    _descendants: dict[int, frozenset[int]] = field(default_factory=dict)

    def ancestors(self, node: int) -> frozenset[int]:
        """All nodes that surely ran before the first run of ``node``; not itself."""
        if node not in self._ancestors:
            self._ancestors[node] = _reach(self.before, node)
        return self._ancestors[node]

    def descendants(self, node: int) -> frozenset[int]:
        """All nodes that surely run for the first time after that of ``node``; not itself."""
        if node not in self._descendants:
            self._descendants[node] = _reach(self.after, node)
        return self._descendants[node]


def _reach(edges: tuple[tuple[int, ...], ...], node: int) -> frozenset[int]:
    found: set[int] = set()
    waiting = [node]
    while waiting:
        for other in edges[waiting.pop()]:
            if other not in found:
                found.add(other)
                waiting.append(other)
    return frozenset(found)


def find_precedence(problem: Problem, order_kept: bool = False) -> Precedence:
    """The edges of ``problem``, those of its rebuild rules among them; ``order_kept``: first runs
    stand in its order, but for nodes that run as soon as they can."""
    arrays = problem.arrays
    count = len(arrays.cost)
    reads, writes = arrays.reads.tolist(), arrays.writes.tolist()
    read_start, write_start = arrays.read_start.tolist(), arrays.write_start.tolist()
    makers: list[list[int]] = [[] for _ in range(len(arrays.nbytes))]
    for node in range(count):
        for tensor in writes[write_start[node] : write_start[node + 1]]:
            makers[tensor].append(node)
    resident = arrays.resident.tolist()
    first = set(problem.order.tolist())
    slots = [reads[read_start[node] : read_start[node + 1]] for node in range(count)]

    def gate(tensor: int) -> int:
        """The node that ran before anybody reads ``tensor``, or NONE."""
        if resident[tensor] or not makers[tensor]:
            return NONE
        if len(makers[tensor]) == 1:
            return makers[tensor][0]
        originals = [node for node in makers[tensor] if node in first]
        if len(originals) != 1:
            return NONE
        others = [node for node in makers[tensor] if node != originals[0]]
        # Who makes a tensor from the tensor itself (packed, say) does not make it first.
        makers[tensor] = originals
        if all(_needs(node, originals[0], slots, makers, _LONGEST_RULE) for node in others):
            return originals[0]
        makers[tensor] = [*originals, *others]
        return NONE

    for tensor in range(len(arrays.nbytes)):
        gate(tensor)  # of some it shows only when others are known
    gates = [gate(tensor) for tensor in range(len(arrays.nbytes))]
    found = [{gates[t] for t in slots[node]} - {NONE} for node in range(count)]
    if order_kept:
        fixed = problem.order[~arrays.eager[problem.order]].tolist()
        for node, following in pairwise(fixed):
            found[following].add(node)
    before = tuple(tuple(sorted(nodes)) for nodes in found)
    after: list[list[int]] = [[] for _ in range(count)]
    for node in range(count):
        for other in before[node]:
            after[other].append(node)
    return Precedence(before, tuple(map(tuple, after)))


def _needs(
    node: int, other: int, slots: list[list[int]], makers: list[list[int]], depth: int
) -> bool:
    """Whether ``node`` reads what ``other`` alone makes, directly or through single makers."""
    if depth == 0:
        return False
    for tensor in slots[node]:
        if makers[tensor] == [other]:
            return True
        if len(makers[tensor]) == 1 and _needs(makers[tensor][0], other, slots, makers, depth - 1):
            return True
    return False
