"""Shapes inside control-flow bodies, for the shapes that the node around them has.

A loop-carried tensor is taken to keep its shape from one iteration to the next, as ONNX Runtime's
exporters guarantee; where inference inside says otherwise the body counts as unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx

from memplan.proto.edit import copied, replace_nodes
from memplan.proto.loop_node import LOOP_FIXED, MOST_TRIPS, LoopLayout, layout_of
from memplan.proto.nodes import free_names, operator_key
from memplan.shapes.fold import small_constant, whole_numbers
from memplan.shapes.infer import infer, is_complete, stated_types
from memplan.shapes.shape_checks import require_possible_body
from memplan.shapes.tensor_type import UNKNOWN, TensorType, Types
from memplan.shapes.visible import standard_nodes

_CONTROL_FLOW = frozenset({":If", ":Loop", ":Scan"})


@dataclass(frozen=True, slots=True)
class BodyModel:
    """One body as a model of its own: captured tensors are inputs, the outer shapes are bound.

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
        known = _known_to_the_runtime(body, attribute.g, types, in_body)
        if known_call:
            _bind_inputs(body, node, types)
        inferred = {
            name: replace(value, static=name in known) for name, value in _inferred(body).items()
        }
        trips = _trips(model, node, types) if known_call else None
        require_possible_body(inferred, trips, f"{node.op_type} '{node.name}'")
        names = [name for inner in body.graph.node for name in inner.output if name]
        complete = known_call and all(
            inferred.get(name, UNKNOWN).shape is not None for name in names
        )
        found.append(BodyModel(attribute.name, body, inferred, trips, complete))
    return found


def _inferred(body: onnx.ModelProto) -> Types:
    """What ONNX infers, of fused operators as of those that they were made of."""
    types = stated_types(infer(body).graph)
    if is_complete(body.graph, types):
        return types
    plain = copied(body)
    replace_nodes(plain.graph, (each for n in body.graph.node for each in standard_nodes(n, types)))
    known = {name: found for name, found in types.items() if found.shape is not None}
    return {**types, **stated_types(infer(plain).graph), **known}


def _known_to_the_runtime(
    body: onnx.ModelProto,
    graph: onnx.GraphProto,
    types: Types,
    in_body: bool,
) -> set[str]:
    """Tensors whose shapes the runtime knows before it runs the body ``graph``.

    It infers from what the body declares of its inputs and outputs, and from captured tensors. Of
    the main graph it finds out more by itself than memplan can tell
    (:func:`memplan.shapes.visible.visible_names`), so what is captured there counts as known: If
    then has its outputs from the start, which is the safe side.
    """
    seen = copied(body)
    for value in seen.graph.input[len(graph.input) :] if in_body else ():
        if not types[value.name].static:
            value.type.tensor_type.ClearField("shape")
    known = {name for name, v in _inferred(seen).items() if v.shape is not None}
    declared = stated_types(onnx.GraphProto(output=graph.output))
    return known | {name for name, value in declared.items() if value.shape is not None}


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
    for name in free_names(body.graph):
        if name not in own and name in types:
            body.graph.input.append(_value_info(name, types[name]))
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
