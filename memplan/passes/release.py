"""``release``: memory that nobody reads, freed at once.

ONNX Runtime frees a buffer behind the last node that reads it; what nobody reads stays until the
end of the run. A node whose outputs are partly read holds such: a pool of which only the indices
are wanted, a split of which a part is, a loop. A ``Size`` right behind the node reads the shape of
such an output and no element of it, and the buffer is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import onnx
from onnx import helper

from memplan.ir.graph import Graph
from memplan.passes.change import Change, with_most
from memplan.passes.graph_pass import Applied
from memplan.passes.surgery import ModelEdit
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

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model without what is held for nobody, as far as no peak rises by it."""
        found = with_most(model, timeline, list(_sizes(model.graph)))
        if found is None:
            return Applied(model)
        model, _, count = found
        return Applied(model, f"{counted(count, 'node')} with results that nothing reads")


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
