"""A step in evaluation, where its graph writes out what differs from training.

Normalization: running statistics in place of those of a batch. A step in training mode normalizes
by the mean and variance of its batch, and renews a running statistic by them: ``R_new = R · m + T ·
(1 - m)``. In evaluation R stands where T stands. T is found from the new value: behind arithmetic
with constants, it is what the forward part makes, too.

Dropout from a counter: nothing is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from memplan.ir.graph import Graph
from memplan.ir.roles import Role
from memplan.ops.book import SAME_ELEMENTS
from memplan.proto.counter_masks import counter_masks
from memplan.proto.edit import live_nodes, rename_reads
from memplan.proto.names import NameAuthority, defined_names
from memplan.proto.nodes import operator_key, reads_of
from memplan.shapes.tensor_type import FLOATS
from memplan.training.step_file import StepFile

_ROUGHLY = 0.02  # the scale of a dropout may be a float16
_THROUGH = SAME_ELEMENTS | {":Add", ":Sub", ":Mul", ":Div", ":Cast"}


def use_running_statistics(
    proto: onnx.ModelProto, wanted: Sequence[str], step: StepFile, graph: Graph
) -> list[str]:
    """Let what makes ``wanted`` read running statistics, in place.

    Args:
        proto: the step.
        wanted: tensors.
        step: its contract.
        graph: its graph, for shapes.

    Returns:
        The running statistics for which none of a batch was found, although the step renews them
        by something that ``wanted`` depends on.
    """
    makers = {name: node for node in proto.graph.node for name in node.output if name}
    needed = {name for node in live_nodes(proto.graph.node, wanted) for name in node.output}
    pairs = {given: output for output, given in step.contract.new_values.items()}
    names = NameAuthority(defined_names(proto.graph))
    lost: list[str] = []
    renamed: dict[str, str] = {}
    for slot in step.named(Role.RUNNING_STATISTIC):
        output = pairs.get(slot.name)
        if output is None or _is_operator(makers.get(output)):
            continue
        found = _frontier(output, slot.name, makers, needed)
        if len(found) == 1:
            (batch,) = found
            renamed[batch] = _shaped(proto.graph, slot.name, batch, graph, names)
        elif found:
            lost.append(slot.name)
    for node in proto.graph.node:
        rename_reads(node, renamed)
    return lost


def without_counter_masks(graph: onnx.GraphProto) -> None:
    """Let nothing be dropped that a counter drops, in place: what is dropped and scaled becomes a
    copy. Where the scale is elsewhere (in a product, by the runtime's optimizer), the share that
    is kept on average takes it back."""
    masks = counter_masks(graph)
    if not masks:
        return
    names = NameAuthority(defined_names(graph))
    scalars = {
        tensor.name: float(numpy_helper.to_array(tensor).reshape(()))
        for tensor in graph.initializer
        if tensor.data_type in FLOATS and math.prod(tensor.dims) == 1
    }
    for node in list(graph.node):
        share = 1 - masks.get(node.input[0], 1.0) if node.op_type == "Where" else 0.0
        if not share:
            continue
        source, dropped = node.input[1], node.output[0]
        readers = [reader for reader in graph.node if dropped in reads_of(reader)]
        if readers and all(_scales(reader, dropped, share, scalars) for reader in readers):
            for reader in readers:
                _become(reader, "Identity", [source])
        else:
            kept = names.fresh(f"{dropped}/kept")
            like = next(t for t in graph.initializer if t.name == node.input[2])
            value = np.asarray(share, helper.tensor_dtype_to_np_dtype(like.data_type))
            graph.initializer.append(numpy_helper.from_array(value, kept))
            _become(node, "Mul", [source, kept])


def _scales(node: onnx.NodeProto, dropped: str, share: float, scalars: Mapping[str, float]) -> bool:
    """Whether a node divides by the share that is kept, and does nothing else."""
    others = [scalars[name] for name in node.input if name in scalars]
    whole = node.op_type == "Mul" and dropped in node.input and len(others) == 1
    return whole and abs(others[0] * share - 1) < _ROUGHLY


def _become(node: onnx.NodeProto, op: str, inputs: Sequence[str]) -> None:
    node.op_type, node.domain = op, ""
    del node.attribute[:]
    node.input[:] = inputs


def _is_operator(maker: onnx.NodeProto | None) -> bool:
    """Whether the operator itself renews its statistics, and knows evaluation."""
    return maker is None or maker.op_type == "BatchNormalization"


def _frontier(
    output: str, statistic: str, makers: Mapping[str, onnx.NodeProto], needed: set[str]
) -> set[str]:
    """What the forward part makes too of that which a new value is made of."""
    found: set[str] = set()
    seen = {output}
    stack = [output]
    while stack:
        name = stack.pop()
        if name in needed:
            found.add(name)
            continue
        maker = makers.get(name)
        if maker is None or operator_key(maker) not in _THROUGH:
            continue
        for read in maker.input:
            if read and read != statistic and read not in seen:
                seen.add(read)
                stack.append(read)
    return found


def _shaped(
    graph: onnx.GraphProto, statistic: str, batch: str, shapes: Graph, names: NameAuthority
) -> str:
    """The statistic in the shape of that of a batch."""
    own, other = shapes.tensor_named(statistic), shapes.tensor_named(batch)
    if own is None or other is None or own.shape == other.shape:
        return statistic
    shape = names.fresh(f"{statistic}.shape")
    value = helper.make_tensor(shape, onnx.TensorProto.INT64, [len(other.shape)], other.shape)
    graph.initializer.append(value)
    made = names.fresh(f"{statistic}.shaped")
    node = helper.make_node("Reshape", [statistic, shape], [made], names.fresh(made))
    graph.node.insert(0, node)
    return made
