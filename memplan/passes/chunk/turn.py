"""The turn: the last layers of a network with loss and backward part, one chunk of the batch after
the other, as in the accumulation of gradients.

A batch axis goes through nearly every node of most networks. All nodes along it between two places
in the file, one before the loss and one behind, are a region with forward and backward together,
whose stash is there for one chunk at a time. How many layers it has is a choice: the more, the less
is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from memplan.ir.graph import Graph
from memplan.ir.graph_facts import Facts
from memplan.ops.facets import WHOLE
from memplan.passes.chunk.part import LAYERS, Part
from memplan.passes.chunk.region import Growth, Region

SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""How much of what the forward part hands to the backward part a region may have."""
# A border may be so much further on, where it is smaller.
_SLACK = 0.1
# At least so much must be along the axis.
_LEAST_FOLLOWED = 0.5
# What is small may be computed ahead of the region, as a share of what the region makes.
_SMALL = 0.01
# A larger region is not put into blocks: forward and backward apart save little.
_MOST_IN_BLOCKS = 2000
_EVERYTHING = -1


def turns(facts: Facts, forward: frozenset[int], seed: int, axis: int) -> Iterator[Part]:
    """Regions around the loss along an axis, by rising size.

    Args:
        facts: what is known of the graph.
        forward: the nodes that the loss depends on, its own among them.
        seed: a tensor of the region.
        axis: its axis.
    """
    growth, graph = Growth(facts, _EVERYTHING), facts.graph
    if not growth.start(seed, axis, len(graph.nodes)):
        return
    stash = _stash(growth, forward)
    if stash is None:
        return
    borders, name = _Borders.of(growth, forward), graph.tensors[seed].name
    for window in dict.fromkeys(borders.window(stash, share) for share in SHARES):
        region = between(growth, *window)
        if region is not None:
            first, last = (graph.nodes[place].name for place in window)
            yield Part((region,), 1, LAYERS, (name,), axis, first, last)


def turn_again(
    facts: Facts, seed: int, axis: int, first: str | None, last: str | None
) -> Region | None:
    """The region of such a part, found again; None if it is not there."""
    places = {node.name: node.id for node in facts.graph.nodes}
    growth = Growth(facts, _EVERYTHING)
    if not {first, last} <= places.keys() or not growth.start(seed, axis, len(places)):
        return None
    return between(growth, places[first or ""], places[last or ""])


def between(growth: Growth, first: int, last: int) -> Region | None:
    """The region of all nodes of ``growth`` from one place to another; None if there is none.

    A product on top of what is only known later (tied embeddings) stands late in the file; it
    belongs where its factors are.
    """
    inside = {index for index in growth.uses if first <= index <= last}
    for index in sorted(growth.late_addends()):
        if inside.intersection(_producers(growth.graph, [index])):
            inside.add(index)
    window = _without_repeats(growth.among(sorted(inside)))
    if not window.uses:
        return None
    found = _without_counts(window)
    if len(found.uses) > _MOST_IN_BLOCKS and found.between(found.late_addends()):
        return None
    return found.region()


def _without_repeats(growth: Growth) -> Growth:
    """Without nodes that would compute the same in every chunk, from nothing but filled tensors."""
    repeated = growth.repeats()
    return growth.among(sorted(growth.uses.keys() - repeated)) if repeated else growth


def _without_counts(growth: Growth) -> Growth:
    """Without the few small nodes that lead out of the region into it again: how many labels there
    are, by which every chunk divides, is counted ahead of it."""
    graph = growth.graph
    outside = growth.between(growth.late_addends())
    ahead: set[int] = set()
    waiting = list(_producers(graph, outside))
    while waiting:
        index = waiting.pop()
        if index in growth.uses and index not in ahead:
            ahead.add(index)
            waiting += _producers(graph, [index])
    if _made_bytes(graph, ahead) > _SMALL * _made_bytes(graph, growth.uses):
        return growth
    return growth.among(sorted(growth.uses.keys() - ahead)) if ahead else growth


def _producers(graph: Graph, nodes: Iterable[int]) -> Iterator[int]:
    for index in nodes:
        yield from (graph.tensors[t].producer for t in graph.nodes[index].reads)


def _made_bytes(graph: Graph, nodes: Iterable[int]) -> int:
    return sum(graph.tensors[t].nbytes for index in nodes for t in graph.nodes[index].writes)


@dataclass(frozen=True, slots=True)
class _Stashed:
    """A tensor that the forward part hands to the backward part: where it is made and last read."""

    made: int
    read: int
    nbytes: int


def _stash(growth: Growth, forward: frozenset[int]) -> list[_Stashed] | None:
    """What is handed on along the axis, the latest first; None where that is little of all."""
    graph, late = growth.graph, growth.late_addends()
    found: list[_Stashed] = []
    whole = 0
    for tensor in graph.tensors:
        if tensor.producer not in forward or all(r in forward for r in tensor.readers):
            continue
        whole += tensor.nbytes
        if growth.axis.get(tensor.id, WHOLE) >= 0:
            read = max((r for r in tensor.readers if r not in late), default=tensor.producer)
            found.append(_Stashed(tensor.producer, read, tensor.nbytes))
    if not found or sum(each.nbytes for each in found) < _LEAST_FOLLOWED * whole:
        return None
    return sorted(found, key=lambda each: -each.made)


@dataclass(frozen=True, slots=True)
class _Borders:
    """Bytes on the axis that go from before a node to it or behind it in the forward part
    (``enters``), and from it or before it to behind it in the backward part (``leaves``)."""

    first: int
    last: int
    enters: tuple[int, ...]
    leaves: tuple[int, ...]

    @classmethod
    def of(cls, growth: Growth, forward: frozenset[int]) -> _Borders:
        graph = growth.graph
        enters, leaves = ([0] * (len(graph.nodes) + 1) for _ in range(2))
        for index, axis in growth.axis.items():
            tensor = graph.tensors[index]
            if axis < 0 or not tensor.readers:
                continue
            if tensor.producer in forward:
                last = max((r for r in tensor.readers if r in forward), default=tensor.producer)
                enters[tensor.producer + 1] += tensor.nbytes
                enters[last + 1] -= tensor.nbytes
            else:
                leaves[tensor.producer] += tensor.nbytes
                leaves[max(tensor.readers)] -= tensor.nbytes
        ends = min(growth.uses), max(growth.uses)
        return cls(*ends, tuple(accumulate(enters)), tuple(accumulate(leaves)))

    def window(self, stash: list[_Stashed], share: float) -> tuple[int, int]:
        """The first and the last node of a region with such a share of the stash, where the least
        goes over its borders."""
        if share >= 1:
            return self.first, self.last
        (enough, read), (further, read_then) = (
            _reached(stash, each) for each in (share, share + _SLACK)
        )
        first = min(range(enough, further - 1, -1), key=lambda place: self.enters[place])
        last = min(range(read, read_then + 1), key=lambda place: self.leaves[place])
        return first, last


def _reached(stash: list[_Stashed], share: float) -> tuple[int, int]:
    """Where so much of the stash is made, and where all that is has been read."""
    wanted = share * sum(each.nbytes for each in stash)
    made, read, total = stash[0].made, stash[0].read, 0
    for each in stash:
        if total >= wanted:
            break
        made, read, total = each.made, max(read, each.read), total + each.nbytes
    return made, read
