"""A changed ``ModelProto`` as an open model again, without finding shapes and phases anew."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import onnx

from memplan.ir.build import build_graph
from memplan.ir.graph import Graph, TensorKind
from memplan.ir.phases import Phases
from memplan.proto.nodes import captured_names, is_constant
from memplan.shapes.bodies import body_models
from memplan.shapes.infer import bind_dims, symbolic_dims
from memplan.shapes.prepare import fingerprint
from memplan.simulate.opened import OpenModel


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that may be changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def with_nodes(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """A copy of the model with these nodes; nodes of ``model`` itself may be among them."""
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    copy = copy_of(model)
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return copy


def node_protos(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes by graph id: ``Constant`` nodes are none of the graph's."""
    return [node for node in model.graph.node if not is_constant(node)]


def reads_of(node: onnx.NodeProto) -> list[str]:
    """Names that a node reads, also in its bodies."""
    return [*(name for name in node.input if name), *captured_names(node)]


def captured(model: onnx.ModelProto) -> set[str]:
    """Names that control-flow bodies read from around them."""
    return {name for node in model.graph.node for name in captured_names(node)}


def drop_unread(model: onnx.ModelProto, before: onnx.ModelProto) -> None:
    """Take out of ``model`` constants and initializers that were read in ``before`` only.

    Initializers that are graph inputs too, which a caller may give, stay.
    """
    had = {name for node in before.graph.node for name in reads_of(node)}
    read = {name for node in model.graph.node for name in reads_of(node)}
    gone = had - read - {value.name for value in (*model.graph.output, *model.graph.input)}
    for index in reversed(range(len(model.graph.node))):
        node = model.graph.node[index]
        if is_constant(node) and node.output[0] in gone:
            del model.graph.node[index]
    for index in reversed(range(len(model.graph.initializer))):
        if model.graph.initializer[index].name in gone:
            del model.graph.initializer[index]
    made = {name for node in model.graph.node for name in node.output}
    made.update(tensor.name for tensor in model.graph.initializer)
    made.update(value.name for value in model.graph.input)
    for index in reversed(range(len(model.graph.value_info))):
        if model.graph.value_info[index].name not in made:
            del model.graph.value_info[index]


def reopened(model: OpenModel, proto: onnx.ModelProto, frozen: Collection[str] = ()) -> OpenModel:
    """``proto``, made from ``model`` by taking away or moving nodes, as an open model.

    Types and phases are those of ``model``: names of tensors and nodes mean what they meant there.
    ``frozen``: parameters that are trained no more.
    """
    prepared = model.prepared
    known = symbolic_dims(proto)
    dims = {name: size for name, size in prepared.dims.items() if name in known}
    bound = bind_dims(proto, dims)
    graph = build_graph(bound, prepared.types, body_models)
    place = {node.name: node.id for node in model.graph.nodes}
    return OpenModel(
        replace(
            prepared, proto=proto, bound=bound, dims=dims, fingerprint=fingerprint(proto, dims)
        ),
        graph,
        _carried(model, graph, frozenset(frozen)),
        tuple(model.modules[place[node.name]] for node in graph.nodes),
    )


def _carried(model: OpenModel, graph: Graph, frozen: frozenset[str]) -> Phases:
    """The phases of ``model`` by name."""
    old = model.phases
    phase = {node.name: old.of[node.id] for node in model.graph.nodes}
    loss = None if old.loss is None else graph.tensor_named(model.graph.tensors[old.loss].name)

    def ids(chosen: frozenset[int]) -> frozenset[int]:
        names = {model.graph.tensors[t].name for t in chosen} - frozen
        return frozenset(
            t.id for t in graph.tensors if t.kind is not TensorKind.COMPUTED and t.name in names
        )

    return Phases(
        tuple(phase[node.name] for node in graph.nodes),
        None if loss is None else loss.id,
        ids(old.parameters),
        ids(old.state),
    )
