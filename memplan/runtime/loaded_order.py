"""What a session runs once it has loaded a file, and in which order.

A tuned session changes no node on its own, yet it inlines functions and operators without a kernel,
puts Casts around nodes without one for their type, and copies between devices. What it then holds
is read from what it saves. Imports onnxruntime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from memplan.processes.scratch import scratch_folder
from memplan.proto.edit import copied
from memplan.proto.restore_order import sorted_nodes
from memplan.runtime.messages import RunRequest
from memplan.runtime.session_options import point_to_weights, session_options
from memplan.runtime.sessions import open_session

_EAGER = frozenset({"Shape", "Size"})  # run as soon as they can (graph_viewer.cc)
_LARGE_BYTES = 1 << 16


def loaded_graph(
    model: onnx.ModelProto, request: RunRequest, folder: Path | None
) -> onnx.ModelProto:
    """The nodes that a tuned session runs, in its order, as a model of names alone.

    Args:
        model: the model that the session is to load.
        request: provider and dims.
        folder: where its external data lies.

    Returns:
        A ``ModelProto`` with the inputs and outputs of ``model``, and nodes with their operator,
        inputs and outputs. What bodies read of the graph around them is the output of a body with
        no nodes.

    Raises:
        Exception: whatever the runtime raises.
    """
    with scratch_folder() as scratch:
        saved = scratch / "loaded.ort"
        options = session_options("tuned", request.dims)
        options.optimized_model_filepath = str(saved)
        options.log_severity_level = 4  # errors come as exceptions
        # Nothing is run: weights are not packed, and those in other files not even read.
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.add_session_config_entry("session.save_model_format", "ORT")
        point_to_weights(options, folder)
        open_session(_without_large(model).SerializeToString(), request, options)
        nodes = [_node(node) for node in _by_index(_saved_graph(saved))]
    result = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    result.graph.input.extend(model.graph.input)
    result.graph.output.extend(model.graph.output)
    # As the runtime has it: Shape and Size first, then by index.
    ranks = [(node.op_type not in _EAGER, index) for index, node in enumerate(nodes)]
    result.graph.node.extend(nodes[index] for index in sorted_nodes(nodes, ranks))
    return result


def _without_large(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its large constants as inputs: which nodes there are does not depend on what
    they hold."""
    shown = copied(model)
    kept: list[onnx.TensorProto] = []
    large: list[onnx.TensorProto] = []
    for tensor in shown.graph.initializer:
        (large if tensor.ByteSize() > _LARGE_BYTES else kept).append(tensor)
    if not large:
        return shown
    for tensor in large:
        shown.graph.input.append(
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    del shown.graph.initializer[:]
    shown.graph.initializer.extend(kept)
    return shown


def outputs_by_index(path: Path) -> tuple[str, ...]:
    """The first output of every node in a ``.ort`` file, graph by graph, by node index: the order
    of a tuned session."""
    found: list[str] = []

    def collect(graph: Any) -> None:
        for node in _by_index(graph):
            names = (node.Outputs(slot).decode() for slot in range(node.OutputsLength()))
            found.append(next((name for name in names if name), ""))
            for body in _bodies(node):
                collect(body)

    collect(_saved_graph(path))
    return tuple(found)


def _saved_graph(path: Path) -> Any:
    """The main graph in a file of ONNX Runtime's own format: files in ONNX hold no indices."""
    from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.InferenceSession import (
        InferenceSession,
    )

    return InferenceSession.GetRootAs(bytearray(path.read_bytes()), 0).Model().Graph()


def _by_index(graph: Any) -> list[Any]:
    nodes = (graph.Nodes(place) for place in range(graph.NodesLength()))
    return sorted(nodes, key=lambda node: int(node.Index()))


def _bodies(node: Any) -> list[Any]:
    found = (node.Attributes(place).G() for place in range(node.AttributesLength()))
    return [body for body in found if body is not None]


def _node(node: Any) -> onnx.NodeProto:
    made = onnx.NodeProto(
        op_type=node.OpType().decode(),
        domain=(node.Domain() or b"").decode(),
        name=(node.Name() or b"").decode(),
        input=[node.Inputs(slot).decode() for slot in range(node.InputsLength())],
        output=[node.Outputs(slot).decode() for slot in range(node.OutputsLength())],
    )
    inside = [node.ImplicitInputs(k).decode() for k in range(node.ImplicitInputsLength())]
    if inside or _bodies(node):
        body = onnx.GraphProto(output=[onnx.ValueInfoProto(name=name) for name in inside])
        made.attribute.append(onnx.helper.make_attribute("body", body))
    return made
