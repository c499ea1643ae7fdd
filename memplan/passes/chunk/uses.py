"""Every use of a node of a graph: the axis rules of the operator book, by shapes that hold in every
run. An operator without a rule is not chunked."""

from __future__ import annotations

from memplan.ir.graph import Node
from memplan.ir.graph_facts import Facts
from memplan.ops.book import operator
from memplan.ops.facets import WHOLE, Use
from memplan.ops.instance import in_graph


def uses(facts: Facts, node: Node) -> tuple[Use, ...]:
    """Every way to run ``node`` in chunks; empty if there is none, or none is known."""
    rule = operator(node.key).axes
    if rule is None or facts.graph.bodies.get(node.id):
        return ()
    tensors, marked = facts.graph.tensors, facts.graph.checkpoints
    if not all(tensors[t].counted and tensors[t].static for t in (*node.reads, *node.writes)):
        return ()
    if any(t in marked for t in node.writes):
        return ()
    found = rule(in_graph(facts.graph, node, values=facts.values))
    return tuple(use for use in found if _is_split(use))


def _is_split(use: Use) -> bool:
    """Whether anything is chunked: of what is made alone, it may be the shape."""
    return any(axis != WHOLE for axis in (*use.reads, *use.makes))
