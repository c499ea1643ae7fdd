"""Operators of ONNX Runtime: what its optimizer makes of ONNX's, and what onnxruntime-training made
of a forward graph. Each is written by ONNX's operators of opset 20 wherever it stands
(:mod:`memplan.autodiff.forward.foreign`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import onnx
from onnx import helper

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import expansion
from memplan.autodiff.emit.value import Value
from memplan.autodiff.forward.convert import ATEN, MICROSOFT
from memplan.autodiff.rules.norms import wide
from memplan.errors import ModelError

_MOMENTUM, _QUICK = 0.9, 1.702
_microsoft = partial(expansion, domain=MICROSOFT, everywhere=True)
Values = Sequence[Value | None]


# -- activations -----------------------------------------------------------------------------------


@_microsoft("Gelu", "BiasGelu")
def gelu(ctx: Context) -> Values:
    """ONNX's own since opset 20, perhaps of a sum."""
    return [ctx.op("Gelu", _biased(ctx))]


@_microsoft("FastGelu")
def fast_gelu(ctx: Context) -> Values:
    """By tanh, of a sum if there is a bias."""
    return [ctx.op("Gelu", _biased(ctx), approximate="tanh")]


@_microsoft("QuickGelu")
def quick_gelu(ctx: Context) -> Values:
    """x·σ(αx)."""
    x = ctx.tensors[0]
    return [x * ctx.op("Sigmoid", x * ctx.attribute("alpha", _QUICK))]


@_microsoft("BiasSoftmax")
def bias_softmax(ctx: Context) -> Values:
    """Softmax of a sum, along the last axis."""
    data = ctx.tensors[0]
    if ctx.axis(1, data.rank) != data.rank - 1 or not ctx.attribute("is_inner_broadcast", 1):
        raise ModelError(
            f"BiasSoftmax '{ctx.node.name}' over several axes, or with an outer broadcast",
            "export the model with graph optimizations off",
        )
    return [ctx.op("Softmax", _biased(ctx), axis=data.rank - 1)]


def _biased(ctx: Context) -> Value:
    """The first input plus the second, if there is one."""
    x, bias = ctx.tensors[0], ctx.input(1)
    return x if bias is None else x + bias


# -- products and pieces ---------------------------------------------------------------------------


@_microsoft("FusedMatMul")
def fused_matmul(ctx: Context) -> Values:
    """alpha·A·B, each perhaps transposed before."""
    left, right = (_operand(ctx, slot, side) for slot, side in enumerate("AB"))
    product = ctx.op("MatMul", left, right)
    alpha = ctx.attribute("alpha", 1.0)
    return [product if alpha == 1 else product * alpha]


def _operand(ctx: Context, slot: int, side: str) -> Value:
    """``transBatch`` moves the first axis behind the batch, and only then ``trans`` exchanges the
    last two; vectors are not transposed."""
    value = ctx.tensors[slot]
    swapped, moved = (ctx.attribute(f"{kind}{side}", 0) for kind in ("trans", "transBatch"))
    if not (swapped or moved) or value.rank < 2:
        return value
    order = list(range(value.rank))
    if moved:
        order = [*order[1:-1], 0, order[-1]]
    if swapped:
        order[-2:] = reversed(order[-2:])
    return ctx.transpose(value, order)


@_microsoft("ConcatTraining")
def concat(ctx: Context) -> Values:
    """Concat; the second output is how long each input is."""
    axis = ctx.axis(0, ctx.tensors[0].rank)
    joined = ctx.op("Concat", *ctx.tensors, axis=axis)
    if len(ctx.outputs) < 2 or ctx.outputs[1] is None:
        return [joined]
    return [joined, ctx.vector([ctx.dims(value, [axis]) for value in ctx.tensors])]


def _calls(name: str) -> Callable[[onnx.NodeProto], bool]:
    """Whether an ``ATen`` node calls that operator of PyTorch."""
    given = helper.make_attribute("operator", name)
    return lambda node: any(item == given for item in node.attribute)


@expansion("ATen", domain=ATEN, when=_calls("embedding"), everywhere=True)
def embedding(ctx: Context) -> Values:
    """(weight, indices, padding index, scale by frequency, ...): rows of the weight. The padding
    gets no gradient."""
    weight, indices = ctx.tensors[:2]
    scaled, padding = ctx.input(3), ctx.constant(ctx.input(2))
    known = ctx.constant(scaled)
    if scaled is not None and (known is None or known.any()):
        raise ModelError(
            f"embedding '{ctx.node.name}' scales gradients by frequency",
            "train with scale_grad_by_freq=False",
        )
    if ctx.input(2) is not None and (padding is None or int(padding.item()) >= 0):
        raise ModelError(
            f"embedding '{ctx.node.name}' has a padding index, whose row gets no gradient",
            "train with padding_idx=None",
        )
    return [ctx.op("Gather", weight, indices)]


# -- losses ----------------------------------------------------------------------------------------


@_microsoft("SoftmaxCrossEntropyLossInternal")
def cross_entropy(ctx: Context) -> Values:
    """ONNX's, with the label that does not count as an input and outputs of a type of their own."""
    scores, labels = ctx.tensors[:2]
    ignored, known = ctx.input(3), ctx.constant(ctx.input(3))
    if ignored is not None and known is None:
        raise ModelError(
            f"{ctx.node.op_type} '{ctx.node.name}': ignore_index is computed at run time",
            "make it a constant",
        )
    found = ctx.ops(
        "SoftmaxCrossEntropyLoss",
        *(scores, labels, ctx.input(2)),
        outputs=2,
        reduction=ctx.attribute("reduction", "mean"),
        ignore_index=None if known is None else int(known.item()),
    )
    kind = ctx.attribute("output_type", scores.dtype)
    return [ctx.cast(value, kind) for value in found]


# -- normalizations and dropout --------------------------------------------------------------------


@_microsoft("SimplifiedLayerNormalization")
def simplified_layer_norm(ctx: Context) -> Values:
    """γ·x over its root mean square; the inverse of the latter is the second output."""
    x, scale = ctx.tensors[:2]
    numbers = wide(ctx, x)
    axes = range(ctx.axis(-1, x.rank), x.rank)
    square = ctx.reduce("ReduceMean", numbers * numbers, axes)
    root = ctx.op("Sqrt", square + ctx.epsilon)
    inverse = ctx.op("Reciprocal", root)
    return [ctx.cast(numbers * inverse, scale.dtype) * scale, inverse]


@_microsoft("BatchNormInternal")
def batch_norm(ctx: Context) -> Values:
    """ONNX's in training mode: y, new running mean and variance."""
    return ctx.ops(
        "BatchNormalization",
        *ctx.tensors[:5],
        outputs=3,
        training_mode=1,
        epsilon=ctx.epsilon,
        momentum=ctx.attribute("momentum", _MOMENTUM),
    )


@_microsoft("BiasDropout")
def bias_dropout(ctx: Context) -> Values:
    """Dropout of a sum, plus a residual if there is one; the second output is the mask."""
    data, bias = ctx.tensors[:2]
    given = [data + bias, ctx.input(3), ctx.input(4)]
    while given[-1] is None:
        given.pop()
    seed = ctx.attribute("seed", 0) if ctx.has_attribute("seed") else None
    dropped, mask = ctx.ops("Dropout", *given, outputs=2, seed=seed)
    residual = ctx.input(2)
    return [dropped if residual is None else dropped + residual, mask]
