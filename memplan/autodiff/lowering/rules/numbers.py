"""What mixed precision and quantization ask of numbers: finite, small, rounded."""

from __future__ import annotations

import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.value import Value
from memplan.autodiff.lowering.lowering_registry import Results, lowering
from memplan.errors import ModelError

_FLOAT = onnx.TensorProto.FLOAT


@lowering("IsFinite")
def is_finite(ctx: Context) -> Results:
    """Neither infinite nor not a number, by element."""
    x = ctx.tensors[0]
    return [ctx.op("Not", ctx.op("Or", ctx.op("IsNaN", x), ctx.op("IsInf", x)))]


@lowering("IsAllFinite")
def is_all_finite(ctx: Context) -> Results:
    """The same of all elements of all inputs: 0·x is 0 for finite ones alone."""
    if ctx.attribute("isinf_only", 0) or ctx.attribute("isnan_only", 0):
        raise ModelError(
            f"IsAllFinite '{ctx.node.name}' looks for one of infinities and NaN only",
            "export the model without isinf_only and isnan_only",
        )
    found: Value | None = None
    for x in ctx.tensors:
        total = ctx.sum(x * 0.0, range(x.rank), keepdims=False)
        test = ctx.op("Equal", total, ctx.const(0, x.dtype))
        found = test if found is None else ctx.op("And", found, test)
    return [found]


@lowering("ReduceAllL2")
def reduce_all_l2(ctx: Context) -> Results:
    """√Σx² over all elements of all inputs, in float32."""
    total: Value | None = None
    for x in ctx.tensors:
        wide = ctx.cast(x, _FLOAT)
        part = ctx.reduce("ReduceSumSquare", wide, range(x.rank), keepdims=False)
        total = part if total is None else total + part
    assert total is not None
    return [ctx.op("Sqrt", total)]


@lowering("FakeQuant", inputs=3)
def fake_quant(ctx: Context) -> Results:
    """Rounded to the scale and back; the second output is where nothing was cut off."""
    x, scale, zero = ctx.tensors[:3]
    low, high = ctx.attribute("quant_min", 0), ctx.attribute("quant_max", 255)
    number = ctx.op("Round", x / scale) + zero
    inside = ctx.op(
        "And",
        ctx.op("GreaterOrEqual", number, float(low)),
        ctx.op("LessOrEqual", number, float(high)),
    )
    cut = ctx.op("Clip", number, float(low), float(high))
    return [(cut - zero) * scale, inside]


@lowering("FakeQuantGrad", inputs=2)
def fake_quant_grad(ctx: Context) -> Results:
    """Straight through, where nothing was cut off."""
    dy, inside = ctx.tensors[:2]
    return [ctx.op("Where", inside, dy, ctx.const(0, dy.dtype))]
