"""``release``: memory that nobody reads, freed at once.

ONNX Runtime frees a buffer behind the last node that reads it; what nobody reads stays until the
end of the run. A node whose outputs are partly read holds such: a pool of which only the indices
are wanted, a split of which a part is, a loop. A ``Size`` right behind the node reads the shape of
such an output and no element of it, and the buffer is free.

PyTorch's exporter writes a second pool, of windows of one element, for the index at which each
plane begins, and reads its first index alone. Its first row will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import onnx
from onnx import helper

from memplan.ir.graph import ABSENT, Graph, Node, Tensor
from memplan.ir.graph_facts import Facts
from memplan.ops.pool_indices import IMAGES, is_unit_pool, plane_begins, takes_first
from memplan.passes.change import Change, facts_of, with_most
from memplan.passes.graph_pass import Applied, peak_did_not_rise
from memplan.passes.surgery import ModelEdit
from memplan.proto.edit import copied
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
    summary: ClassVar[str] = "unused results, freed at once"

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model without what is held for nobody, as far as no peak rises by it."""
        notes = []
        found = with_most(model, timeline, list(_short_pools(facts_of(model))), peak_did_not_rise)
        if found is not None:
            model, timeline, count = found
            notes.append(f"{counted(count, 'pool')} for one index a plane")
        if timeline.session.priority_order and not timeline.session.reuse:
            found = with_most(model, timeline, list(_sizes(model.graph)), peak_did_not_rise)
            if found is not None:
                model, timeline, count = found
                notes.append(f"{counted(count, 'node')} with results that nothing reads")
        return Applied(model, ", ".join(notes))


def _sizes(graph: Graph) -> Iterator[Change]:
    """A ``Size`` behind every node for each of its outputs that nobody reads."""
    for node in graph.nodes:
        made = (graph.tensors[t] for t in node.writes)
        unread = [
            t.name for t in made if not t.readers and not t.is_output and t.nbytes > _SIZE_BYTES
        ]
        if unread:
            yield partial(_put_sizes, node.id, unread)


def _put_sizes(node: int, unread: Sequence[str], edit: ModelEdit) -> None:
    for tensor in unread:
        name = edit.fresh(f"{tensor}/release")
        edit.types[name] = TensorType(_INT64, ())
        edit.put_behind(node, helper.make_node("Size", [tensor], [name], name=name))


def _short_pools(facts: Facts) -> Iterator[Change]:
    """Pools of one element of which only the first index of each plane is read."""
    for node in facts.graph.nodes if facts.exact else ():
        readers = _first_index_readers(facts, node)
        if readers:
            yield partial(_shorten, facts.graph, node, readers)


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


def _shorten(graph: Graph, pool: Node, readers: Sequence[Node], edit: ModelEdit) -> None:
    """The pool of the first rows; every index is then too low by what the other rows of the planes
    before hold."""
    source = graph.tensors[pool.inputs[0]]
    batch, channels, rows, columns = source.shape
    stem = edit.fresh(f"{pool.name}/row")
    numbers = {"start": 0, "end": 1, "axis": 2}
    bounds = [edit.constant(np.array([n], np.int64), f"{stem}_{k}") for k, n in numbers.items()]
    by_batch, by_channel = plane_begins(batch, channels, (rows - 1) * columns)
    skipped = [edit.constant(by_batch, f"{stem}_batches")]
    skipped += [edit.constant(by_channel, f"{stem}_planes")] if channels > 1 else []
    values, indices = (edit.fresh(f"{stem}_{part}") for part in ("values", "indices"))
    kind = TensorType(source.dtype, (batch, channels, 1, columns))
    edit.types |= {stem: kind, values: kind, indices: TensorType(_INT64, kind.shape)}
    cut = helper.make_node("Slice", [source.name, *bounds], [stem], name=stem)
    short = copied(edit.original(pool.id))
    short.name, short.input[0] = edit.fresh(f"{stem}_pool"), stem
    short.output[:] = [values, indices]
    edit.put_instead(pool.id, cut, short)
    for reader in readers:
        _read_shortened(graph.tensors[reader.outputs[0]], reader.id, indices, skipped, edit)


def _read_shortened(
    result: Tensor, reader: int, indices: str, skipped: Sequence[str], edit: ModelEdit
) -> None:
    """Let a reader of the first index read ``indices``, and add what was skipped."""
    part = edit.fresh(f"{result.name}/row")
    node = edit.node(reader)
    node.input[0], node.output[0] = indices, part
    for constant in skipped:
        total = result.name if constant == skipped[-1] else edit.fresh(f"{part}_sum")
        edit.put_behind(reader, helper.make_node("Add", [part, constant], [total], name=part))
        edit.types[part] = TensorType(_INT64, result.shape)
        part = total
