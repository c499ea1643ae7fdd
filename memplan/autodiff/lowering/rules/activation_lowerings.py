"""Activation functions that ONNX Runtime fused, and the gradients of all of them."""

from __future__ import annotations

from onnx import helper

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.value import Value
from memplan.autodiff.lowering.gradient_lowerings import Forward, gradients
from memplan.autodiff.lowering.lowering_registry import Results, lowering

_QUICK = 1.702


# -- forward -----------------------------------------------------------------------------------


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


# -- from the output ---------------------------------------------------------------------------


@lowering("ReluGrad", inputs=2)
def relu_grad(ctx: Context) -> Results:
    """The second input is the output, or the input: their signs are one."""
    return _from_output(ctx, "Relu")


@lowering("SigmoidGrad", inputs=2)
def sigmoid_grad(ctx: Context) -> Results:
    """From the output."""
    return _from_output(ctx, "Sigmoid")


@lowering("TanhGrad", inputs=2)
def tanh_grad(ctx: Context) -> Results:
    """From the output."""
    return _from_output(ctx, "Tanh")


@lowering("LeakyReluGrad", inputs=2)
def leaky_relu_grad(ctx: Context) -> Results:
    """From the output, whose sign is the input's."""
    return _from_output(ctx, "LeakyRelu")


@lowering("EluGrad", inputs=2)
def elu_grad(ctx: Context) -> Results:
    """From the output."""
    return _from_output(ctx, "Elu")


def _from_output(ctx: Context, op: str) -> Results:
    dy, y = ctx.tensors[:2]
    return gradients(ctx, Forward(op, dy, [y], [y]))


# -- from the input ----------------------------------------------------------------------------


@lowering("GeluGrad", "BiasGeluGrad_dX", inputs=2)
def gelu_grad(ctx: Context) -> Results:
    """By the error function."""
    return _from_input(ctx, "Gelu")


@lowering("FastGeluGrad", "BiasFastGeluGrad_dX", inputs=2)
def fast_gelu_grad(ctx: Context) -> Results:
    """By tanh."""
    return _from_input(ctx, "Gelu", approximate="tanh")


@lowering("QuickGeluGrad", inputs=2)
def quick_gelu_grad(ctx: Context) -> Results:
    """Of x·σ(αx), which ONNX calls Swish."""
    return _from_input(ctx, "Swish", alpha=ctx.attribute("alpha", _QUICK))


@lowering("SinGrad", inputs=2)
def sin_grad(ctx: Context) -> Results:
    """cos x."""
    return _from_input(ctx, "Sin")


def _from_input(ctx: Context, op: str, **attributes: str | float) -> Results:
    """The gradient at the second input, or at its sum with the third."""
    dy, x = ctx.tensors[0], _biased(ctx, 1)
    stated = [helper.make_attribute(name, value) for name, value in attributes.items()]
    return gradients(ctx, Forward(op, dy, [x], [x], attributes=stated))
