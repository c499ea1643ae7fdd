"""The type of every tensor of a graph, node by node.

Each node is asked once, after those that it reads, so a chain takes one look however long it is,
and answers are remembered by kind of node (:func:`memplan.shapes.one_node.infer_node`). What a
walk knows beside ONNX's inference and the file depends on who asks: :mod:`memplan.shapes.complete`
for all that can be found out, :mod:`memplan.shapes.visible` for what the runtime knows.
"""

from __future__ import annotations

from functools import lru_cache

import onnx

from memplan.proto.nodes import domain_of, is_constant, is_standard
from memplan.proto.opset import schema_of
from memplan.shapes.fold import small_constants
from memplan.shapes.infer import Array, constant_type, declared_values, numeric_type
from memplan.shapes.one_node import Content, Inferred, content_of, infer_node
from memplan.shapes.tensor_type import UNKNOWN, Dim, TensorType, parse_type, type_bytes


class TypeWalk:
    """What ONNX's inference and the file together say of the main graph of ``model``.

    ``types`` are serialized ``TypeProto`` by name, as there are sequences and the like; ``known``
    is the same as memplan has it: a shape only where all its dimensions are numbers. ``values`` are
    contents of small constants, and of what else a walk finds out.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.model = model
        self.stated = {v.name: v.type.SerializeToString() for v in declared_values(graph)}
        self.types: dict[str, bytes] = {}
        self.known: dict[str, TensorType] = {}
        for value in graph.input:
            self.note(value.name, self.stated[value.name])
        for tensor in graph.initializer:
            self.learn(tensor.name, TensorType(tensor.data_type, tuple(tensor.dims)))
        for sparse in graph.sparse_initializer:
            self.learn(sparse.values.name, TensorType(sparse.values.data_type, tuple(sparse.dims)))
        self.values: dict[str, Array] = {}
        self.contents: dict[str, Content] = {}
        for name, array in small_constants(graph, defaults=True).items():
            self.hold(name, array)
        imports = model.opset_import
        self._versions = {"" if is_standard(i.domain) else i.domain: i.version for i in imports}
        header = onnx.ModelProto(ir_version=model.ir_version, opset_import=imports)
        self._header = header.SerializeToString()

    def run(self) -> None:
        """Visit every node, in the order of the file."""
        for node in self.model.graph.node:
            self.visit(node)

    def visit(self, node: onnx.NodeProto) -> None:
        """Find the types of a node's outputs."""
        for name, mine in zip(node.output, self.infer(node).types, strict=True):
            if name:
                self.note(name, agreed(mine, self.stated.get(name, b"")))

    def infer(self, node: onnx.NodeProto) -> Inferred:
        """What ONNX's inference says of a node."""
        if is_constant(node):
            found = constant_type(node)
            return Inferred((b"" if found is None else type_bytes(found),))
        domain = domain_of(node)
        if schema_of(domain, node.op_type, self._versions.get(domain, 0)) is None:
            return Inferred((b"",) * len(node.output))
        return infer_node(node, self.types, self.contents, self._header)

    def note(self, name: str, found: bytes) -> None:
        """Take a type over."""
        self.types[name] = found
        self.known[name] = numeric_type(found)

    def learn(self, name: str, found: TensorType) -> None:
        """Take over what something else than inference says of a tensor."""
        self.types[name] = type_bytes(found)
        self.known[name] = found

    def hold(self, name: str, array: Array) -> None:
        """Take over what a small tensor holds."""
        self.values[name] = array
        content = content_of(array)
        if content is not None:
            self.contents[name] = content


@lru_cache(maxsize=4096)
def agreed(mine: bytes, told: bytes) -> bytes:
    """What inference and the file say of a tensor together, each dimension by whom knows it; what
    the file says where they contradict each other. ONNX's inference of whole graphs does the same.
    """
    if not mine or not told or mine == told:
        return mine or told
    one, other = parse_type(mine), parse_type(told)
    if UNKNOWN in (one, other) or (one.dtype and other.dtype and one.dtype != other.dtype):
        return told
    shape = one.shape if other.shape is None else other.shape
    if one.shape is not None and other.shape is not None:
        if len(one.shape) != len(other.shape) or any(map(_differ, one.shape, other.shape)):
            return told
        shape = tuple(map(_known_dim, one.shape, other.shape))
    return type_bytes(TensorType(one.dtype or other.dtype, shape))


def _differ(mine: Dim, told: Dim) -> bool:
    return isinstance(mine, int) and isinstance(told, int) and mine != told


def _known_dim(mine: Dim, told: Dim) -> Dim:
    """A size, then a name."""
    return mine if isinstance(mine, int) or told == "" else told
