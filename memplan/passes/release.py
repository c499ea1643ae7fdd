"""``release``: memory that nobody reads, freed at once.

ONNX Runtime frees a buffer behind the last node that reads it; what nobody reads stays until the
end of the run. A node whose outputs are partly read holds such: a pool of which only the indices
are wanted, a split of which a part is, a loop. A ``Size`` right behind the node reads the shape of
such an output and no element of it, and the buffer is free.

PyTorch's exporter writes a second pool, of windows of one element, for the index at which each
plane begins, and reads its first index alone. Its first row will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
from onnx import helper

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ir.graph_facts import Facts
from memplan.ops.pool_indices import IMAGES, is_unit_pool, plane_begins, takes_first
from memplan.passes.change import Change, facts_of, name_authority, with_most
from memplan.passes.graph_pass import Applied, peak_did_not_rise
from memplan.passes.surgery import node_protos
from memplan.proto.edit import copied
from memplan.proto.names import NameAuthority
from memplan.shapes.tensor_type import TensorType
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline
from memplan.units import counted

_INT64 = onnx.TensorProto.INT64
_SIZE_BYTES = 8  # what a Size makes, and nobody reads


@dataclass(frozen=True, slots=True)
class Release:
    """No options."""

    name: ClassVar[str] = "release"
    summary: ClassVar[str] = "results that nobody reads, freed at once"

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model without what is held for nobody, as far as no peak rises by it."""
        notes = []
        found = with_most(model, timeline, _short_pools(model), peak_did_not_rise)
        if found is not None:
            model, timeline, count = found
            notes.append(f"{counted(count, 'pool')} for one index a plane")
        if timeline.session.priority_order and not timeline.session.reuse:
            found = with_most(model, timeline, list(_readers(model)), peak_did_not_rise)
            if found is not None:
                model, timeline, count = found
                notes.append(f"{counted(count, 'node')} with results that nothing reads")
        return Applied(model, ", ".join(notes))


def _readers(model: OpenModel) -> Iterator[Change]:
    """A ``Size`` behind every node for each of its outputs that nobody reads."""
    graph, names = model.graph, name_authority(model)
    for node, proto in zip(graph.nodes, node_protos(model.prepared.proto), strict=True):
        unread = [
            tensor.name
            for tensor in (graph.tensors[t] for t in node.writes)
            if not tensor.readers and not tensor.is_output and tensor.nbytes > _SIZE_BYTES
        ]
        if not unread:
            continue
        readers, types = [], {}
        for name in unread:
            stem = names.fresh(f"{name}/release")
            readers.append(helper.make_node("Size", [name], [stem], name=stem))
            types[stem] = TensorType(_INT64, ())
        yield Change({node.name: (copied(proto), *readers)}, types=types)


def _short_pools(model: OpenModel) -> list[Change]:
    """Pools of one element of which only the first index of each plane is read."""
    facts, names = facts_of(model), name_authority(model)
    if not facts.exact:
        return []
    protos = node_protos(model.prepared.proto)
    return [
        _first_row(facts, node, readers, protos, names)
        for node in facts.graph.nodes
        if (readers := _first_index_readers(facts, node))
    ]


def _first_index_readers(facts: Facts, node: Node) -> list[Node]:
    """The ``Slice`` nodes that take the first index of each plane, if nothing else is read of a
    pool of windows of one element; else none."""
    graph = facts.graph
    if node.key != ":MaxPool" or not is_unit_pool(node.attributes) or len(node.outputs) != 2:
        return []
    shape = graph.tensors[node.inputs[0]].shape
    values, indices = (None if t == ABSENT else graph.tensors[t] for t in node.outputs)
    if len(shape) != IMAGES or shape[2] == 1 or indices is None or indices.is_output:
        return []
    if values is not None and (values.readers or values.is_output):
        return []
    if indices.id in graph.checkpoints or _in_bodies(graph, indices.id):
        return []
    readers = [graph.nodes[n] for n in indices.readers]
    return readers if readers and all(takes_first(facts, n) for n in readers) else []


def _in_bodies(graph: Graph, tensor: int) -> bool:
    return any(tensor in node.captured for node in graph.nodes)


def _first_row(
    facts: Facts,
    pool: Node,
    readers: list[Node],
    protos: list[onnx.NodeProto],
    names: NameAuthority,
) -> Change:
    """The pool of the first rows; every index is then too low by what the other rows of the planes
    before hold."""
    tensors = facts.graph.tensors
    source = tensors[pool.inputs[0]]
    batch, channels, rows, columns = source.shape
    kind = TensorType(source.dtype, (batch, channels, 1, columns))
    stem = names.fresh(f"{pool.name}/row")
    first, second, row = (names.fresh(f"{stem}_{part}") for part in ("start", "end", "axis"))
    values, indices, batches, planes = (
        names.fresh(f"{stem}_{part}") for part in ("values", "indices", "batches", "planes")
    )
    short = copied(protos[pool.id])
    short.name, short.input[0] = names.fresh(f"{stem}_pool"), stem
    short.output[:] = [values, indices]
    cut = helper.make_node("Slice", [source.name, first, second, row], [stem], name=stem)
    nodes: dict[str, tuple[onnx.NodeProto, ...]] = {pool.name: (cut, short)}
    types = {stem: kind, values: kind, indices: TensorType(_INT64, kind.shape)}
    skipped = plane_begins(batch, channels, (rows - 1) * columns)
    added = {batches: skipped[0], planes: skipped[1]} if channels > 1 else {batches: skipped[0]}
    for reader in readers:
        result = tensors[reader.outputs[0]]
        part = names.fresh(f"{result.name}/row")
        again = copied(protos[reader.id])
        again.input[0], again.output[0] = indices, part
        parts = [again]
        for constant in added:
            total = result.name if constant is list(added)[-1] else names.fresh(f"{part}_sum")
            parts.append(helper.make_node("Add", [part, constant], [total], name=part))
            types[part] = TensorType(_INT64, (batch, channels, 1, 1))
            part = total
        nodes[reader.name] = tuple(parts)
    constants = {
        first: np.array([0], np.int64),
        second: np.array([1], np.int64),
        row: np.array([2], np.int64),
        **added,
    }
    return Change(nodes, constants, types)
