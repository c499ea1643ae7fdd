"""The forward graph as the builder needs it: one flat list of named nodes, with types."""

from __future__ import annotations

import math
from collections.abc import Collection, MutableMapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from memplan.autodiff.emit.gradient_registry import registered
from memplan.autodiff.emit.value import Array
from memplan.autodiff.forward.convert import at_opset
from memplan.errors import InvalidNodeError, ModelError
from memplan.proto.edit import copied, rename_reads
from memplan.proto.limits import MOST_FOLDED
from memplan.proto.model_checks import require_valid
from memplan.proto.names import NameAuthority, defined_names
from memplan.proto.nodes import is_constant, is_standard, subgraphs
from memplan.proto.opset import allow_initializers, default_opset, lower_versions
from memplan.proto.read import check_structure
from memplan.proto.surrogates import is_surrogate
from memplan.shapes.fold import evaluate, small_constants
from memplan.shapes.infer import constant_type, infer
from memplan.shapes.one_node import infer_types
from memplan.shapes.prepare import inline_functions, name_nodes
from memplan.shapes.shape_checks import check_stated, require_possible
from memplan.shapes.tensor_type import FLOATS, UNKNOWN, UNNAMED, Dim, TensorType, read_type

OLDEST_OPSET = 18
"""From this one on, what rules meet and make has one form: axes are inputs, scatters add."""
_SMALL = 64


def flat_copy(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with model-local functions inlined, every node named, at a new opset if its own is
    old, and of versions that the runtime reads (:func:`lower_versions`).

    Function operators of ONNX that have a gradient of their own stay.

    Raises:
        ModelError: a function cannot be inlined, or ONNX's converter refuses an operator.
    """
    copy = copied(model)
    allow_initializers(copy)
    kept = frozenset(op for domain, op in registered() if domain == "")
    copy, _ = inline_functions(copy, kept)
    if model.functions:
        check_structure(copy, Path("the model with its functions inlined"))
    lower_versions(copy)
    if default_opset(copy) < OLDEST_OPSET:
        copy = at_opset(copy)
    name_nodes(copy.graph)
    for node in copy.graph.node:
        for body in subgraphs(node):
            _lift_weights(body, copy.graph)
    return copy


def flat_checked(model: onnx.ModelProto) -> onnx.ModelProto:
    """A flat copy of a forward graph that is valid, and whose shapes fit its operators and are
    those that its inputs make: gradient rules take that for granted.

    Raises:
        ModelError: see :func:`flat_copy` and :func:`~memplan.shapes.shape_checks.check_stated`; or
            what the ONNX checker refuses.
    """
    require_valid(model)
    check_stated(model)
    flat = flat_copy(model)
    check_stated(flat)
    return flat


def _lift_weights(body: onnx.GraphProto, graph: onnx.GraphProto) -> None:
    """Move large constants of a body into the main graph: both parts read the same one there, and
    it can be trained."""
    for node in body.node:
        for inner in subgraphs(node):
            _lift_weights(inner, graph)
    large = [t for t in body.initializer if t.data_type in FLOATS and math.prod(t.dims) > _SMALL]
    free = NameAuthority(defined_names(graph, bodies=False))
    names: dict[str, str] = {}
    for tensor in large:
        name = free.fresh(tensor.name)
        names[tensor.name] = name
        graph.initializer.append(tensor)
        graph.initializer[-1].name = name
        body.initializer.remove(tensor)
    for node in body.node:
        rename_reads(node, names)


def constants_of(graph: onnx.GraphProto, trained: Collection[str]) -> dict[str, Array]:
    """Contents of small constants; those of ``trained`` change and are none."""
    found = small_constants(graph)
    return {name: array for name, array in found.items() if name not in trained}


class Annotator:
    """Finds types, node by node, with a name for every dimension that has no size.

    Whole numbers that follow from constants alone (the axes that exporters put together) become
    constants, too.
    """

    def __init__(
        self, model: onnx.ModelProto, constants: MutableMapping[str, Array], mark: str = ""
    ) -> None:
        self.model = model
        self.constants = constants
        self.left = MOST_FOLDED
        self.mark = mark
        self.types: dict[str, TensorType] = {}
        self.known: dict[str, TensorType] = {}
        self.dims = 0

    def run(self) -> dict[str, TensorType]:
        """The type of every tensor of the main graph."""
        self.start()
        for node in self.model.graph.node:
            self.visit(node)
        self.finish()
        return self.types

    def start(self) -> None:
        """Note what is there before the first node."""
        graph = self.model.graph
        stated = infer(self.model).graph
        self.known = {
            value.name: read_type(value.type)
            for value in (*stated.input, *stated.value_info, *stated.output)
        }
        for value in graph.input:
            self.note(value.name, UNKNOWN)
        for tensor in graph.initializer:
            self.types[tensor.name] = TensorType(tensor.data_type, tuple(tensor.dims))
        for sparse in graph.sparse_initializer:
            values = sparse.values
            self.types[values.name] = TensorType(values.data_type, tuple(sparse.dims))

    def finish(self) -> None:
        """Check the whole.

        Raises:
            ModelError: a tensor is too large.
        """
        require_possible(self.types)

    def visit(self, node: onnx.NodeProto) -> None:
        """Find the types of a node's outputs, where those of its inputs are there.

        Raises:
            ModelError: its inputs do not fit it.
        """
        if is_constant(node):
            constant = constant_type(node)
            if constant is not None:
                self.types[node.output[0]] = TensorType(constant.dtype, constant.shape)
                return
        if is_surrogate(node):
            for name, value in zip(node.output, node.input, strict=False):
                self.note(name, self.types.get(value, UNKNOWN))
            return
        try:
            found = infer_types(node, self.types, self.constants, default_opset(self.model))
        except onnx.shape_inference.InferenceError as error:
            if subgraphs(node):  # a body's shapes may change from step to step
                self._note_all(node, (UNKNOWN,) * len(node.output))
                return
            raise ModelError(
                f"the shapes do not fit {node.op_type} '{node.name}': {error}",
                "ONNX Runtime would refuse the model too",
            ) from None
        except onnx.checker.ValidationError as error:
            refused = InvalidNodeError(
                f"{node.op_type} '{node.name}' is not valid: {error}",
                "use float16 or float32" if "unsupported type" in str(error) else "",
            )
            refused.node = node.name
            raise refused from None
        self._note_all(node, found)
        self._fold(node)

    def _fold(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Shape" and is_standard(node.domain):
            self._fold_shape(node)
            return
        if self.left < 0 or any(name not in self.constants for name in node.input if name):
            return
        for name, array in evaluate(self.model, node, self.constants, self.types).items():
            self.left -= array.size
            if array.dtype.kind in "iub":
                self.constants[name] = array

    def _fold_shape(self, node: onnx.NodeProto) -> None:
        """The sizes that a Shape asks for, where all of these are fixed: an exporter's recurrent
        layers find their hidden size so."""
        shape = self.types.get(node.input[0], UNKNOWN).shape
        if shape is None:
            return
        bounds = {item.name: item.i for item in node.attribute}
        part = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
        if part and all(isinstance(dim, int) for dim in part):
            self.constants[node.output[0]] = np.asarray(part, dtype=np.int64)

    def _note_all(self, node: onnx.NodeProto, found: Sequence[TensorType]) -> None:
        for name, mine in zip(node.output, found, strict=True):
            if name:
                self.note(name, mine)

    def note(self, name: str, one: TensorType) -> None:
        """Take the better of a finding and of what was stated or inferred before, for each
        dimension: a size, then a name."""
        other = self.known.get(name, UNKNOWN)
        dtype = one.dtype or other.dtype
        first = one.shape if one.shape is not None else other.shape
        second = other.shape if other.shape is not None else one.shape
        if first is None or second is None or len(first) != len(second):
            self.types[name] = TensorType(dtype, first)
            return
        shape = tuple(self._best(a, b) for a, b in zip(first, second, strict=True))
        self.types[name] = TensorType(dtype, shape)

    def _best(self, one: Dim, other: Dim) -> Dim:
        for dim in (one, other):
            if isinstance(dim, int):
                return dim
        if one or other:
            return one or other
        self.dims += 1
        return f"{UNNAMED}{self.mark}{self.dims}"
