"""ONNX protobuf → :class:`Graph`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx

from memplan.ir.graph import ABSENT, Body, Graph, Node, Tensor, TensorKind
from memplan.proto.elements import ELEMENT_BITS, tensor_bytes
from memplan.proto.metadata import marked_names
from memplan.proto.nodes import captured_names, domain_of, is_constant, subgraphs
from memplan.proto.opset import default_opset
from memplan.shapes.complete import BodyModel, body_models
from memplan.shapes.tensor_type import Types


def build_graph(model: onnx.ModelProto, types: Types, *, in_body: bool = False) -> Graph:
    """The :class:`Graph` of a checked model, with the graphs of its control-flow bodies.

    Args:
        model: sorted, in single-assignment form, its nodes named and its dimensions bound.
        types: type and shape of every tensor of the main graph; sizes in elements.
        in_body: the model is a control-flow body.
    """
    return _Builder(model, types, in_body).build()


def _body(body: BodyModel, parent: str) -> Body:
    graph = None
    if body.complete:
        graph = replace(build_graph(body.model, body.types, in_body=True), parent_op=parent)
    return Body(body.attribute, graph, body.trips)


class _Builder:
    """Numbers the tensors and nodes of the main graph of a model."""

    def __init__(self, model: onnx.ModelProto, types: Types, in_body: bool) -> None:
        self.model = model
        self.types = types
        self.in_body = in_body
        self.bodies: dict[int, tuple[Body, ...]] = {}
        self.names: list[str] = []
        self.ids: dict[str, int] = {}
        self.kinds: list[TensorKind] = []
        self.producers: list[int] = []
        self.readers: list[list[int]] = []

    def add(self, name: str, kind: TensorKind, producer: int = ABSENT) -> int:
        new = self.ids[name] = len(self.names)
        self.names.append(name)
        self.kinds.append(kind)
        self.producers.append(producer)
        self.readers.append([])
        return new

    def build(self) -> Graph:
        graph = self.model.graph
        initialized = {tensor.name for tensor in graph.initializer}
        for value in graph.input:
            own = value.name in initialized and not self.in_body  # else it is captured
            self.add(value.name, TensorKind.INITIALIZER if own else TensorKind.INPUT)
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
            opset=default_opset(self.model),
            bodies=self.bodies,
            metadata=tuple(metadata),
            checkpoints=frozenset(
                tensor
                for tensor in (self.ids[name] for name in marked_names(graph))
                if self.kinds[tensor] is TensorKind.COMPUTED
            ),
        )

    def _node(self, index: int, proto: onnx.NodeProto) -> Node:
        ids = self.ids
        inputs = [ids[name] if name else ABSENT for name in proto.input]
        captured: tuple[int, ...] = ()
        if subgraphs(proto):
            captured = tuple(ids[name] for name in captured_names(proto) if name in ids)
            found = body_models(self.model, proto, self.types, in_body=self.in_body)
            self.bodies[index] = tuple(_body(body, proto.op_type) for body in found)
        outputs = [
            self.add(name, TensorKind.COMPUTED, index) if name else ABSENT for name in proto.output
        ]
        node = Node(
            id=index,
            name=proto.name,
            domain=domain_of(proto),
            op=proto.op_type,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            captured=captured,
            attributes=plain_attributes(proto),
        )
        for tensor in node.reads:
            self.readers[tensor].append(index)
        return node

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
    for item in proto.attribute:
        value = _PLAIN_VALUES.get(item.type)
        if value is not None:
            result[item.name] = value(item)
    return result


_PLAIN_VALUES: Mapping[int, Callable[[onnx.AttributeProto], object]] = {
    onnx.AttributeProto.INT: lambda item: item.i,
    onnx.AttributeProto.FLOAT: lambda item: item.f,
    onnx.AttributeProto.STRING: lambda item: item.s.decode(errors="replace"),
    onnx.AttributeProto.INTS: lambda item: list(item.ints),
    onnx.AttributeProto.FLOATS: lambda item: list(item.floats),
    onnx.AttributeProto.STRINGS: lambda item: [s.decode(errors="replace") for s in item.strings],
}
