"""A changed ``ModelProto`` as an open model again, without finding shapes and phases anew."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import onnx

from memplan.ir.build import build_graph
from memplan.ir.graph import Graph, TensorKind
from memplan.ir.phases import Phases
from memplan.proto.edit import copied, replace_nodes
from memplan.proto.nodes import is_constant
from memplan.shapes.dims import bind_dims, symbolic_dims
from memplan.shapes.prepare import fingerprint
from memplan.simulate.opened import OpenModel
from memplan.simulate.state import rebound


def with_nodes(model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> onnx.ModelProto:
    """A copy of the model with these nodes; nodes of ``model`` itself may be among them."""
    result = copied(model)
    replace_nodes(result.graph, nodes)
    return result


def node_protos(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes by graph id: ``Constant`` nodes are none of the graph's."""
    return [node for node in model.graph.node if not is_constant(node)]


def reopened(model: OpenModel, proto: onnx.ModelProto, frozen: Collection[str] = ()) -> OpenModel:
    """``proto``, made from ``model`` by taking away or moving nodes, as an open model.

    Types and phases are those of ``model``: names of tensors and nodes mean what they meant there.
    ``frozen``: parameters that are trained no more.
    """
    prepared = model.prepared
    known = symbolic_dims(proto)
    dims = {name: size for name, size in prepared.dims.items() if name in known}
    bound = bind_dims(proto, dims)
    graph = rebound(build_graph(bound, prepared.types), model.graph)
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

    names = {tensor.name: tensor.id for tensor in graph.tensors}
    tensors = model.graph.tensors
    pairs = ((tensors[out].name, tensors[source].name) for out, source in old.pairs.items())
    return Phases(
        tuple(phase[node.name] for node in graph.nodes),
        None if loss is None else loss.id,
        ids(old.parameters),
        ids(old.state),
        {names[out]: names[src] for out, src in pairs if out in names and src in names},
    )
