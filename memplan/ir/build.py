"""ONNX protobuf → :class:`Graph`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx

from memplan.ir.graph import ABSENT, Body, Graph, Node, Tensor, TensorKind
from memplan.proto.elements import ELEMENT_BITS, tensor_bytes
from memplan.proto.metadata import marked_names
from memplan.proto.nodes import captured_names, domain_of, is_constant, subgraphs
from memplan.proto.opset import default_opset
from memplan.shapes.bodies import BodyModel, body_models
from memplan.shapes.tensor_type import Types


def build_graph(model: onnx.ModelProto, types: Types, *, in_body: bool = False) -> Graph:
    """The :class:`Graph` of a checked model, with the graphs of its control-flow bodies.

    Args:
        model: sorted, in single-assignment form, its nodes named and its dimensions bound.
        types: type and shape of every tensor of the main graph; sizes in elements.
        in_body: the model is a control-flow body.
    """
    bodies: dict[int, tuple[Body, ...]] = {}
    nodes = (node for node in model.graph.node if not is_constant(node))
    for index, node in enumerate(nodes):
        if any(True for _ in subgraphs(node)):
            found = body_models(model, node, types, in_body=in_body)
            bodies[index] = tuple(_body(body, node.op_type) for body in found)
    return _Builder(model.graph, types).build(default_opset(model), bodies)


def _body(body: BodyModel, parent: str) -> Body:
    graph = None
    if body.complete:
        graph = replace(build_graph(body.model, body.types, in_body=True), parent_op=parent)
    return Body(body.attribute, graph, body.trips)


class _Builder:
    """Numbers the tensors and nodes of one ``GraphProto``."""

    def __init__(self, graph: onnx.GraphProto, types: Types) -> None:
        self.graph = graph
        self.types = types
        self.names: list[str] = []
        self.ids: dict[str, int] = {}
        self.kinds: list[TensorKind] = []
        self.producers: list[int] = []
        self.readers: list[list[int]] = []

    def add(self, name: str, kind: TensorKind, producer: int = ABSENT) -> int:
        self.ids[name] = len(self.names)
        self.names.append(name)
        self.kinds.append(kind)
        self.producers.append(producer)
        self.readers.append([])
        return self.ids[name]

    def build(self, opset: int, bodies: Mapping[int, tuple[Body, ...]]) -> Graph:
        graph = self.graph
        initialized = {tensor.name for tensor in graph.initializer}
        for value in graph.input:
            kind = TensorKind.INITIALIZER if value.name in initialized else TensorKind.INPUT
            self.add(value.name, kind)
        sparse = [tensor.values.name for tensor in graph.sparse_initializer]
        for name in (*(tensor.name for tensor in graph.initializer), *sparse):
            if name not in self.ids:
                self.add(name, TensorKind.INITIALIZER)
        nodes: list[Node] = []
        metadata: list[Mapping[str, str]] = []
        for proto in graph.node:
            if is_constant(proto):
                self.add(proto.output[0], TensorKind.INITIALIZER)
                continue
            nodes.append(self._node(len(nodes), proto))
            metadata.append({item.key: item.value for item in proto.metadata_props})
        outputs = tuple(self.ids[value.name] for value in graph.output)
        return Graph(
            name=graph.name,
            nodes=tuple(nodes),
            tensors=self._tensors(set(outputs)),
            inputs=tuple(self.ids[value.name] for value in graph.input),
            outputs=outputs,
            opset=opset,
            bodies=bodies,
            metadata=tuple(metadata),
            checkpoints=frozenset(
                tensor
                for tensor in (self.ids[name] for name in marked_names(graph))
                if self.kinds[tensor] is TensorKind.COMPUTED
            ),
        )

    def _node(self, index: int, proto: onnx.NodeProto) -> Node:
        inputs = tuple(self.ids[name] if name else ABSENT for name in proto.input)
        captured = tuple(self.ids[name] for name in captured_names(proto) if name in self.ids)
        for tensor in (*inputs, *captured):
            if tensor != ABSENT:
                self.readers[tensor].append(index)
        outputs = tuple(
            self.add(name, TensorKind.COMPUTED, index) if name else ABSENT for name in proto.output
        )
        return Node(
            id=index,
            name=proto.name,
            domain=domain_of(proto),
            op=proto.op_type,
            inputs=inputs,
            outputs=outputs,
            captured=captured,
            attributes=plain_attributes(proto),
        )

    def _tensors(self, outputs: set[int]) -> tuple[Tensor, ...]:
        result = []
        for index, name in enumerate(self.names):
            info = self.types.get(name)
            dtype = info.dtype if info is not None else 0
            shape = (info.sizes if info is not None else None) or ()
            result.append(
                Tensor(
                    id=index,
                    name=name,
                    dtype=dtype,
                    shape=shape,
                    nbytes=tensor_bytes(dtype, shape),
                    kind=self.kinds[index],
                    is_output=index in outputs,
                    producer=self.producers[index],
                    readers=tuple(self.readers[index]),
                    counted=dtype in ELEMENT_BITS,
                    static=info is None or info.static,
                    names_seen=None if info is None else info.seen,
                )
            )
        return tuple(result)


def plain_attributes(proto: onnx.NodeProto) -> dict[str, object]:
    """Numbers, strings and lists of them; tensors and graphs are left out."""
    result: dict[str, object] = {}
    kinds = onnx.AttributeProto
    for item in proto.attribute:
        if item.type == kinds.INT:
            result[item.name] = item.i
        elif item.type == kinds.FLOAT:
            result[item.name] = item.f
        elif item.type == kinds.STRING:
            result[item.name] = item.s.decode(errors="replace")
        elif item.type == kinds.INTS:
            result[item.name] = list(item.ints)
        elif item.type == kinds.FLOATS:
            result[item.name] = list(item.floats)
        elif item.type == kinds.STRINGS:
            result[item.name] = [text.decode(errors="replace") for text in item.strings]
    return result
