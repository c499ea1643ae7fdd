"""A model's nodes in another order."""

from __future__ import annotations

from collections.abc import Sequence

from memplan.ir.graph import Graph, Phase
from memplan.ir.phases import Phases
from memplan.passes.surgery import node_protos, reopened, with_nodes
from memplan.proto.nodes import is_constant
from memplan.simulate.opened import OpenModel


def updates_of(phases: Phases) -> set[int]:
    """The nodes of the optimizer, and those that renew running statistics."""
    return {node for node, phase in enumerate(phases.of) if phase is Phase.UPDATE}


def in_order(model: OpenModel, sequence: Sequence[int]) -> OpenModel:
    """The model with its nodes in the order of ``sequence`` (ids), constants first.

    The model itself where that is its order already.
    """
    if list(sequence) == list(range(len(model.graph.nodes))):
        return model
    proto = model.prepared.proto
    nodes = node_protos(proto)
    constants = [node for node in proto.graph.node if is_constant(node)]
    return reopened(model, with_nodes(proto, [*constants, *(nodes[n] for n in sequence)]))


def early_order(graph: Graph, updates: set[int]) -> list[int]:
    """Node ids with every node of ``updates`` as soon as the gradients are there that it needs.

    Updates that wait for no gradient (bias corrections) come right before the first that reads
    them.
    """
    sources = [{graph.tensors[t].producer for t in n.reads} - {-1} for n in graph.nodes]
    waiting_for: list[int] = []  # per node: how many nodes that are no updates it needs, in all
    behind: list[set[int]] = []
    for node in graph.nodes:
        mine = set().union(*(behind[s] if s in updates else {s} for s in sources[node.id]))
        behind.append(mine if node.id in updates else set())
        waiting_for.append(len(mine))
    readers: dict[int, list[int]] = {}
    for update in sorted(updates):
        for source in behind[update]:
            readers.setdefault(source, []).append(update)
    order: list[int] = []
    done: set[int] = set()

    def run(node: int) -> None:
        """``node``, and before it the updates that it reads."""
        for source in sorted(sources[node] - done):
            run(source)
        if node not in done:
            done.add(node)
            order.append(node)

    for node in graph.nodes:
        if node.id in updates:
            continue
        run(node.id)
        for update in readers.get(node.id, ()):
            waiting_for[update] -= 1
            if waiting_for[update] == 0:
                run(update)
    for update in sorted(updates):
        run(update)
    return order
