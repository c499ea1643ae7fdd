"""What a set of graph outputs needs, and which parameter an output belongs to."""

from __future__ import annotations

from collections.abc import Iterable

from memplan.ir.graph import Graph, Phase
from memplan.ir.phases import Phases, pair_outputs


def needed_nodes(graph: Graph, outputs: Iterable[int], nodes: Iterable[int] = ()) -> set[int]:
    """Ids of the nodes that ``outputs`` (tensors) and ``nodes`` depend on, these among them."""
    needed: set[int] = set(nodes)
    waiting = [*outputs, *(t for node in needed for t in graph.nodes[node].reads)]
    while waiting:
        producer = graph.tensors[waiting.pop()].producer
        if producer >= 0 and producer not in needed:
            needed.add(producer)
            waiting.extend(graph.nodes[producer].reads)
    return needed


def trained_outputs(graph: Graph, phases: Phases) -> dict[int, frozenset[int]]:
    """Graph output → the parameters that it is there for, in order of the outputs.

    That is its gradient or its new value, or new optimizer state that serves them. Others (the
    loss, predictions, running statistics) are left out.
    """
    pairs = pair_outputs(graph)
    owners: dict[int, set[int]] = {}
    for output, source in pairs.items():
        if source in phases.parameters:
            owners.setdefault(output, set()).add(source)
            for state in _state_behind(graph, phases, output) if phases.state else ():
                owners.setdefault(state, set()).add(source)
    result: dict[int, frozenset[int]] = {}
    for output in graph.outputs:
        found = owners.get(output, set()) | owners.get(pairs.get(output, output), set())
        if found:
            result[output] = frozenset(found)
    return result


def _state_behind(graph: Graph, phases: Phases, output: int) -> set[int]:
    """Renewed inputs that the backward and update nodes behind ``output`` read."""
    found: set[int] = set()
    seen: set[int] = set()
    waiting = [output]
    while waiting:
        producer = graph.tensors[waiting.pop()].producer
        if producer in seen or producer < 0:
            continue
        seen.add(producer)
        if phases.of[producer] in (Phase.FORWARD, Phase.LOSS):
            continue
        for tensor in graph.nodes[producer].reads:
            if tensor in phases.state:
                found.add(tensor)
            waiting.append(tensor)
    return found
