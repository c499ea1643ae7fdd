"""Losses behind a forward graph that ends in logits or predictions."""

from __future__ import annotations

import onnx

from memplan.autodiff.assemble import append
from memplan.autodiff.emit.emitter import Emitter, Scope
from memplan.autodiff.emit.operations import INT64, Operations
from memplan.autodiff.emit.value import Value
from memplan.autodiff.forward.expand import emitter_for
from memplan.errors import ModelError, UsageError
from memplan.proto.edit import drop_named
from memplan.shapes.tensor_type import TensorType
from memplan.units import counted

KINDS = ("cross-entropy", "mse")


def add_loss(
    model: onnx.ModelProto, kind: str, logits: str, class_axis: int | None = None
) -> tuple[str, int | None]:
    """Append a loss, as a graph output, and an input for the labels or targets; the name of the
    loss, and the axis of its classes.

    ``cross-entropy`` is the mean of -ln softmax at the label (int64, the shape of the logits
    without the axis of classes: by default the second, as in ONNX, but the last of three).
    ``mse`` is the mean of squared differences from a target of the same shape. ``logits`` is no
    graph output any more: outputs are held to the end of the step.

    Raises:
        ModelError: there is no such float tensor, or its rank is not known or too low.
        UsageError: the axis does not exist.
    """
    emitter = emitter_for(model, ())
    value = emitter.tensor(logits)
    if not value.type.is_float:
        raise ModelError(
            f"--logits {logits}: the graph has no float tensor of that name",
            "graph outputs: " + ", ".join(v.name for v in model.graph.output[:8]),
        )
    with emitter.scope(Scope("loss")):
        if kind == "mse":
            axis = None
            loss = _squared_error(emitter, value)
        else:
            axis = _class_axis(value, class_axis)
            loss = _cross_entropy(emitter, value, axis)
    graph = model.graph
    graph.value_info.extend(value for value in graph.output if value.name == logits)
    drop_named(graph.output, {logits})
    name = emitter.fresh("loss")
    append(model, emitter, {name: loss})
    return name, axis


def _class_axis(logits: Value, wanted: int | None) -> int:
    rank = logits.rank
    if rank < 2:
        raise ModelError(
            f"the logits '{logits.name}' have {counted(rank, 'dimension')}; cross-entropy needs a "
            "batch and classes",
        )
    if wanted is None:
        return 2 if rank == 3 else 1
    if not -rank <= wanted < rank:
        raise UsageError(f"--class-axis {wanted}: the logits have {counted(rank, 'dimension')}")
    return wanted % rank


def _cross_entropy(emitter: Emitter, logits: Value, axis: int) -> Value:
    shape = (*logits.shape[:axis], *logits.shape[axis + 1 :])
    labels = emitter.input("labels", TensorType(INT64, shape))
    logs = emitter.op("LogSoftmax", logits, axis=axis)
    places = Operations(emitter).unsqueeze(labels, [axis])
    picked = emitter.op("GatherElements", logs, places, axis=axis)
    mean = Operations(emitter).reduce("ReduceMean", picked, range(logits.rank), keepdims=False)
    return -mean


def _squared_error(emitter: Emitter, predictions: Value) -> Value:
    targets = emitter.input("targets", predictions.type)
    apart = predictions - targets
    axes = range(predictions.rank)
    return Operations(emitter).reduce("ReduceMean", apart * apart, axes, keepdims=False)
