"""Which shapes ONNX Runtime knows before it runs a model.

Its memory planner works in place and reuses buffers only where it knows the dimensions of both
tensors, as numbers or as the same symbols. It finds them as ONNX shape inference does, from what
the file states, and by rules of its own for the operators of ``com.microsoft``. Values are
propagated through ``Shape`` and a ``Cast`` behind it, and no further (measured on 1.31.1:
``Shape → Gather → Concat → Reshape`` hides a shape).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from memplan.proto.nodes import is_standard
from memplan.shapes.infer import declared_values, is_complete, stated_types
from memplan.shapes.tensor_type import UNKNOWN, UNNAMED, Shape, TensorType, Types, parse_type
from memplan.shapes.walk import TypeWalk

# Fused operators whose outputs have the shape of the standard operator's.
_STANDARD = {"FusedConv": "Conv", "FusedGemm": "Gemm", "BiasGelu": "Add", "BiasAdd": "Add"}
_ELEMENTWISE = frozenset({"Gelu", "FastGelu", "QuickGelu", "SkipLayerNormalization"})
# Between device and host: ONNX does not know them, the runtime hands type and shape on.
_COPIES = frozenset({"MemcpyToHost", "MemcpyFromHost"})
_ATTRIBUTES = {
    "Conv": frozenset({"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}),
    "Gemm": frozenset({"alpha", "beta", "transA", "transB"}),
}


def with_visibility(model: onnx.ModelProto, types: Types) -> dict[str, TensorType]:
    """``types`` as the runtime sees them: dimensions unknown, by number, or by symbol.

    Args:
        model: with the ``value_info`` that the file has; dimensions that are not bound stay
            unknown to the runtime too.
        types: element type and shape of every tensor, as memplan found them.
    """
    if is_complete(model.graph, stated_types(model.graph)):
        return dict(types)
    visible = visible_shapes(model, types)
    return {name: as_seen(value, visible.get(name)) for name, value in types.items()}


def as_seen(value: TensorType, shape: Shape | None) -> TensorType:
    """A type, if the runtime knows ``shape`` (None: no shape) of it."""
    if not value.dtype:
        return value
    if shape is None:
        return replace(value, static=False)
    named = any(isinstance(dim, str) for dim in shape)
    return replace(value, seen=shape) if named else value


def visible_names(model: onnx.ModelProto, types: Types) -> frozenset[str]:
    """Names of the tensors of :func:`visible_shapes`."""
    return frozenset(visible_shapes(model, types))


def visible_shapes(model: onnx.ModelProto, types: Types) -> Mapping[str, Shape]:
    """Dimensions of the tensors whose dimensions the runtime knows when it loads ``model``.

    Operators that neither ONNX nor this module knows are taken to show the shapes of their outputs
    as soon as the shapes of all their inputs are visible.

    Args:
        model: as for :func:`with_visibility`.
        types: element type and shape of every tensor, as memplan found them.
    """
    walk = _RuntimeWalk(model, types)
    walk.run()
    shapes = ((name, walk.shape(name)) for name in walk.types)
    return {name: shape for name, shape in shapes if shape is not None}


class _RuntimeWalk(TypeWalk):
    """What the runtime knows before it runs; ``found`` are the types as memplan found them."""

    def __init__(self, model: onnx.ModelProto, found: Types) -> None:
        super().__init__(model)
        self.found = found
        self._shapes: set[str] = set()
        self._symbols = {  # inference makes up further ones
            dim.dim_param
            for value in declared_values(model.graph)
            for dim in value.type.tensor_type.shape.dim
            if dim.dim_param
        }

    def shape(self, name: str) -> Shape | None:
        """A shape, if all its dimensions are numbers or symbols of the file."""
        found = parse_type(self.types.get(name, b""))
        if not found.dtype or found.shape is None:
            return None
        known = all(isinstance(dim, int) or dim in self._symbols for dim in found.shape)
        return found.shape if known else None

    def visit(self, node: onnx.NodeProto) -> None:
        """Find the types of a node's outputs, and the values of shapes."""
        for part in standard_nodes(node, self.found):
            super().visit(part)
            if not is_standard(part.domain):
                self._show(part)
        if is_standard(node.domain) and node.output:
            self._follow(node)

    def _show(self, node: onnx.NodeProto) -> None:
        """Of an operator that ONNX does not know, the types of its outputs are known, and their
        shapes once those of all inputs are."""
        visible = all(self.shape(name) is not None for name in node.input if name)
        for name in node.output:
            mine = self.found.get(name, UNKNOWN)
            if not name or not mine.dtype:
                continue
            if visible and mine.sizes is not None and self.shape(name) is None:
                self.learn(name, TensorType(mine.dtype, mine.sizes))
            elif not self.types[name]:
                self.learn(name, TensorType(mine.dtype, None))

    def _follow(self, node: onnx.NodeProto) -> None:
        """Values of a ``Shape`` of which all sizes are known, and of a ``Cast`` of one."""
        if node.op_type == "Shape":
            bounds = {item.name: item.i for item in node.attribute}
            whole = self.shape(node.input[0])
            part = () if whole is None else whole[bounds.get("start", 0) : bounds.get("end")]
            if whole is not None and all(isinstance(dim, int) for dim in part):
                self._shapes.add(node.output[0])
                self.hold(node.output[0], np.asarray(part, np.int64))
        elif node.op_type == "Cast" and node.input[0] in self._shapes and _to_int64(node):
            self._shapes.add(node.output[0])
            self.hold(node.output[0], self.values[node.input[0]])


def standard_nodes(node: onnx.NodeProto, types: Types) -> list[onnx.NodeProto]:
    """For a fused operator, standard ones whose outputs have the same shapes; else the node."""
    if node.op_type in _COPIES and is_standard(node.domain):
        return [helper.make_node("Identity", node.input[:1], node.output[:1])]
    if node.domain != "com.microsoft":
        return [node]
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    outputs = list(node.output[:1])
    if node.op_type in _ELEMENTWISE and len(node.output) == 1:
        return [helper.make_node("Identity", node.input[:1], outputs)]
    if node.op_type in _STANDARD:
        op = _STANDARD[node.op_type]
        kept = {k: v for k, v in attributes.items() if k in _ATTRIBUTES.get(op, ())}
        return [helper.make_node(op, node.input[: 2 if op == "Add" else 3], outputs, **kept)]
    if node.op_type != "FusedMatMul" or len(node.input) != 2:
        return [node]
    result, sides = [], []
    for name, side in zip(node.input, "AB", strict=True):
        perm = list(range(len(types[name].shape or ()) if name in types else 0))
        if attributes.get(f"transBatch{side}") and len(perm) > 2:
            perm = [*perm[1:-1], perm[0], perm[-1]]
        if attributes.get(f"trans{side}") and len(perm) > 1:
            perm = [*perm[:-2], perm[-1], perm[-2]]
        if perm != sorted(perm):
            turned = f"{UNNAMED}{outputs[0]}/trans{side}"
            result.append(helper.make_node("Transpose", [name], [turned], perm=perm))
            name = turned
        sides.append(name)
    return [*result, helper.make_node("MatMul", sides, outputs)]


def _to_int64(node: onnx.NodeProto) -> bool:
    return any(item.name == "to" and item.i == onnx.TensorProto.INT64 for item in node.attribute)
