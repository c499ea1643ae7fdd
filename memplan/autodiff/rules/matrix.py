"""Matrix products."""

from __future__ import annotations

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Value
from memplan.errors import ModelError


@gradient("MatMul")
def matmul(ctx: Context) -> Gradients:
    """dA = dY·Bᵀ, dB = Aᵀ·dY; vectors and batch dimensions as ``numpy.matmul`` takes them."""
    a, b = ctx.tensors
    if a.rank >= 2 and b.rank == 2 and isinstance(b.shape[0], int) and isinstance(b.shape[1], int):
        return _by_weight(ctx, b.shape[0], b.shape[1])
    return (lambda: _left(ctx, a, b), lambda: _right(ctx, a, b))


def _by_weight(ctx: Context, inner: int, outer: int) -> Gradients:
    """A weight of these sizes behind any number of batch dimensions: Gemm transposes without a
    copy."""
    a, b = ctx.tensors
    return (
        lambda: ctx.reshape_like(ctx.gemm(ctx.rows(ctx.dy, outer), b, 0, 1), a),
        lambda: ctx.gemm(ctx.rows(a, inner), ctx.rows(ctx.dy, outer), 1),
    )


def _left(ctx: Context, a: Value, b: Value) -> Value:
    rows = ctx.unsqueeze(a, [0]) if a.rank == 1 else a
    columns = ctx.unsqueeze(b, [1]) if b.rank == 1 else b
    dy = _matrix_dy(ctx, a, b)
    if _dearer(ctx, columns, dy, rows):
        product = ctx.swap_last(ctx.op("MatMul", columns, ctx.swap_last(dy)))
    else:
        product = ctx.op("MatMul", dy, ctx.swap_last(columns))
    return ctx.reshape_like(ctx.sum_to(product, product, rows), a)


def _right(ctx: Context, a: Value, b: Value) -> Value:
    rows = ctx.unsqueeze(a, [0]) if a.rank == 1 else a
    columns = ctx.unsqueeze(b, [1]) if b.rank == 1 else b
    dy = _matrix_dy(ctx, a, b)
    if _dearer(ctx, rows, dy, columns):
        product = ctx.swap_last(ctx.op("MatMul", ctx.swap_last(dy), rows))
    else:
        product = ctx.op("MatMul", ctx.swap_last(rows), dy)
    return ctx.reshape_like(ctx.sum_to(product, product, columns), b)


def _dearer(ctx: Context, factor: Value, *others: Value) -> bool:
    """Whether a copy of ``factor``, transposed, is larger than copies of two others together.

    Attention's weights are: length × length, where the others are length × size of a head.
    """
    sizes = [value.type.elements for value in (factor, *others)]
    if ctx.before_swap(factor) is not None:
        return False
    known = [size for size in sizes if size is not None]
    return len(known) == len(sizes) and known[0] > sum(known[1:])


def _matrix_dy(ctx: Context, a: Value, b: Value) -> Value:
    """dY with the dimensions that a vector on either side left out."""
    dy = ctx.dy
    if b.rank == 1:
        dy = ctx.unsqueeze(dy, [dy.rank])
    if a.rank == 1:
        dy = ctx.unsqueeze(dy, [dy.rank - 1])
    return dy


@gradient("Gemm")
def gemm(ctx: Context) -> Gradients:
    """Y = α·A'·B' + β·C with A', B' transposed on request.

    Raises:
        ModelError: β where A and B have nothing to multiply: ONNX Runtime (1.31.1) leaves it out.
    """
    a, b = ctx.tensors[:2]
    c, dy = ctx.input(2), ctx.dy
    alpha, beta = ctx.attribute("alpha", 1.0), ctx.attribute("beta", 1.0)
    trans_a, trans_b = ctx.attribute("transA", 0), ctx.attribute("transB", 0)

    def left() -> Value:
        if trans_a:
            return ctx.gemm(b, dy, trans_b, 1, alpha)
        return ctx.gemm(dy, b, 0, 1 - trans_b, alpha)

    def right() -> Value:
        if trans_b:
            return ctx.gemm(dy, a, 1, trans_a, alpha)
        return ctx.gemm(a, dy, 1 - trans_a, 0, alpha)

    def bias() -> Value | None:
        if c is None:
            return None
        if beta != 1 and a.shape[0 if trans_a else 1] == 0:
            raise ModelError(
                f"the gradient of Gemm '{ctx.node.name}', whose products are sums of nothing, "
                "needs beta = 1",
                "ONNX Runtime does not multiply by it there; multiply C before",
            )
        return ctx.reshape_like(ctx.sum_to(dy, dy, c), c) * beta

    return (left, right, bias)
