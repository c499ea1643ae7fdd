"""A loss that is not a number must not reach the state, though that is written in place.

On the CPU, a few nodes in the graph that is loaded (never in the file): between the loss and the
first such write, a ``Gather`` whose index is out of bounds unless the loss is finite. Its kernel
then fails, and the run ends before any node that writes in place. The cost is four nodes of one
element at most. On CUDA, where kernels cannot fail, there is no guard.

It needs the loss before the first such write: what is made earlier (running statistics) gets a
second buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from memplan.proto.graph_edit import GraphEdit, node_protos
from memplan.proto.nodes import reads_of
from memplan.proto.opset import default_opset

_STEM = "memplan.guard"
_IS_NAN_SINCE = 9
_FEW = 16
_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16})


@dataclass(frozen=True, slots=True)
class Guarded:
    """A model with a guard. ``node``: the name of the node that stops a run; ``output``: what it
    makes; ``covered``: the outputs that are made behind it, of which there may be none."""

    model: onnx.ModelProto
    node: str
    output: str
    covered: frozenset[str]


def with_guard(
    model: onnx.ModelProto,
    loss: str,
    pairs: Mapping[str, str],
    between: Sequence[int] | None = None,
) -> Guarded | None:
    """``model`` with a guard on ``loss``, or None where there can be none.

    Args:
        model: the step; it is copied.
        loss: an output.
        pairs: output → input of what is to be written in place.
        between: bytes in use before each node (``Constant`` nodes left out), if they are known: the
            guard goes where there are the fewest, so that its own few make no new peak.
    """
    nodes = node_protos(model)
    place = next((k for k, n in enumerate(nodes) if loss in n.output), None)
    if place is None or default_opset(model) < _IS_NAN_SINCE or not _is_number(model, loss):
        return None
    makers = [k for k, n in enumerate(nodes) if k > place and any(o in pairs for o in n.output)]
    if not makers:
        return Guarded(model, "", "", frozenset())
    at = makers[0]
    if between is not None:
        at = min(range(place + 1, makers[0] + 1), key=lambda k: (between[k], -k))
    behind = range(at, len(nodes))
    covered = frozenset(name for k in behind for name in nodes[k].output if name in pairs)
    edit = GraphEdit(model)

    def put(op: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
        output, name = edit.fresh(f"{_STEM}.{op}"), edit.fresh(f"{_STEM}.{op}")
        made: onnx.NodeProto = helper.make_node(op, list(inputs), [output], name, **attributes)
        edit.put_before(at, made)
        return made

    less = put("Sub", loss, loss).output[0]  # nan, too, of an infinite loss
    is_nan = put("IsNaN", less).output[0]
    # One row of no elements: what is never read stays in memory to the end of the run.
    only = edit.constant(np.zeros((1, 0), np.bool_), f"{_STEM}.constant")
    index = put("Cast", is_nan, to=onnx.TensorProto.INT64).output[0]
    check = put("Gather", only, index)
    return Guarded(edit.finished(), check.name, check.output[0], covered)


def with_loss_before(
    model: onnx.ModelProto, loss: str, pairs: Mapping[str, str]
) -> onnx.ModelProto:
    """The model with what is left to do for the loss moved before the first node that makes one of
    ``pairs``, if these are a few nodes; else the model itself.

    A plan may make the loss late, as nothing else waits for it. Where running statistics are made
    first, the first node behind them counts.
    """
    nodes = node_protos(model)
    needed, late = {loss}, set[int]()
    for place in reversed(range(len(nodes))):
        if needed.intersection(nodes[place].output):
            needed.update(reads_of(nodes[place]))
            late.add(place)
    for place, node in enumerate(nodes):
        if place not in late and any(name in pairs for name in node.output):
            behind = sorted(k for k in late if k > place)
            if not behind:
                return model
            if len(behind) <= _FEW:
                moved = set(behind)
                rest = [n for k, n in enumerate(nodes[place:], place) if k not in moved]
                order = [*nodes[:place], *(nodes[k] for k in behind), *rest]
                break
    else:
        return model
    edit = GraphEdit(model)
    edit.write(order)
    return edit.finished()


def _is_number(model: onnx.ModelProto, loss: str) -> bool:
    """Whether the output is one float."""
    stated = next((value for value in model.graph.output if value.name == loss), None)
    if stated is None or not stated.type.tensor_type.HasField("shape"):
        return False
    tensor = stated.type.tensor_type
    return tensor.elem_type in _FLOATS and all(d.dim_value == 1 for d in tensor.shape.dim)
