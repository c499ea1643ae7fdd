"""Tensors by globs on names, as users write them."""

from __future__ import annotations

from fnmatch import fnmatchcase

from memplan.errors import UsageError
from memplan.ir.graph import Graph


def matching_tensors(graph: Graph, patterns: tuple[str, ...], option: str) -> frozenset[int]:
    """Computed tensors whose name, or whose producer's name, matches one of the globs.

    Raises:
        UsageError: a pattern matches nothing.
    """
    found: set[int] = set()
    for pattern in patterns:
        hits = {
            tensor.id
            for tensor in graph.tensors
            if tensor.producer >= 0
            and (
                fnmatchcase(tensor.name, pattern)
                or fnmatchcase(graph.nodes[tensor.producer].name, pattern)
            )
        }
        if not hits:
            raise UsageError(
                f"{option} {pattern}: no tensor or node of that name",
                "names are listed by 'memplan analyze'; fusions may have renamed them "
                "(--optimize none keeps them), passes removed them (--passes none keeps them)",
            )
        found |= hits
    return frozenset(found)
