"""A graph with nodes that do not run unless a plan asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from memplan.ir.graph import ABSENT, Graph, Node, Tensor, TensorKind
from memplan.solver.problem import Form

PACKED, ON_HOST = "packed", "on the host"
"""Kinds of forms."""

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Extended:
    """A graph with dormant nodes appended.

    ``makers`` maps tensor id → dormant node that makes it again; ``constants`` are the new
    initializers by name; ``first_dormant`` is the id of the first dormant node. ``forms`` are the
    other forms in which tensors may be kept.
    """

    graph: Graph
    makers: Mapping[int, int]
    constants: Mapping[str, Array]
    first_dormant: int
    forms: tuple[Form, ...] = ()

    @property
    def copies(self) -> tuple[Form, ...]:
        """The forms that are copies on the host."""
        return tuple(form for form in self.forms if form.kind == ON_HOST)


class Dormant:
    """Appends tensors and nodes with the next free ids to ``graph``."""

    def __init__(self, graph: Graph, provider: str) -> None:
        self.graph = graph
        self.provider = provider
        self.tensors = list(graph.tensors)
        self.nodes = list(graph.nodes)
        self.makers: dict[int, int] = {}
        self.constants: dict[str, Array] = {}
        self.forms: list[Form] = []
        self.taken = {tensor.name for tensor in graph.tensors} | {n.name for n in graph.nodes}

    def fresh_stem(self, stem: str) -> str:
        """A stem that no name begins with: a file that was rewritten before has some of them."""
        free, count = stem, 2
        while any(name.startswith(f"{free}_") for name in self.taken):
            free, count = f"{stem}{count}", count + 1
        return free

    def finish(self) -> Extended:
        """The graph with all that was appended."""
        graph = replace(
            self.graph,
            nodes=tuple(self.nodes),
            tensors=tuple(self.tensors),
            metadata=self.graph.metadata + ({},) * (len(self.nodes) - len(self.graph.nodes)),
        )
        first = len(self.graph.nodes)
        return Extended(graph, self.makers, self.constants, first, tuple(self.forms))

    def add_tensor(self, name: str, like: Tensor, kind: TensorKind, producer: int) -> int:
        """A tensor with the type and shape of another; its id."""
        tensor = replace(
            like,
            id=len(self.tensors),
            name=name,
            kind=kind,
            producer=producer,
            readers=(),
            is_output=False,
        )
        self.tensors.append(tensor)
        return tensor.id

    def add_constant(self, name: str, value: Array, like: Tensor) -> int:
        """An initializer of the content ``value``; its id."""
        self.constants[name] = value
        tensor = replace(like, shape=value.shape, nbytes=value.nbytes)
        return self.add_tensor(name, tensor, TensorKind.INITIALIZER, ABSENT)

    def add_node(
        self,
        name: str,
        op: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        attributes: Mapping[str, object] | None = None,
    ) -> int:
        """A node of the standard operators; its id."""
        index = len(self.nodes)
        self.nodes.append(Node(index, name, "", op, inputs, outputs, (), dict(attributes or {})))
        return index
