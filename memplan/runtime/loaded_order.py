"""What a session runs once it has loaded a file, and in which order.

A tuned session changes no node on its own, yet it inlines functions and operators without a kernel,
puts Casts around nodes without one for their type, and copies between devices. What it then holds
is read from what it saves. Imports onnxruntime.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from memplan.errors import ModelError
from memplan.processes.scratch import scratch_folder
from memplan.proto.edit import copied
from memplan.proto.ort_format import UINT32, Table, root_table
from memplan.proto.restore_order import sorted_nodes
from memplan.runtime.messages import RunRequest
from memplan.runtime.session_options import point_to_weights, save_instead, session_options
from memplan.runtime.sessions import open_session

_EAGER = frozenset({"Shape", "Size"})  # run as soon as they can (graph_viewer.cc)
_LARGE_BYTES = 1 << 16

# Numbers of fields in onnxruntime/core/flatbuffers/schema/ort.fbs, to which fields are only added.
_MODEL, _GRAPH, _NODES = 1, 7, 2
_NAME, _DOMAIN, _INDEX, _OP_TYPE = 0, 2, 4, 5
_INPUTS, _OUTPUTS, _ATTRIBUTES, _IMPLICIT_INPUTS = 8, 9, 10, 12
_BODY = 7  # of an attribute


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
        save_instead(options, saved)
        options.log_severity_level = 4  # errors come as exceptions
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

    def collect(graph: Table) -> None:
        for node in _by_index(graph):
            found.append(next((name for name in node.texts(_OUTPUTS) if name), ""))
            for body in _bodies(node):
                collect(body)

    collect(_saved_graph(path))
    return tuple(found)


def _saved_graph(path: Path) -> Table:
    """The main graph in a file of ONNX Runtime's own format: files in ONNX hold no indices.

    The runtime brings a reader of its own, but to import it is to import PyTorch where that is
    installed (measured: 195 MiB, and seconds).
    """
    session = root_table(path.read_bytes(), b"ORTM", path.name)
    model = session.table(_MODEL)
    graph = model.table(_GRAPH) if model is not None else None
    if graph is None:
        raise ModelError(f"{path.name} has no graph", "another version of ONNX Runtime wrote it")
    return graph


def _by_index(graph: Table) -> list[Table]:
    return sorted(graph.tables(_NODES), key=lambda node: node.number(_INDEX, UINT32))


def _bodies(node: Table) -> list[Table]:
    found = (attribute.table(_BODY) for attribute in node.tables(_ATTRIBUTES))
    return [body for body in found if body is not None]


def _node(node: Table) -> onnx.NodeProto:
    made = onnx.NodeProto(
        op_type=node.text(_OP_TYPE),
        domain=node.text(_DOMAIN),
        name=node.text(_NAME),
        input=node.texts(_INPUTS),
        output=node.texts(_OUTPUTS),
    )
    inside = node.texts(_IMPLICIT_INPUTS)
    if inside or _bodies(node):
        body = onnx.GraphProto(output=[onnx.ValueInfoProto(name=name) for name in inside])
        made.attribute.append(onnx.helper.make_attribute("body", body))
    return made
