"""Views right before their first reader."""

from __future__ import annotations

from memplan.ir.graph import Graph, Node
from memplan.ops.memory import MemorySemantics


def late_views(graph: Graph, order: list[int], rules: MemorySemantics) -> list[int]:
    """``order`` with every view moved right before the first node that reads it.

    A view holds no memory of its own, so this changes no lifetime; but a value that only late
    views read can then be evicted in between.
    """
    result: list[int] = []
    moved: set[int] = set()
    for index in order:
        node = graph.nodes[index]
        if _is_movable_view(graph, node, rules):
            moved.add(index)
            continue
        _emit_views(graph, node, moved, result)
        result.append(index)
    # Views that no other node reads keep their place at the end.
    result.extend(index for index in order if index in moved)
    return result


def _emit_views(graph: Graph, node: Node, moved: set[int], result: list[int]) -> None:
    """Append the waiting views that ``node`` reads, and those that they read, sources first."""
    stack = _made_by(graph, node, moved)
    while stack:
        view = stack[-1]
        # Not its first input alone: the shape that a Reshape reads may be a view, too.
        sources = _made_by(graph, graph.nodes[view], moved) if view in moved else []
        if sources:
            stack.extend(sources)
            continue
        stack.pop()
        if view in moved:
            moved.remove(view)
            result.append(view)


def _made_by(graph: Graph, node: Node, moved: set[int]) -> list[int]:
    """The waiting views among what ``node`` reads or what must read before it writes over state,
    the first one last."""
    overwritten = graph.state.before.get(node.id, ()) if graph.state else ()
    producers = (*(graph.tensors[tensor].producer for tensor in node.reads), *overwritten)
    return [producer for producer in producers if producer in moved][::-1]


def _is_movable_view(graph: Graph, node: Node, rules: MemorySemantics) -> bool:
    outputs = [graph.tensors[t] for t in node.writes]
    view = all(rules.alias_input(node.key, k) is not None for k in range(len(node.outputs)))
    return view and len(outputs) == 1 and bool(outputs[0].readers) and not outputs[0].is_output
