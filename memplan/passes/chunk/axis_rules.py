"""Every use of a node, by the rules of its operator."""

from __future__ import annotations

from memplan.ir.graph import Node
from memplan.passes.chunk import by_element, chunk_moves, products
from memplan.passes.chunk.uses import RULES, WHOLE, Facts, Use

RULE_MODULES = (by_element, chunk_moves, products)
"""Where the rules are; a rule registers itself when its module is imported."""


def uses(facts: Facts, node: Node) -> tuple[Use, ...]:
    """Every way to run ``node`` in chunks; empty if there is none, or none is known."""
    found = RULES.get(node.key)
    if found is None or facts.graph.bodies.get(node.id):
        return ()
    tensors, marked = facts.graph.tensors, facts.graph.checkpoints
    if not all(tensors[t].counted and tensors[t].static for t in (*node.reads, *node.writes)):
        return ()
    if any(t in marked for t in node.writes):
        return ()
    split = (use for use in found(facts, node) if _is_split(use))
    return tuple(split)


def _is_split(use: Use) -> bool:
    """Whether anything is chunked: of what is made alone, it may be the shape."""
    return any(axis != WHOLE for axis in (*use.reads, *use.makes))
