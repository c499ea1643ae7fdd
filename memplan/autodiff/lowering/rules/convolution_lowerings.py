"""Gradients of convolutions and pools."""

from __future__ import annotations

from memplan.autodiff.emit.context import Context
from memplan.autodiff.lowering.gradient_lowerings import Forward, gradients, source, wanted
from memplan.autodiff.lowering.lowering_registry import Results, lowering
from memplan.errors import ModelError


@lowering("ConvGrad", "ConvTransposeGrad", inputs=3)
def convolution_grad(ctx: Context) -> Results:
    """dX, dW and dB by dY, X and W; of the bias, only its place is needed."""
    dy, x, weight = ctx.tensors[:3]
    wants, op = wanted(ctx, 3), ctx.node.op_type.removesuffix("Grad")
    found = gradients(ctx, Forward(op, dy, [x, weight, None], [dy]), wants)
    if wants[2]:
        found[2] = ctx.sum(dy, [0, *range(2, dy.rank)], keepdims=False)
    return found


@lowering("MaxPoolGrad", inputs=2)
def max_pool_grad(ctx: Context) -> Results:
    """To the elements that won, by the indices that the forward node gave."""
    dy, indices = ctx.tensors[:2]
    made = ctx.maker(indices)
    if made is None or made.op_type != "MaxPool":
        raise ModelError(
            f"MaxPoolGrad '{ctx.node.name}': its indices do not come from a MaxPool",
            "the shape of what was pooled is known from there alone",
        )
    forward = Forward(
        "MaxPool", dy, [ctx.tensor(made.input[0])], [dy, indices], made.name, list(made.attribute)
    )
    return gradients(ctx, forward)


@lowering("AveragePoolGrad")
def average_pool_grad(ctx: Context) -> Results:
    """Shares of the gradient, over the windows that an element is in."""
    dy = ctx.tensors[0]
    return gradients(ctx, Forward("AveragePool", dy, [source(ctx, None)], [dy]))


@lowering("ResizeGrad", inputs=2)
def resize_grad(ctx: Context) -> Results:
    """The transpose of the interpolation."""
    dy, x = ctx.tensors[:2]
    return gradients(ctx, Forward("Resize", dy, [x, ctx.input(2), ctx.input(3)], [dy]))
