"""An open model that is being changed, and open again without shapes and phases found anew."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import onnx

from memplan.ir.build_graph import build_graph
from memplan.ir.graph import Graph, TensorKind
from memplan.ir.phases import Phases
from memplan.proto.edit import Nodes
from memplan.proto.graph_edit import Array, GraphEdit, node_protos
from memplan.proto.nodes import is_constant
from memplan.shapes.dims import bind_dims, symbolic_dims
from memplan.shapes.tensor_type import TensorType
from memplan.simulate.opened import OpenModel
from memplan.simulate.state_memory import rebound


class ModelEdit(GraphEdit):
    """An open model that is being changed; numbers of nodes are their ids in its graph.

    ``types`` are those of new tensors. A new node has the phase and the module of the one that it
    was put beside.
    """

    def __init__(self, model: OpenModel) -> None:
        super().__init__(model.prepared.proto)
        self.before = model
        self.types: dict[str, TensorType] = {}

    def initialize(self, name: str, value: Array) -> None:
        super().initialize(name, value)
        dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        self.types[name] = TensorType(dtype, value.shape)

    def reorder(self, sequence: Sequence[int]) -> None:
        """Put the nodes in the order of ``sequence``, behind the ``Constant`` nodes."""
        nodes = node_protos(self.model)
        self.write(nodes[number] for number in sequence)

    def opened(
        self, removable: Nodes | None = is_constant, frozen: Collection[str] = frozenset()
    ) -> OpenModel:
        """The model after the edit, which ends here: as an open model.

        Args:
            removable: nodes that go where the edit has left them without a reader; None: nothing
                goes but what was taken out.
            frozen: parameters that are trained no more.
        """
        prepared = self.before.prepared
        told = replace(prepared, types={**prepared.types, **self.types}) if self.types else prepared
        return reopened(
            replace(self.before, prepared=told), self.finished(removable), self.origin, frozen
        )


def reopened(
    model: OpenModel,
    proto: onnx.ModelProto,
    origin: Mapping[str, int] | None = None,
    frozen: Collection[str] = frozenset(),
) -> OpenModel:
    """``proto``, made from ``model`` by taking away, adding or moving nodes, as an open model.

    Types and phases are those of ``model``: names of tensors and nodes mean what they meant there.

    Args:
        model: the model before, with the types of what is new in ``proto``.
        proto: the file after.
        origin: new node → id of the node of ``model`` whose phase and module it has.
        frozen: parameters that are trained no more.
    """
    prepared = model.prepared
    known = symbolic_dims(proto)
    dims = {name: size for name, size in prepared.dims.items() if name in known}
    bound = bind_dims(proto, dims) if known else proto
    graph = rebound(build_graph(bound, prepared.types), model.graph)
    place = {node.name: node.id for node in model.graph.nodes} | dict(origin or {})
    ids = [place[node.name] for node in graph.nodes]
    return OpenModel(
        replace(prepared, proto=proto, bound=bound, dims=dims),
        graph,
        _carried(model, graph, ids, frozen),
        tuple(model.modules[n] for n in ids),
    )


def _carried(model: OpenModel, graph: Graph, ids: Sequence[int], frozen: Collection[str]) -> Phases:
    """The phases of ``model`` by name; ``ids``: the nodes there whose phases the nodes have."""
    old, tensors = model.phases, model.graph.tensors
    names = {tensor.name: tensor.id for tensor in graph.tensors}
    outside = {t.name for t in graph.tensors if t.kind is not TensorKind.COMPUTED} - set(frozen)

    def kept(chosen: frozenset[int]) -> frozenset[int]:
        found = {tensors[t].name for t in chosen}
        return frozenset(names[name] for name in found & outside)

    pairs = ((tensors[out].name, tensors[source].name) for out, source in old.pairs.items())
    return Phases(
        tuple(old.of[n] for n in ids),
        None if old.loss is None else names.get(tensors[old.loss].name),
        kept(old.parameters),
        kept(old.state),
        {names[out]: names[src] for out, src in pairs if out in names and src in names},
        kept(old.fixed),
    )
