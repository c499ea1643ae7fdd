"""Softmax, cross-entropy and their gradients."""

from __future__ import annotations

import onnx
from onnx import helper

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import entry_for
from memplan.autodiff.emit.value import Value
from memplan.autodiff.lowering.lowering_registry import Results, lowering
from memplan.autodiff.rules.scattering import add_along
from memplan.errors import ModelError
from memplan.shapes.tensor_type import NARROW_FLOATS

_CLASSES = 1
_FLOAT = onnx.TensorProto.FLOAT


@lowering("SoftmaxGrad", inputs=2)
def softmax_grad_by_rows(ctx: Context) -> Results:
    """Before opset 13: the sum goes over all axes from ``axis`` on."""
    dy, y = ctx.tensors[:2]
    product = dy * y
    axes = range(ctx.axis(1, y.rank), y.rank)
    return [product - y * ctx.sum(product, axes)]


@lowering("LogSoftmaxGrad", inputs=2)
def log_softmax_grad_by_rows(ctx: Context) -> Results:
    """The same of its logarithm."""
    dy, y = ctx.tensors[:2]
    axes = range(ctx.axis(1, y.rank), y.rank)
    return [dy - ctx.op("Exp", y) * ctx.sum(dy, axes)]


@lowering("BiasSoftmax", inputs=2)
def bias_softmax(ctx: Context) -> Results:
    """Softmax of a sum, over all axes from ``axis`` on."""
    data, bias = ctx.tensors[:2]
    axis = ctx.axis(1, data.rank)
    if axis != data.rank - 1 or not ctx.attribute("is_inner_broadcast", 1):
        raise ModelError(
            f"BiasSoftmax '{ctx.node.name}' over several axes, or with an outer broadcast",
            "export the model with graph optimizations off",
        )
    return [ctx.op("Softmax", data + bias, axis=axis)]


# -- cross-entropy -----------------------------------------------------------------------------


@lowering("SoftmaxCrossEntropyLossInternal", inputs=2)
def cross_entropy(ctx: Context) -> Results:
    """ONNX's, with the label that does not count as an input and outputs of a type of their own."""
    scores, labels = ctx.tensors[:2]
    kind = ctx.attribute("output_type", scores.dtype)
    attributes = [helper.make_attribute("reduction", ctx.attribute("reduction", "mean"))]
    known = ctx.constant(ctx.input(3))
    if ctx.input(3) is not None:
        if known is None:
            raise ModelError(
                f"{ctx.node.op_type} '{ctx.node.name}': ignore_index is computed at run time",
                "make it a constant",
            )
        attributes.append(helper.make_attribute("ignore_index", int(known.item())))
    node = onnx.NodeProto(op_type="SoftmaxCrossEntropyLoss", name=ctx.node.name)
    weights = ctx.input(2)
    node.input.extend(v.name for v in (scores, labels, weights) if v is not None)
    node.output.extend(ctx.node.output)
    node.attribute.extend(attributes)
    entry = entry_for(node)
    assert entry is not None
    assert entry.expansion is not None
    loss, logs = entry.expansion(Context(ctx.emitter, node))
    return [v if v is None else ctx.cast(v, kind) for v in (loss, logs)]


@lowering("SoftmaxCrossEntropyLossGrad", inputs=3)
def cross_entropy_grad(ctx: Context) -> Results:
    """See :func:`_scores_grad`; the label that does not count is an attribute."""
    ignored: Value | None = None
    if ctx.has_attribute("ignore_index"):
        ignored = ctx.const(ctx.attribute("ignore_index", 0), ctx.tensors[2].dtype)
    return [_scores_grad(ctx, ignored, ctx.input(4))]


@lowering("SoftmaxCrossEntropyLossInternalGrad", inputs=3)
def cross_entropy_internal_grad(ctx: Context) -> Results:
    """The same with the label that does not count as an input."""
    ignored = ctx.input(4)
    if ignored is not None:
        ignored = ctx.squeeze(ctx.cast(ignored, ctx.tensors[2].dtype), range(ignored.rank))
    return [_scores_grad(ctx, ignored, ctx.input(5))]


@lowering("SparseSoftmaxCrossEntropyGrad", inputs=3)
def sparse_cross_entropy_grad(ctx: Context) -> Results:
    """Scores × classes along the last axis; weights are per score."""
    dy, logs, labels = ctx.tensors[:3]
    weights = ctx.input(3)
    mean = ctx.attribute("reduction", "mean") == "mean"
    share = dy if weights is None else dy * weights
    if mean:
        axes = range(labels.rank)
        whole = ctx.count(labels, axes, dy.dtype)
        share = share / (whole if weights is None else ctx.sum(weights, axes, keepdims=False))
    return [_minus_one_at(ctx, logs, labels, share, logs.rank - 1)]


@lowering("SoftmaxCrossEntropyGrad", inputs=3)
def dense_cross_entropy_grad(ctx: Context) -> Results:
    """Labels are probabilities of the shape of the scores."""
    dy, logs, labels = ctx.tensors[:3]
    apart = ctx.op("Exp", logs) - labels
    if ctx.attribute("reduction", "mean") == "mean":
        dy = dy / ctx.count(logs, range(logs.rank - 1), dy.dtype)
    elif ctx.attribute("reduction", "mean") == "none":
        dy = ctx.unsqueeze(dy, [logs.rank - 1])
    return [apart * dy]


def _scores_grad(ctx: Context, ignored: Value | None, bias: Value | None) -> Value:
    """dy·w·(softmax - 1 at the label) over Σw: from the logarithms of shape N × C × ... and labels
    of shape N × ..., whose weights w are 0 where they do not count."""
    labels = ctx.tensors[2]
    dy, logs, weights = (_wide(ctx, ctx.input(slot)) for slot in (0, 1, 3))
    assert dy is not None
    assert logs is not None
    kind = ctx.attribute("output_type", ctx.tensors[1].dtype)
    reduction = ctx.attribute("reduction", "mean")
    share: Value | None = None
    if ignored is not None:
        counts = ctx.op("Not", ctx.op("Equal", labels, ignored))
        labels = ctx.op("Where", counts, labels, ctx.const(0, labels.dtype))
        each = ctx.const(1, dy.dtype)
        if weights is not None:
            each = ctx.op("Gather", weights, labels)
        share = ctx.op("Where", counts, each, 0)
    elif weights is not None:
        share = ctx.op("Gather", weights, labels)
    if reduction == "mean":
        axes = range(labels.rank)
        whole = (
            ctx.count(labels, axes, dy.dtype)
            if share is None
            else ctx.sum(share, axes, keepdims=False)
        )
        dy = dy / whole
    share = dy if share is None else share * dy
    found = ctx.cast(_minus_one_at(ctx, logs, labels, share, _CLASSES), kind)
    return found if bias is None else found + ctx.reshape_like(bias, found)


def _wide(ctx: Context, value: Value | None) -> Value | None:
    """``value`` in float32 at least, as in the kernels: half a precision has no number for many
    labels."""
    return ctx.cast(value, _FLOAT) if value is not None and value.dtype in NARROW_FLOATS else value


def _minus_one_at(ctx: Context, logs: Value, labels: Value, share: Value, axis: int) -> Value:
    """share·(eˡᵒᵍˢ - 1 at the label), without a tensor for the labels in full size."""
    share = ctx.cast(share, logs.dtype)
    column = ctx.unsqueeze(share, [axis]) if share.rank == labels.rank else share
    places = ctx.unsqueeze(labels, [axis])
    rest = ctx.op("Exp", logs) * column
    return add_along(ctx, rest, places, ctx.expand_like(-column, places), axis)
