"""Names that are not in use yet: one authority for tensors, nodes and dimensions alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from memplan.proto.nodes import all_nodes, subgraphs


class NameAuthority:
    """Gives out names that nobody has (``onnx_ir._name_authority`` is the same idea).

    ``taken`` are the names in use. Names may be added to it, never taken out: the authority
    remembers for every stem how far it has counted, so that many names of one stem cost linear
    time.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)
        self._next: dict[tuple[str, int], int] = {}

    def fresh(self, stem: str, first: int = 1) -> str:
        """``stem``, or ``stem_1``, ``stem_2``, ... (counted from ``first``): what is free. It is
        taken from then on."""
        name = stem
        while name in self.taken:
            count = self._next.get((stem, first), first)
            self._next[stem, first] = count + 1
            name = f"{stem}_{count}"
        self.taken.add(name)
        return name


def defined_names(graph: onnx.GraphProto, *, bodies: bool = True) -> Iterator[str]:
    """Names of the tensors that a graph defines or hands out; with those inside its ``bodies``."""
    yield from (value.name for value in (*graph.input, *graph.output))
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output
        for body in subgraphs(node) if bodies else ():
            yield from defined_names(body)


def names_in_use(graph: onnx.GraphProto) -> set[str]:
    """What a graph and its bodies call tensors and nodes."""
    return {*defined_names(graph), *(node.name for node in all_nodes(graph.node))}
