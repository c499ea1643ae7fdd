"""A graph with nodes that do not run unless a plan asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx

from memplan.ir.graph import ABSENT, Graph, Node, Tensor, TensorKind
from memplan.ir.graph_facts import Array
from memplan.proto.elements import tensor_bytes
from memplan.shapes.tensor_type import TensorType
from memplan.solver.problem import Form


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

    def of_kind(self, kind: str) -> tuple[Form, ...]:
        """The forms of one kind."""
        return tuple(form for form in self.forms if form.kind == kind)


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
        self.by_content: dict[tuple[int, tuple[int, ...], bytes], int] = {}
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


class Writer:
    """Writes the nodes of one form, one after the other; names begin with ``stem``."""

    def __init__(self, builder: Dormant, stem: str) -> None:
        self.builder, self.stem = builder, builder.fresh_stem(stem)

    def add(self, op: str, reads: tuple[int, ...], kind: TensorType, **given: object) -> int:
        """A node with one new output, whose id is returned."""
        return self.add_parts(op, reads, (kind,), **given)[0]

    def add_parts(
        self, op: str, reads: tuple[int, ...], kinds: tuple[TensorType, ...], **given: object
    ) -> tuple[int, ...]:
        """A node with an output of each of these types; their ids."""
        node = len(self.builder.nodes)
        outputs = tuple(self._tensor(kind, TensorKind.COMPUTED, node) for kind in kinds)
        self.builder.makers |= dict.fromkeys(outputs, node)
        self.builder.add_node(f"{self.stem}_node{node}", op, reads, outputs, given)
        return outputs

    def make(self, op: str, reads: tuple[int, ...], tensor: int, **given: object) -> int:
        """A node that makes ``tensor`` again; its id."""
        name = f"{self.stem}_node{len(self.builder.nodes)}"
        return self.builder.add_node(name, op, reads, (tensor,), given)

    def constant(self, value: Array) -> int:
        """An initializer of that content, one for all forms; its id."""
        dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        key = dtype, value.shape, value.tobytes()
        if key not in self.builder.by_content:
            kind = TensorType(dtype, value.shape)
            made = self._tensor(kind, TensorKind.INITIALIZER, ABSENT)
            self.builder.constants[self.builder.tensors[made].name] = value
            self.builder.by_content[key] = made
        return self.builder.by_content[key]

    def _tensor(self, kind: TensorType, where: TensorKind, producer: int) -> int:
        place, shape = len(self.builder.tensors), kind.sizes or ()
        nbytes, name = tensor_bytes(kind.dtype, shape), f"{self.stem}_{place}"
        self.builder.tensors.append(
            Tensor(place, name, kind.dtype, shape, nbytes, where, False, producer, ())
        )
        return place
