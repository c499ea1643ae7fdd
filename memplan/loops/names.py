"""Names that no tensor of a graph or of its bodies has yet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import onnx

from memplan.proto.nodes import subgraphs


class Names:
    """Gives names out."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.outer = set(_own(graph))
        self.all = set(_names(graph))
        self.stacked: list[str] = []
        """What loops stack in addition."""

    def fresh(self, stem: str) -> str:
        """A name that stands nowhere."""
        candidates = itertools.chain([stem], (f"{stem}_{k}" for k in itertools.count(1)))
        name = next(each for each in candidates if each not in self.all)
        self.all.add(name)
        return name

    def inner(self, stem: str, body: onnx.GraphProto) -> str:
        """A name for a tensor in ``body``: ``stem`` if neither the body nor the graph around it
        has it (another body may), else a fresh one."""
        if stem not in self.outer and stem not in set(_names(body)):
            self.all.add(stem)
            return stem
        return self.fresh(stem)


def _own(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in (*graph.input, *graph.output))
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from _own(graph)
    for node in graph.node:
        for body in subgraphs(node):
            yield from _names(body)
