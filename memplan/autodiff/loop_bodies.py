"""Bodies of control-flow nodes: differentiated and written as graphs of their own.

ONNX Runtime 1.31 computes wrong values, without a word, where a body's output is one of its inputs,
or stands twice among its outputs; it refuses outer tensors there. So every output of a body that is
written here is a tensor of its own that a node of the body makes: ``Identity`` where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import helper, numpy_helper

from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.value import Value
from memplan.passes.loops.edit_loop import is_own_output, own_output
from memplan.proto.edit import copied, live_nodes, replace_nodes
from memplan.proto.nodes import domain_of, free_names, names_read
from memplan.shapes.prepare import name_nodes
from memplan.shapes.tensor_type import TensorType, value_info, write_type


def body_model(
    outer: Emitter, graph: onnx.GraphProto, inputs: Sequence[TensorType]
) -> onnx.ModelProto:
    """A body as a model: captured tensors are further inputs, small constants initializers.

    Args:
        outer: knows the graph around it.
        graph: the body; it is not changed.
        inputs: the types with which it is called.
    """
    model = onnx.ModelProto(ir_version=outer.ir_version)
    model.graph.CopyFrom(graph)
    domains = {domain_of(node) for node in graph.node} - {""}
    model.opset_import.append(helper.make_opsetid("", outer.opset))
    model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in sorted(domains))
    body = model.graph
    del body.value_info[:]
    for value, found in zip(body.input, inputs, strict=True):
        value.type.CopyFrom(write_type(found))
    for value in body.output:
        value.type.tensor_type.ClearField("shape")
    for name in free_names(graph):
        if name in outer.constants:
            body.initializer.append(numpy_helper.from_array(outer.constants[name], name))
        else:
            body.input.append(
                onnx.ValueInfoProto(name=name, type=write_type(outer.tensor(name).type))
            )
    name_nodes(body)
    return model


def restored(model: onnx.ModelProto, graph: onnx.GraphProto, emitter: Emitter) -> None:
    """Write what became of a :func:`body_model` back into ``graph``, the body it was made from.

    What rules placed behind forward nodes comes along; what is captured stays captured.
    """
    captured = set(free_names(graph))
    nodes = emitter.placed(model.graph.node)
    read = names_read(nodes)
    known = {tensor.name for tensor in model.graph.initializer}
    constants = [tensor for tensor in model.graph.initializer if tensor.name not in captured]
    constants += [t for n, t in emitter.initializers.items() if n in read and n not in known]
    kept = [copied(tensor) for tensor in constants]
    replace_nodes(graph, nodes)
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(kept)


class BodyWriter:
    """A body under construction: inputs, nodes of an emitter, outputs."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[Value] = []

    def input(self, name: str, found: TensorType, *, new: bool = True) -> Value:
        """A further input; ``new``: under a name that is not in use."""
        name = self.emitter.fresh(name) if new else name
        self.emitter.types[name] = found
        if new:
            self.emitter.places[name] = None
        self.inputs.append(value_info(name, found))
        return self.emitter.tensor(name)

    def captured(self, value: Value) -> Value:
        """An outer tensor as the body sees it."""
        self.emitter.types[value.name] = value.type
        return self.emitter.tensor(value.name)

    def output(self, value: Value) -> None:
        """A further output; see the module's text."""
        made = {name for node in self.emitter.nodes for name in node.output}
        if value in self.outputs or value.name not in made:
            value = self.emitter.op("Identity", value)
        self.outputs.append(value)

    def graph(
        self,
        name: str,
        constants: Mapping[str, onnx.TensorProto] | None = None,
        before: Sequence[onnx.NodeProto] = (),
    ) -> onnx.GraphProto:
        """The body.

        ``constants`` are initializers that it may read, beside the emitter's; ``before`` are nodes
        that stand in front.
        """
        wanted = [value.name for value in self.outputs]
        nodes = [*before, *live_nodes(self.emitter.nodes, wanted)]
        read = names_read(nodes)
        known = {**(constants or {}), **self.emitter.initializers}
        return helper.make_graph(
            nodes,
            name,
            self.inputs,
            [value_info(value.name, value.type) for value in self.outputs],
            [tensor for key, tensor in known.items() if key in read],
        )


def separate_outputs(graph: onnx.GraphProto, emitter: Emitter) -> None:
    """Make every output of a body a tensor of its own that a node makes; see the module's text."""
    ends = list(graph.output)
    del graph.output[:]
    for value in ends:
        if not is_own_output(graph, value.name):
            value.name = own_output(graph, value.name, emitter.fresh(f"{value.name}/output"))
        graph.output.append(value)
