"""Attention, by products and a softmax, and rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, expansion, gradient
from memplan.autodiff.emit.value import Value
from memplan.errors import ModelError
from memplan.shapes.tensor_type import TensorType

_BOOL = onnx.TensorProto.BOOL
_RANK = 4


def _is_plain(node: onnx.NodeProto) -> bool:
    """Without cache, window and the products as an output; others are inlined as ONNX has them."""
    windows = {"left_window_size", "right_window_size"}
    windowed = any(item.name in windows and item.i >= 0 for item in node.attribute)
    return not (windowed or any(node.input[4:]) or any(node.output[1:]))


@expansion("Attention", when=_is_plain)
def attention(ctx: Context) -> Sequence[Value | None]:
    """softmax(Q·Kᵀ·scale + mask)·V per head; only Q is scaled, which saves a tensor of K's size."""
    apart = ctx.tensors[0].rank < _RANK
    query = _heads(ctx, ctx.tensors[0], ctx.attribute("q_num_heads", 0))
    key, value = (_heads(ctx, v, ctx.attribute("kv_num_heads", 0)) for v in ctx.tensors[1:3])
    size = query.shape[-1]
    if not isinstance(size, int):
        raise ctx.needs("the size of a head")
    scale = ctx.attribute("scale", 0.0) or 1 / math.sqrt(size)
    key, value = (_shared(ctx, part, query) for part in (key, value))
    scores = ctx.op("MatMul", query * scale, ctx.swap_last(key))
    cap = ctx.attribute("softcap", 0.0)
    if cap > 0:
        scores = ctx.op("Tanh", scores * (1 / cap)) * cap
    weights = ctx.op("Softmax", _masked(ctx, scores), axis=-1)
    mixed = ctx.op("MatMul", weights, value)
    if not apart:
        return [mixed]
    merged = ctx.transpose(mixed, [0, 2, 1, 3])
    target = ctx.const([0, 0, -1])
    return [ctx.op("Reshape", merged, target, result=ctx.y.type)]


def _heads(ctx: Context, value: Value, count: int) -> Value:
    """batch × heads × length × size, from batch × length × (heads · size)."""
    if value.rank == _RANK:
        return value
    batch, length, width = value.shape
    size = width // count if isinstance(width, int) else ""
    kind = TensorType(value.dtype, (batch, length, count, size))
    apart = ctx.op("Reshape", value, ctx.const([0, 0, count, -1]), result=kind)
    return ctx.transpose(apart, [0, 2, 1, 3])


def _shared(ctx: Context, value: Value, query: Value) -> Value:
    """Each head of K and V as often as query heads share it."""
    own, wanted = value.shape[1], query.shape[1]
    if own == wanted or not isinstance(own, int) or not isinstance(wanted, int):
        return value
    batch, _, length, size = value.shape
    wide = ctx.unsqueeze(value, [2])
    times = ctx.const([1, 1, wanted // own, 1, 1])
    kind = TensorType(value.dtype, (batch, own, wanted // own, length, size))
    wide = ctx.op("Expand", wide, times, result=kind)
    target = ctx.vector([ctx.const([0, wanted]), *(ctx.dims(value, [k]) for k in (2, 3))])
    flat = TensorType(value.dtype, (batch, wanted, length, size))
    return ctx.op("Reshape", wide, target, result=flat)


def _masked(ctx: Context, scores: Value) -> Value:
    """With the given mask and, if only what came before counts, that of the future added."""
    mask = ctx.input(3)
    if mask is not None and mask.dtype == _BOOL:
        mask = ctx.op("Where", mask, ctx.const(0, scores.dtype), ctx.const(-math.inf, scores.dtype))
    if mask is not None:
        scores = scores + _as_wide(ctx, mask, scores)
    if ctx.attribute("is_causal", 0):
        shape = ctx.dims(scores, [2, 3])
        kind = TensorType(scores.dtype, scores.shape[2:])
        below = ctx.op("Expand", ctx.const(-math.inf, scores.dtype), shape, result=kind)
        scores = scores + ctx.op("Trilu", below, ctx.const(1, 7), upper=1)
    return scores


def _as_wide(ctx: Context, mask: Value, scores: Value) -> Value:
    """The mask; one for fewer keys than there are masks the others (Attention of opset 24)."""
    given, wanted = mask.shape[-1], scores.shape[-1]
    if not isinstance(given, int) or not isinstance(wanted, int) or not 1 < given < wanted:
        return mask
    pads = [0] * (2 * mask.rank - 1) + [wanted - given]
    return ctx.op("Pad", mask, ctx.const(pads), ctx.const(-math.inf, mask.dtype))


@gradient("RotaryEmbedding")
def rotary_embedding(ctx: Context) -> Gradients:
    """Turned back: the same with the opposite angles."""
    if ctx.wants(1) or ctx.wants(2):
        raise ModelError(
            f"no gradient is known for the angles of RotaryEmbedding '{ctx.node.name}'",
            "narrow --wrt so that they are constants",
        )
    _, cosine, sine = ctx.inputs[:3]
    assert sine is not None
    return (
        ctx.op(
            "RotaryEmbedding",
            ctx.dy,
            cosine,
            -sine,
            ctx.input(3),
            interleaved=ctx.attribute("interleaved", 0),
            num_heads=ctx.attribute("num_heads", 0),
            rotary_embedding_dim=ctx.attribute("rotary_embedding_dim", 0),
            result=ctx.tensors[0].type,
        ),
    )
