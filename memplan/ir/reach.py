"""What a set of tensors needs and what needs it, and which parameter an output belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from memplan.ir.graph import Graph, Phase

if TYPE_CHECKING:
    from memplan.ir.phases import Phases


def needed_nodes(graph: Graph, tensors: Iterable[int], nodes: Iterable[int] = ()) -> set[int]:
    """Ids of the nodes that ``tensors`` and ``nodes`` depend on, these among them."""
    needed: set[int] = set(nodes)
    waiting = [*tensors, *(t for node in needed for t in graph.nodes[node].reads)]
    while waiting:
        producer = graph.tensors[waiting.pop()].producer
        if producer >= 0 and producer not in needed:
            needed.add(producer)
            waiting.extend(graph.nodes[producer].reads)
    return needed


def dependent_nodes(graph: Graph, tensors: Iterable[int]) -> set[int]:
    """Ids of the nodes that depend on ``tensors``."""
    # Many nodes may have named one tensor, and each look at it goes over all of its readers.
    found, waiting = set[int](), list(set(tensors))
    while waiting:
        for reader in graph.tensors[waiting.pop()].readers:
            if reader not in found:
                found.add(reader)
                waiting.extend(graph.nodes[reader].writes)
    return found


def trained_outputs(graph: Graph, phases: Phases) -> dict[int, frozenset[int]]:
    """Graph output → the parameters that it is there for, in order of the outputs.

    That is its gradient or its new value, or new optimizer state that serves them. Others (the
    loss, predictions, running statistics) are left out.
    """
    pairs = phases.pairs
    behind = _state_behind(graph, phases) if phases.state else {}
    owners: dict[int, set[int]] = {}
    for output, source in pairs.items():
        if source in phases.parameters:
            owners.setdefault(output, set()).add(source)
            for state in behind.get(graph.tensors[output].producer, ()):
                owners.setdefault(state, set()).add(source)
    result: dict[int, frozenset[int]] = {}
    for output in graph.outputs:
        found = owners.get(output, set()) | owners.get(pairs.get(output, output), set())
        if found:
            result[output] = frozenset(found)
    return result


def _state_behind(graph: Graph, phases: Phases) -> dict[int, frozenset[int]]:
    """Backward or update node → renewed inputs that it and such nodes before it read.

    Nodes without any are left out. The set of a node that adds nothing to that of another one is
    the same object: a chain of nodes costs no more than one.
    """
    found: dict[int, frozenset[int]] = {}
    for node in graph.nodes:
        if phases.of[node.id] in (Phase.FORWARD, Phase.LOSS):
            continue
        own = phases.state.intersection(node.reads)
        parts = {own} if own else set()
        for t in node.reads:
            if (part := found.get(graph.tensors[t].producer)) is not None:
                parts.add(part)
        if len(parts) == 1:
            (found[node.id],) = parts
        elif parts:
            largest = max(parts, key=len)
            whole = all(part <= largest for part in parts)
            found[node.id] = largest if whole else frozenset().union(*parts)
    return found
