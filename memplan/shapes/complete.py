"""The type and shape of every tensor: all that can tell one, taken together.

Sources, best first: ONNX shape inference, what the file states, rules of our own for operators that
ONNX does not know, such as shape(X_grad) = shape(X), and a stated shape whose symbolic expression
(``2*N``) can be evaluated.

Inside control-flow bodies the same is done for the shapes that the node around them has. A tensor
that a loop carries is taken to keep its shape from one iteration to the next, as ONNX Runtime's
exporters guarantee; where inference inside says otherwise the body counts as unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import onnx
from onnx import numpy_helper

from memplan.errors import ModelError
from memplan.proto.bare import without_weights
from memplan.proto.edit import copied, replace_nodes
from memplan.proto.limits import MOST_FOLDED
from memplan.proto.loop_node import LOOP_FIXED, MOST_TRIPS, LoopLayout, layout_of
from memplan.proto.nodes import free_names, is_standard, operator_key
from memplan.shapes.fold import evaluate, small_constant, small_constants, whole_numbers
from memplan.shapes.infer import (
    Array,
    declared_values,
    infer,
    is_complete,
    replace_by_constants,
    state_types,
    stated_types,
)
from memplan.shapes.nchwc import in_blocks, nchwc_type
from memplan.shapes.one_node import is_mended
from memplan.shapes.shape_checks import StrictWalk, require_possible_body, types_at_once
from memplan.shapes.tensor_type import (
    UNKNOWN,
    Shape,
    TensorType,
    Types,
    known_shapes,
    read_type,
    type_bytes,
    value_info,
)
from memplan.shapes.training_ops import bound_of_sum, training_type
from memplan.shapes.visible import as_seen, standard_nodes


def value_types(bound: onnx.ModelProto) -> tuple[dict[str, TensorType], list[str]]:
    """Type and shape of every tensor of the main graph of ``bound`` (dimensions bound).

    A shape that no source gives is None; :func:`memplan.shapes.shape_checks.require_shapes` turns
    that into an error. The second result names tensors whose shape is only an upper bound.

    Raises:
        ModelError: what the file states does not fit; see
            :class:`memplan.shapes.shape_checks.StrictWalk`.
    """
    types = types_at_once(bound)
    if types is not None:
        return types, []
    walk = _CompleteWalk(bound)
    walk.run()
    while not is_complete(bound.graph, walk.known):  # each round tells a shape, or is the last
        known = known_shapes(walk.known)
        walk.propagate()
        walk.run()
        learnt = known_shapes(walk.known) != known
        if walk.bounding and not learnt:
            break
        walk.bounding = not learnt
    return walk.known, walk.bounded


class _CompleteWalk(StrictWalk):
    """What small tensors hold is computed, and what inference does not know is found by rules;
    ``bounding``: also bounds, of the sums in ``bounded`` whose shape nothing else tells."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.bounding = False
        self.bounded: list[str] = []
        self._computed: dict[str, Array] = {}
        self._left = MOST_FOLDED
        self._in_blocks = in_blocks(model.graph)
        self._blocked: set[str] = set()

    def visit(self, node: onnx.NodeProto) -> None:
        """Find the types of a node's outputs where they are not known, and what they hold."""
        if self._lacking(node):
            if not is_standard(node.domain):
                self._visit_parts(node)
            if is_standard(node.domain) or self._lacking(node):
                super().visit(node)
        if self._in_blocks or self._lacking(node):
            self._apply_rules(node)
        if self._left >= 0:
            for name, array in evaluate(self.model, node, self.values, self.known).items():
                self._left -= array.size
                self._computed[name] = array
                self.hold(name, array)
                if self.known[name].shape is None:
                    dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                    self.learn(name, TensorType(int(dtype), array.shape))

    def _visit_parts(self, node: onnx.NodeProto) -> None:
        """Find the types of a fused operator's outputs as those of what it was made of. What the
        file says of them is not held against that: ONNX Runtime 1.31.1 states a wrong shape for
        FusedMatMul where it broadcasts."""
        parts = standard_nodes(node, self.known)
        if parts == [node]:
            return
        told = {name: self.stated.pop(name) for name in node.output if name in self.stated}
        for part in parts:
            super().visit(part)
        self.stated |= told

    def is_certain(self, node: onnx.NodeProto) -> bool:
        """See :class:`StrictWalk`; an initializer that was computed with may be replaced."""
        return super().is_certain(node) and self._computed.keys().isdisjoint(node.input)

    def propagate(self) -> None:
        """Let ONNX propagate values through the whole graph: it follows sizes of tensors of which
        only some are known, too."""
        working = copied(self.model)
        replace_by_constants(working.graph, self._computed)
        state_types(working.graph, self.known)
        # What inference says of some operators is not so, and all that it makes of that.
        wrong = [name for node in working.graph.node if is_mended(node) for name in node.output]
        replace_nodes(working.graph, [n for n in working.graph.node if not is_mended(n)])
        working.graph.input.extend(value_info(n, self.known.get(n, UNKNOWN)) for n in wrong if n)
        for name, found in stated_types(infer(working).graph).items():
            if found.shape is not None and self.known.get(name, UNKNOWN).shape is None:
                self.stated[name] = type_bytes(found)

    def _lacking(self, node: onnx.NodeProto) -> list[str]:
        return [n for n in node.output if n and self.known.get(n, UNKNOWN).shape is None]

    def _apply_rules(self, node: onnx.NodeProto) -> None:
        lacking = self._lacking(node)
        of_bodies = output_types(self.model, node, self.known) if lacking else {}
        blocked = nchwc_type(node, self.known, self._blocked) if self._in_blocks else None
        for index, name in enumerate(node.output):
            if name not in lacking:
                continue
            found = of_bodies.get(name) or training_type(node, index, self.known)
            if found is None or found.shape is None:
                found = blocked if index == 0 else None
            if found is None and self.bounding:
                found = bound_of_sum(node, self.known)
                self.bounded += [name] if found is not None and found.shape is not None else []
            if found is not None and found.shape is not None:
                self.learn(name, found)


_CONTROL_FLOW = frozenset({":If", ":Loop", ":Scan"})


@dataclass(frozen=True, slots=True)
class BodyModel:
    """One body as a model of its own: captured tensors are inputs, small constants with their
    content; the outer shapes are bound.

    ``trips``: iterations per execution; None if data decides.
    """

    attribute: str
    model: onnx.ModelProto
    types: Types
    trips: int | None
    complete: bool


def body_models(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    types: Types,
    *,
    in_body: bool = False,
) -> list[BodyModel]:
    """The bodies of ``node`` with shapes inferred from ``types`` of the graph around it.

    ``in_body``: that graph is a body itself. How an operator that nobody knows calls its bodies is
    not known either: they are not complete.
    """
    known_call = operator_key(node) in _CONTROL_FLOW
    found = []
    for attribute in node.attribute:
        if attribute.type != onnx.AttributeProto.GRAPH:
            continue
        body = _as_model(model, attribute.g, types)
        unbound = copied(body)
        if known_call:
            _bind_inputs(body, node, types)
        bare = without_weights(body, statements=True)
        inside = _types_inside(bare.SerializeToString(deterministic=True))
        seen = _seen_by_the_runtime(unbound, attribute.g, inside, types, in_body)
        inferred = {name: as_seen(each, seen.get(name)) for name, each in inside.items()}
        trips = _trips(model, node, types) if known_call else None
        require_possible_body(inferred, trips, f"{node.op_type} '{node.name}'")
        names = [name for inner in body.graph.node for name in inner.output if name]
        complete = known_call and all(
            inferred.get(name, UNKNOWN).shape is not None for name in names
        )
        found.append(BodyModel(attribute.name, body, inferred, trips, complete))
    return found


@lru_cache(maxsize=64)
def _types_inside(content: bytes) -> Types:
    """Types in a serialized body, as of a main graph; but what a body says of shapes that do not
    fit is the runtime's to say, if ever it runs it.

    Remembered, as the walk around asks for a body several times: bodies nest, and the innermost of
    d would be walked 3^d times.
    """
    body = onnx.ModelProto.FromString(content)
    try:
        types, bounded = value_types(body)
    except ModelError:
        bounded = [""]
    return stated_types(infer(body).graph) if bounded else types


def _seen_by_the_runtime(
    body: onnx.ModelProto, graph: onnx.GraphProto, inside: Types, types: Types, in_body: bool
) -> dict[str, Shape]:
    """Shapes that the runtime knows before it runs the body ``graph``, in numbers or in symbols of
    the file.

    It infers from what the body declares, and from captured tensors. Of the main graph it finds out
    more by itself than memplan can tell (:func:`memplan.shapes.visible.visible_names`). So what
    memplan does not see there counts as known for the body's outputs: If then has its own from the
    start; and as unknown for what is between, which then shares no buffer. Both are the safe side.
    """
    model = copied(body)
    parts = [n for each in body.graph.node for n in standard_nodes(each, inside)]
    replace_nodes(model.graph, parts)
    model.graph.value_info.extend(graph.value_info)
    outputs = {value.name for value in graph.output}
    found = _inferred(model)
    captured = [(value, types[value.name]) for value in model.graph.input[len(graph.input) :]]
    less = [(value, told) for value, told in captured if not told.static or told.seen is not None]
    for value, told in less:
        shape = told.seen if told.static else None
        value.CopyFrom(_value_info(value.name, replace(told, shape=shape)))
    if less:
        known = {} if in_body else {k: v for k, v in found.items() if k in outputs}
        found = known | _inferred(model)
    declared = stated_types(onnx.GraphProto(output=graph.output))
    found |= {name: value.shape for name, value in declared.items() if value.shape is not None}
    # If has outputs from the start where all their sizes are numbers.
    return {k: v for k, v in found.items() if k not in outputs or str not in map(type, v)}


def _inferred(model: onnx.ModelProto) -> dict[str, Shape]:
    """What ONNX infers of shapes, where all dimensions are numbers or symbols of the model."""
    symbols = {
        dim.dim_param
        for value in declared_values(model.graph)
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param
    }
    found = {}
    for value in declared_values(infer(model).graph):
        shape = read_type(value.type).shape
        if shape is not None and all(isinstance(dim, int) or dim in symbols for dim in shape):
            found[value.name] = shape
    return found


def _as_model(model: onnx.ModelProto, graph: onnx.GraphProto, types: Types) -> onnx.ModelProto:
    body = onnx.ModelProto(ir_version=model.ir_version)
    body.opset_import.extend(model.opset_import)
    body.graph.CopyFrom(graph)
    # Inner value_info is often wrong or unknown; inference from the real inputs replaces it.
    del body.graph.value_info[:]
    for value in body.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    own = {value.name for value in body.graph.input}
    own |= {tensor.name for tensor in body.graph.initializer}
    own |= {name for inner in body.graph.node for name in inner.output}
    free = [name for name in free_names(body.graph) if name not in own]
    values = small_constants(model.graph, defaults=True, of=frozenset(free))
    for name in free:
        if name in types:
            body.graph.input.append(_value_info(name, types[name]))
        if name in values:
            body.graph.initializer.append(numpy_helper.from_array(values[name], name))
    return body


def _value_info(name: str, value: TensorType) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, value.dtype, value.shape)


def _bind_inputs(body: onnx.ModelProto, node: onnx.NodeProto, types: Types) -> None:
    """Give the body's inputs the shapes with which the node is called."""
    for slot, value in enumerate(body.graph.input):
        source = _source_type(node, slot, types)
        if source is not None and source.shape is not None:
            value.CopyFrom(_value_info(value.name, source))


def _source_type(node: onnx.NodeProto, slot: int, types: Types) -> TensorType | None:
    if node.op_type == "Loop" and slot < LOOP_FIXED:  # iteration number and condition
        return TensorType(onnx.TensorProto.BOOL if slot else onnx.TensorProto.INT64, ())
    if node.op_type not in ("Loop", "Scan") or slot >= len(node.input):
        return None
    outer, layout = types.get(node.input[slot]), layout_of(node)
    if outer is None or outer.shape is None or slot < layout.first_sequence:
        return outer
    shape = list(outer.shape)
    if shape:
        del shape[_input_axis(layout, slot - layout.first_sequence, len(shape))]
    return TensorType(outer.dtype, tuple(shape))


def _input_axis(layout: LoopLayout, slot: int, rank: int) -> int:
    """The axis of a Scan's sequence ``slot``, which has ``rank`` axes; 0 where there is no such."""
    axis = layout.input_axis(slot)
    return axis if -rank <= axis < rank else 0


def _trips(model: onnx.ModelProto, node: onnx.NodeProto, types: Types) -> int | None:
    if node.op_type == "If":
        return 1
    if node.op_type == "Loop":
        count = whole_numbers(small_constant(model.graph, node.input[0]))
        if not count:
            return None
        trips = max(count[0], 0)
        return trips if trips <= MOST_TRIPS else None
    layout = layout_of(node)
    if node.op_type == "Scan" and layout.sequences:
        last = types.get(node.input[-1])
        if last is not None and last.sizes:
            return last.sizes[_input_axis(layout, layout.sequences - 1, len(last.sizes))]
    return None


def output_types(
    model: onnx.ModelProto, node: onnx.NodeProto, types: Types
) -> dict[str, TensorType]:
    """Types of a node's outputs, from its bodies: states as they are, sequences stacked; of an If
    those in which both branches agree."""
    if operator_key(node) not in _CONTROL_FLOW:
        return {}
    if node.op_type == "If":
        return _agreed(node, body_models(model, node, types))
    body = next(iter(body_models(model, node, types)), None)
    if body is None:
        return {}
    inner = [body.types.get(value.name) for value in body.model.graph.output]
    if node.op_type == "Loop":
        inner = inner[1:]
    states = layout_of(node).states
    found = {}
    for slot, (name, value) in enumerate(zip(node.output, inner, strict=False)):
        if not name or value is None or value.shape is None:
            continue
        if slot < states:
            found[name] = value
        elif body.trips is not None:
            found[name] = TensorType(value.dtype, (body.trips, *value.shape))
    return found


def _agreed(node: onnx.NodeProto, branches: list[BodyModel]) -> dict[str, TensorType]:
    made = [[body.types.get(value.name) for value in body.model.graph.output] for body in branches]
    found = {}
    for name, *values in zip(node.output, *made, strict=False):
        first = values[0] if values else None
        if not name or first is None or first.shape is None:
            continue
        if all(v is not None and (v.dtype, v.shape) == (first.dtype, first.shape) for v in values):
            found[name] = first
    return found
