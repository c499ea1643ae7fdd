"""Matrix products with transpositions and a factor."""

from __future__ import annotations

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.value import Value
from memplan.autodiff.lowering.lowering_registry import Results, lowering


@lowering("FusedMatMul", "TransposeMatMul", inputs=2)
def fused_matmul(ctx: Context) -> Results:
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
