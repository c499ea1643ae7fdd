"""Activation functions that ONNX Runtime fused, and the gradients of all of them."""

from __future__ import annotations

import onnx
from onnx import helper

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.value import Value
from memplan.autodiff.lowering.gradient_lowerings import Forward, gradients
from memplan.autodiff.lowering.lowering_registry import Results, lowering

_QUICK = 1.702


@lowering("Gelu")
def gelu(ctx: Context) -> Results:
    """ONNX's own since opset 20."""
    return [ctx.op("Gelu", ctx.tensors[0])]


@lowering("BiasGelu", inputs=2)
def bias_gelu(ctx: Context) -> Results:
    """Gelu of a sum."""
    return [ctx.op("Gelu", _biased(ctx, 0))]


@lowering("FastGelu")
def fast_gelu(ctx: Context) -> Results:
    """By tanh, of a sum if there is a bias."""
    return [ctx.op("Gelu", _biased(ctx, 0), approximate="tanh")]


@lowering("QuickGelu")
def quick_gelu(ctx: Context) -> Results:
    """x·σ(αx)."""
    x = ctx.tensors[0]
    return [x * ctx.op("Sigmoid", x * ctx.attribute("alpha", _QUICK))]


def _biased(ctx: Context, slot: int) -> Value:
    """The input ``slot`` plus the one behind it, if there is one."""
    x, bias = ctx.tensors[slot], ctx.input(slot + 1)
    return x if bias is None else x + bias


# -- gradients: the rules of ``grad`` ----------------------------------------------------------

# Second input: the output. ReluGrad and LeakyReluGrad may read the input: their signs are one.
_OF_OUTPUT = {
    "ReluGrad": "Relu",
    "SigmoidGrad": "Sigmoid",
    "TanhGrad": "Tanh",
    "LeakyReluGrad": "LeakyRelu",
    "EluGrad": "Elu",
    "SoftmaxGrad_13": "Softmax",
    "LogSoftmaxGrad_13": "LogSoftmax",
}
# Second input: the input, perhaps less a bias, which is the third. QuickGelu is ONNX's Swish.
_OF_INPUT = {
    "GeluGrad": "Gelu",
    "BiasGeluGrad_dX": "Gelu",
    "FastGeluGrad": "Gelu",
    "BiasFastGeluGrad_dX": "Gelu",
    "QuickGeluGrad": "Swish",
    "SinGrad": "Sin",
}


@lowering(*_OF_OUTPUT, inputs=2)
def from_output(ctx: Context) -> Results:
    """The gradient at an output."""
    dy, y = ctx.tensors[:2]
    return gradients(ctx, Forward(_OF_OUTPUT[ctx.node.op_type], dy, [y], [y]))


@lowering(*_OF_INPUT, inputs=2)
def from_input(ctx: Context) -> Results:
    """The gradient at an input, or at its sum with a bias."""
    foreign, dy, x = ctx.node.op_type, ctx.tensors[0], _biased(ctx, 1)
    stated: list[onnx.AttributeProto] = []
    if "FastGelu" in foreign:
        stated.append(helper.make_attribute("approximate", "tanh"))
    elif foreign == "QuickGeluGrad":
        stated.append(helper.make_attribute("alpha", ctx.attribute("alpha", _QUICK)))
    return gradients(ctx, Forward(_OF_INPUT[foreign], dy, [x], [x], attributes=stated))
