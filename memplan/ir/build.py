"""ONNX protobuf → :class:`Graph`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import onnx

from memplan.ir.graph import ABSENT, Body, Graph, Node, Tensor, TensorKind
from memplan.proto.marks import marked_names
from memplan.proto.nodes import captured_names, domain_of, is_constant
from memplan.proto.opset import default_opset

# Bytes per element by onnx.TensorProto.DataType; 4-bit types are packed two to a byte.
ELEMENT_BITS: dict[int, int] = {
    onnx.TensorProto.FLOAT: 32,
    onnx.TensorProto.DOUBLE: 64,
    onnx.TensorProto.FLOAT16: 16,
    onnx.TensorProto.BFLOAT16: 16,
    onnx.TensorProto.INT8: 8,
    onnx.TensorProto.UINT8: 8,
    onnx.TensorProto.INT16: 16,
    onnx.TensorProto.UINT16: 16,
    onnx.TensorProto.INT32: 32,
    onnx.TensorProto.UINT32: 32,
    onnx.TensorProto.INT64: 64,
    onnx.TensorProto.UINT64: 64,
    onnx.TensorProto.BOOL: 8,
    onnx.TensorProto.COMPLEX64: 64,
    onnx.TensorProto.COMPLEX128: 128,
    onnx.TensorProto.FLOAT8E4M3FN: 8,
    onnx.TensorProto.FLOAT8E4M3FNUZ: 8,
    onnx.TensorProto.FLOAT8E5M2: 8,
    onnx.TensorProto.FLOAT8E5M2FNUZ: 8,
    onnx.TensorProto.UINT4: 4,
    onnx.TensorProto.INT4: 4,
}
# Types that newer releases of ONNX add; an older one does not know the names.
for _name, _bits in (("FLOAT4E2M1", 4), ("FLOAT8E8M0", 8), ("UINT2", 2), ("INT2", 2)):
    if hasattr(onnx.TensorProto, _name):
        ELEMENT_BITS[getattr(onnx.TensorProto, _name)] = _bits


class TypeInfo(Protocol):
    """Element type and shape, as the model room finds them."""

    @property
    def dtype(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...
    @property
    def static(self) -> bool: ...


def tensor_bytes(dtype: int, shape: Iterable[int]) -> int:
    """Bytes of a dense tensor; 0 for types without a fixed element size (strings)."""
    bits = ELEMENT_BITS.get(dtype, 0)
    return (math.prod(shape) * bits + 7) // 8


class BodyInfo(Protocol):
    """A control-flow body as a model of its own, as the model room finds it."""

    @property
    def attribute(self) -> str: ...
    @property
    def model(self) -> onnx.ModelProto: ...
    @property
    def types(self) -> Mapping[str, TypeInfo]: ...
    @property
    def trips(self) -> int | None: ...
    @property
    def complete(self) -> bool: ...


Expand = Callable[[onnx.ModelProto, onnx.NodeProto, Mapping[str, Any]], Sequence[BodyInfo]]


def build_graph(
    model: onnx.ModelProto, types: Mapping[str, TypeInfo], expand: Expand | None = None
) -> Graph:
    """The :class:`Graph` of a checked model.

    Args:
        model: as the model room hands it on (sorted, single assignment, nodes named).
        types: type and shape of every tensor of the main graph.
        expand: finds the bodies of a control-flow node (``memplan.shapes.bodies.body_models``);
            without it, bodies are left out.
    """
    bodies: dict[int, tuple[Body, ...]] = {}
    if expand is not None:
        nodes = [proto for proto in model.graph.node if not is_constant(proto)]
        for index, proto in enumerate(nodes):
            if any(item.type == onnx.AttributeProto.GRAPH for item in proto.attribute):
                found = expand(model, proto, types)
                bodies[index] = tuple(_body(info, expand, proto.op_type) for info in found)
    return _Builder(model.graph, types).build(default_opset(model), bodies)


def _body(info: BodyInfo, expand: Expand, parent: str) -> Body:
    graph = None
    if info.complete:
        graph = replace(build_graph(info.model, info.types, expand), parent_op=parent)
    return Body(info.attribute, graph, info.trips, info.complete)


class _Builder:
    """Numbers the tensors and nodes of one ``GraphProto``."""

    def __init__(self, graph: onnx.GraphProto, types: Mapping[str, TypeInfo]) -> None:
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
            shape = (info.shape if info is not None else None) or ()
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
