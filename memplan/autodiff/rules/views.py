"""Operators that only give elements another place, each once."""

from __future__ import annotations

import numpy as np

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Value
from memplan.errors import ModelError


def _reshaped(ctx: Context) -> Value:
    return ctx.reshape_like(ctx.whole(), ctx.tensors[0])


def _unsqueezed(ctx: Context) -> Value:
    """Dimensions of size 1 come back."""
    x, given = ctx.tensors[0], ctx.integers(1, "axes")
    axes = [k for k, dim in enumerate(x.shape) if dim == 1] if given is None else given
    return ctx.unsqueeze(ctx.whole(), sorted(axis % x.rank for axis in axes))


def _squeezed(ctx: Context) -> Value:
    """Dimensions of size 1 go again."""
    axes = ctx.integers(1, "axes") or []
    return ctx.squeeze(ctx.whole(), sorted(axis % ctx.y.rank for axis in axes))


def _transposed(ctx: Context) -> Value:
    """The inverse permutation."""
    rank = ctx.y.rank
    perm = ctx.attribute("perm", list(range(rank))[::-1])
    return ctx.transpose(ctx.whole(), sorted(range(rank), key=lambda axis: perm[axis]))


_INVERSES = {
    "Reshape": _reshaped,
    "Flatten": _reshaped,
    "Squeeze": _unsqueezed,
    "Unsqueeze": _squeezed,
    "Transpose": _transposed,
}


@gradient(*_INVERSES, broadcast=True, inputs=(0,))
def view(ctx: Context) -> Gradients:
    """The inverse; one number that stands for all elements stays one."""
    scalar = ctx.dy.type.shape == ()
    return (ctx.dy if scalar else _INVERSES[ctx.node.op_type](ctx),)


@gradient("DepthToSpace")
def depth_to_space(ctx: Context) -> Gradients:
    """SpaceToDepth, which knows the mode DCR only."""
    block = ctx.attribute("blocksize", 1)
    if ctx.attribute("mode", "DCR") == "DCR":
        return (ctx.op("SpaceToDepth", ctx.dy, blocksize=block),)
    # Channels are block row, block column, channel then; the input's are the other way round.
    channels = ctx.y.shape[1]
    if not isinstance(channels, int):
        raise ModelError(
            f"the number of channels of '{ctx.y.name}' is not known, and the gradient of "
            "DepthToSpace depends on it"
        )
    order = np.arange(block * block * channels).reshape(block * block, channels).T.reshape(-1)
    moved = ctx.op("SpaceToDepth", ctx.dy, blocksize=block)
    return (ctx.op("Gather", moved, ctx.const(order), axis=1),)


@gradient("SpaceToDepth")
def space_to_depth(ctx: Context) -> Gradients:
    """DepthToSpace of mode DCR."""
    return (ctx.op("DepthToSpace", ctx.dy, blocksize=ctx.attribute("blocksize", 1)),)
