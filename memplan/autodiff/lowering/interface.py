"""What goes in and out of a training graph of onnxruntime-training.

1. *Accumulators*: ``InPlaceAccumulatorV2`` adds a gradient into a graph input in place, and hands
   out a flag that says nothing. The gradient ``NAME_grad`` becomes the output instead; buffer, flag
   and the input that resets it disappear.
2. *Running statistics*, which BatchNormInternal wrote over its inputs, become outputs ``NAME_new``.
3. *Parameters* that are stored in the file become graph inputs with their values as the defaults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx
from onnx import helper

from memplan.errors import ModelError
from memplan.proto.edit import drop_named, replace_nodes
from memplan.proto.names import NameAuthority, defined_names
from memplan.proto.nodes import names_read
from memplan.shapes.training_ops import differentiated

ACCUMULATOR = "InPlaceAccumulatorV2"
_BATCH_NORM = "BatchNormInternal"
_BUFFER = "_grad.accumulation.buffer"
_RENEWED = ((3, 1), (4, 2))  # input and output slots of running statistics


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Names: the gradient, what it is the gradient of, what it is added into, what resets that."""

    gradient: str
    parameter: str
    buffer: str
    reset: str


def accumulators(graph: onnx.GraphProto) -> Iterator[Accumulator]:
    """The gradients that a graph adds up in place, in order.

    Raises:
        ModelError: an accumulator does not say what its gradient belongs to.
    """
    for node in graph.node:
        if node.op_type != ACCUMULATOR:
            continue
        buffer, gradient, reset = (*node.input, "", "", "")[:3]
        parameter = buffer.removesuffix(_BUFFER) if buffer.endswith(_BUFFER) else None
        parameter = parameter or differentiated(gradient)
        if parameter is None or not gradient:
            raise ModelError(
                f"{ACCUMULATOR} '{node.name}' adds '{gradient}' to '{buffer}', and neither name "
                "says which parameter the gradient is of",
                f"buffers are named NAME{_BUFFER}",
            )
        yield Accumulator(gradient, parameter, buffer, reset)


def drop_accumulators(graph: onnx.GraphProto, found: Collection[Accumulator]) -> None:
    """Let gradients be outputs instead of what they are added to, in place.

    An accumulator whose flag or sum a node reads stays, to be lowered like others.
    """
    read = names_read(graph.node)
    stays = [n.op_type != ACCUMULATOR or not read.isdisjoint(n.output) for n in graph.node]
    sides = list(zip(graph.node, stays, strict=True))
    lost = {name for node, stay in sides if not stay for name in node.output}
    replace_nodes(graph, [node for node, stay in sides if stay])
    drop_named(graph.output, lost)
    _add_gradients(graph, found)


def drop_buffers(graph: onnx.GraphProto, found: Collection[Accumulator]) -> None:
    """Drop the buffers, and what resets them, that nobody reads any more, in place."""
    unused = {name for item in found for name in (item.buffer, item.reset)}
    unused -= names_read(graph.node)
    drop_named(graph.input, unused)


def _add_gradients(graph: onnx.GraphProto, found: Collection[Accumulator]) -> None:
    """Graph outputs ``<parameter>_grad``, whatever the gradient is called."""
    there = {value.name for value in graph.output}
    defined = set(defined_names(graph))
    for item in found:
        wanted = f"{item.parameter}_grad"
        if item.gradient != wanted and wanted not in defined:
            graph.node.add().CopyFrom(helper.make_node("Identity", [item.gradient], [wanted]))
        name = wanted if item.gradient == wanted or wanted not in defined else item.gradient
        if name not in there:
            there.add(name)
            graph.output.append(onnx.ValueInfoProto(name=name))


def renew_statistics(graph: onnx.GraphProto) -> dict[str, str]:
    """Let new running statistics be graph outputs, in place; them and what they are the next values
    of. A layer that is called twice renews them one after the other."""
    names = NameAuthority(defined_names(graph))
    given = {value.name for value in graph.input} | {t.name for t in graph.initializer}
    latest: dict[str, str] = {}
    for node in graph.node:
        if node.op_type != _BATCH_NORM:
            continue
        for slot, made in _RENEWED:
            statistic = node.input[slot] if slot < len(node.input) else ""
            if statistic not in given:
                continue
            node.input[slot] = latest.get(statistic, statistic)
            node.output.extend([""] * (made + 1 - len(node.output)))
            node.output[made] = latest[statistic] = node.output[made] or names.fresh(
                f"{statistic}_new"
            )
    there = {value.name for value in graph.output}
    graph.output.extend(onnx.ValueInfoProto(name=n) for n in latest.values() if n not in there)
    return {new: old for old, new in latest.items()}


def offer_values(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Let stored tensors be graph inputs with their values as the defaults, in place."""
    given = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if tensor.name in names and tensor.name not in given:
            graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
