"""Casts to wider types and broadcasts, kept as what they were made of and made again when read.

A mask that was cast for a product takes four bytes an element until the backward part reads it
again; the mask itself takes one, and a second cast before that reader gives the same bits. So do
broadcasts of something smaller. With a budget the planner recomputes them like any node; where
their source is small enough to be worth the seconds, no budget is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from memplan.ir.graph import Graph, Node, Tensor, TensorKind
from memplan.passes.change import Change
from memplan.proto.edit import copied, rename_reads
from memplan.proto.names import NameAuthority
from memplan.shapes.tensor_type import TensorType

_WIDENING = frozenset({":Cast", ":CastLike", ":Expand", ":Tile"})
_SMALLEST_BYTES = 4096


def is_widened(graph: Graph, tensor: Tensor) -> bool:
    """Whether a tensor is a larger form of one that was computed, or of what is there anyway."""
    if tensor.kind is not TensorKind.COMPUTED or tensor.is_output or not tensor.counted:
        return False
    maker = graph.nodes[tensor.producer]
    if maker.key not in _WIDENING or tensor.nbytes < _SMALLEST_BYTES or len(maker.outputs) != 1:
        return False
    return _kept_bytes(graph, maker) < tensor.nbytes


def _kept_bytes(graph: Graph, maker: Node) -> int:
    """Bytes that must be there to run a node again: weights and inputs are."""
    sources = {graph.tensors[t] for t in maker.reads}
    return sum(t.nbytes for t in sources if t.kind is TensorKind.COMPUTED)


def made_again(
    tensor: Tensor, maker: onnx.NodeProto, readers: Sequence[onnx.NodeProto], names: NameAuthority
) -> Change:
    """``maker`` a second time, right before the first of ``readers``, which read its result."""
    again = copied(maker)
    again.name = again.output[0] = names.fresh(f"{tensor.name}/again")
    nodes: dict[str, tuple[onnx.NodeProto, ...]] = {}
    for place, reader in enumerate(readers):
        late = copied(reader)
        rename_reads(late, {tensor.name: again.output[0]})
        nodes[reader.name] = (again, late) if not place else (late,)
    return Change(nodes, types={again.output[0]: TensorType(tensor.dtype, tensor.shape)})
