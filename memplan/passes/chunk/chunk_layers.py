"""The last layers of a network, forward and backward together: how many, and in how many chunks."""

from __future__ import annotations

from collections.abc import Iterator

from memplan.ir.graph import Graph
from memplan.ir.graph_facts import Facts
from memplan.passes.chunk.chunk_candidates import LAYERS, Choice, counts_of, seeds
from memplan.passes.chunk.chunk_writer import Part
from memplan.passes.chunk.outline import Estimate
from memplan.passes.chunk.turn import Turn, turns
from memplan.planning.plan_file import ChunkDecision
from memplan.units import counted


def layer_choices(
    facts: Facts, forward: frozenset[int], estimate: Estimate, count: int
) -> list[Choice]:
    """What layers there are along an axis, in how many chunks each; what adds most comes last.

    Args:
        facts: what is known of the graph.
        forward: the nodes that the loss depends on.
        estimate: what is at the peak and at the floor.
        count: of chunks; 0: as many as keep the kernels of products.
    """
    graph = facts.graph
    for seed in seeds(graph, estimate):
        for axis in range(len(graph.tensors[seed].shape)):
            found = [
                _choice(graph, turn, each, seed, axis)
                for turn in turns(facts, forward, seed, axis)
                for each in _counts(graph, turn, count)
            ]
            if found:
                return sorted(found, key=lambda choice: choice.part.added)
    return []


def _choice(graph: Graph, turn: Turn, count: int, seed: int, axis: int) -> Choice:
    first, last = (graph.nodes[place].name for place in (turn.first, turn.last))
    name = graph.tensors[seed].name
    return Choice(
        Part((turn.region,), count),
        ChunkDecision(LAYERS, (name,), axis, count, first, last),
        f"{counted(len(turn.region.uses), 'node')} from '{first}' on, forward and backward,",
    )


def _counts(graph: Graph, turn: Turn, count: int) -> Iterator[int]:
    if not count:
        yield from counts_of(graph, [turn.region])
    elif turn.region.divisor(graph) % count == 0:
        yield count
