"""A changed ``ModelProto`` as an open model again, without finding shapes and phases anew."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import onnx

from memplan.ir.build_graph import build_graph
from memplan.ir.graph import Graph, TensorKind
from memplan.ir.phases import Phases
from memplan.proto.edit import copied, replace_nodes
from memplan.proto.nodes import is_constant
from memplan.shapes.dims import bind_dims, symbolic_dims
from memplan.shapes.prepare import fingerprint
from memplan.shapes.tensor_type import TensorType
from memplan.simulate.opened import OpenModel
from memplan.simulate.state_memory import rebound


def with_nodes(model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> onnx.ModelProto:
    """A copy of the model with these nodes; nodes of ``model`` itself may be among them."""
    result = copied(model)
    replace_nodes(result.graph, nodes)
    return result


def node_protos(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes by graph id: ``Constant`` nodes are none of the graph's."""
    return [node for node in model.graph.node if not is_constant(node)]


@dataclass(frozen=True, slots=True)
class Added:
    """What a changed model has that the one before did not: the ``types`` of new tensors, and by
    the name of each new node that of the old one whose phase and module it takes."""

    types: Mapping[str, TensorType]
    like: Mapping[str, str]


def reopened(
    model: OpenModel,
    proto: onnx.ModelProto,
    frozen: Collection[str] = (),
    added: Added | None = None,
) -> OpenModel:
    """``proto``, made from ``model`` by taking away, adding or moving nodes, as an open model.

    Types and phases are those of ``model``: names of tensors and nodes mean what they meant there.
    ``frozen``: parameters that are trained no more.
    """
    prepared = model.prepared
    like = added.like if added is not None else {}
    if added is not None:
        prepared = replace(prepared, types={**prepared.types, **added.types})
    known = symbolic_dims(proto)
    dims = {name: size for name, size in prepared.dims.items() if name in known}
    bound = bind_dims(proto, dims)
    graph = rebound(build_graph(bound, prepared.types), model.graph)
    place = {node.name: node.id for node in model.graph.nodes}
    place |= {name: place[old] for name, old in like.items()}
    return OpenModel(
        replace(
            prepared, proto=proto, bound=bound, dims=dims, fingerprint=fingerprint(proto, dims)
        ),
        graph,
        _carried(model, graph, place, frozenset(frozen)),
        tuple(model.modules[place[node.name]] for node in graph.nodes),
    )


def _carried(
    model: OpenModel, graph: Graph, place: Mapping[str, int], frozen: frozenset[str]
) -> Phases:
    """The phases of ``model`` by name; ``place``: the node there whose phase a node has."""
    old = model.phases
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
        tuple(old.of[place[node.name]] for node in graph.nodes),
        None if loss is None else loss.id,
        ids(old.parameters),
        ids(old.state),
        {names[out]: names[src] for out, src in pairs if out in names and src in names},
        ids(old.fixed),
    )
