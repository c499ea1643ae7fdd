"""Products of matrices, and what is made of them: Einsum, attention.

Scratch was measured by ``tools/probe_ort``; every formula is in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from memplan.ops.facets import SUM, WHOLE, Operator, Use, aligned, whole
from memplan.ops.instance import BOOL, FLOAT16, Instance, broadcast, elements, item_bytes

LEAST_ROWS = 2
"""A single row is multiplied by another kernel (GEMV), whose sums are in another order."""
LEAST_SUMMANDS = 256
"""The runtime's CPU kernel sums a product in blocks of at most so many, the blocks one after the
other: ``Gemm(a, b, sum so far)`` in chunks of whole blocks adds in the order of the whole."""


def _matmul(instance: Instance) -> Iterator[Use]:
    """Batches, rows of the first, columns of the second; along both inner axes, summands."""
    a, b = instance.shape(0), instance.shape(1)
    rank = max(len(a), len(b))
    batched = any(instance.integer(name, 0) for name in ("transBatchA", "transBatchB"))
    if len(a) < 2 or len(b) < 2 or batched:
        return
    for axis, size in enumerate(broadcast(a[:-2], b[:-2])):
        reads = (aligned(a[:-2], rank - 2, axis, size), aligned(b[:-2], rank - 2, axis, size))
        if reads != (WHOLE, WHOLE):
            yield Use(reads, (axis,))
    row, inner, inner_b, column = _matrices(instance)
    yield Use((row, WHOLE), (rank - 2,), least=LEAST_ROWS)
    yield Use((WHOLE, column), (rank - 1,), least=LEAST_ROWS)
    yield Use((inner, inner_b), (SUM,), least=LEAST_SUMMANDS)


def _gemm(instance: Instance) -> Iterator[Use]:
    """Rows, columns, and summands, to which the third input is added once."""
    row, inner, inner_b, column = _matrices(instance)
    added = instance.shape(2)
    rows, columns = instance.shape(0)[row], instance.shape(1)[column]
    more = len(instance.inputs) - 2
    yield Use((row, WHOLE, *[aligned(added, 2, 0, rows)] * more), (0,), least=LEAST_ROWS)
    yield Use((WHOLE, column, *[aligned(added, 2, 1, columns)] * more), (1,), least=LEAST_ROWS)
    addend = -1 if instance.input(2) is None else 2
    if addend < 0 or instance.attributes.get("beta", 1.0) == 1.0:
        reads = (inner, inner_b, *whole(instance, 2))
        yield Use(reads, (SUM,), addend=addend, least=LEAST_SUMMANDS)


def _matrices(instance: Instance) -> tuple[int, int, int, int]:
    """The last two axes of both factors, as they stand in the product."""
    axes: list[int] = []
    for slot, name in enumerate(("transA", "transB")):
        last = (instance.rank(slot) - 2, instance.rank(slot) - 1)
        axes += reversed(last) if instance.integer(name, 0) else last
    return axes[0], axes[1], axes[2], axes[3]


def _product_work(instance: Instance) -> float:
    """Multiply-adds: output elements × inner dimension."""
    first = instance.shape(0)
    transposed = bool(instance.integer("transA", 0)) and len(first) > 1
    inner = first[-2 if transposed else -1] if first else 1
    return float(elements(instance.output(0))) * inner


def _einsum_work(instance: Instance) -> float:
    """Multiply-adds: the product of the sizes of all labels (no smarter contraction order)."""
    equation = instance.text("equation", "").replace(" ", "")
    sizes: dict[str, int] = {}
    for labels, tensor in zip(equation.split("->")[0].split(","), instance.inputs, strict=False):
        if tensor is not None and "." not in labels:
            sizes.update(zip(labels, tensor.shape, strict=False))
    return float(prod(sizes.values()) if sizes else elements(instance.output(0)))


def _copied(order: str, wanted: str, nbytes: int) -> int:
    """Bytes of the transposed copy, none when the axes are in order already."""
    return 0 if order == wanted else nbytes


def _einsum(instance: Instance) -> int | None:
    """Transposed copies where the equation needs them, the product, and its transposed copy.

    Letters are numbered by first appearance. The second operand is first put into that order,
    then both become [batch, kept, summed] x [batch, summed, kept]; all copies live to the end.
    Exact for two operands; equations with an ellipsis, a repeated letter or a letter summed out
    of one operand alone get an upper bound; more than two operands are not modelled.
    Source: einsum_utils/einsum_typed_compute_processor.cc.
    """
    first, second, y = instance.input(0), instance.input(1), instance.output(0)
    if first is None or y is None or len(instance.inputs) > 2:
        return None
    left, _, result = instance.text("equation", "").replace(" ", "").partition("->")
    a, _, b = left.partition(",")
    plain = left.replace(",", "").isalpha() and all(len(set(t)) == len(t) for t in (a, b, result))
    if second is None:
        kept = "".join(c for c in a if c in result)
        reduced = y.nbytes if kept != a else 0
        return reduced + _copied(kept, result, y.nbytes) if plain else 2 * y.nbytes
    if not plain or "->" not in instance.text("equation", "") or not set(a) ^ set(b) <= set(result):
        return first.nbytes + 2 * second.nbytes + 2 * y.nbytes
    order = "".join(dict.fromkeys(a + b))
    batch = "".join(c for c in order if c in a and c in b and c in result)
    summed = "".join(c for c in order if c in a and c in b and c not in result)
    rows, columns = "".join(c for c in a if c not in b), "".join(c for c in order if c not in a)
    return (
        _copied(b, "".join(sorted(b, key=order.index)), second.nbytes)
        + _copied(batch + rows + summed + columns, order, first.nbytes)
        + _copied(batch + summed + columns + rows, order, second.nbytes)
        + y.nbytes
        + _copied(batch + rows + columns, result, y.nbytes)
    )


def _attention(instance: Instance) -> int | None:
    """Scores of all heads (batch x heads x queries x keys), and a copy of the mask.

    The mask is copied when it is boolean or has the causal pattern laid over it; without a mask
    the causal pattern is one queries x keys matrix. float16 adds one float32 score matrix a
    thread: an upper bound. Source: llm/attention.cc.
    """
    query, key, mask, past = (
        instance.input(0),
        instance.input(1),
        instance.input(3),
        instance.input(4),
    )
    if query is None or key is None:
        return None
    if len(query.shape) == 4:
        batch, heads, rows = query.shape[:3]
        columns = key.shape[2]
    else:
        batch, rows, heads = *query.shape[:2], instance.integer("q_num_heads", 1)
        columns = key.shape[1]
    columns += past.shape[2] if past is not None else 0
    size = item_bytes(query)
    causal = bool(instance.integer("is_causal", 0)) and not (rows == 1 and past is not None)
    total = batch * heads * rows * columns * size
    if mask is not None and (causal or mask.dtype == BOOL):
        total += elements(mask) * size
    elif mask is None and causal:
        total += rows * columns * size
    if query.dtype == FLOAT16:
        total += 4 * rows * columns * min(instance.threads, batch * heads)
    return total


def _ms_attention(instance: Instance) -> int | None:
    """Projections, scores, result before its transposition, 64 bytes a head, and the mask.

    The mask is batch x keys for a plain padding mask and batch x queries x keys when
    unidirectional. Past states and masks of other ranks are not modelled.
    """
    x, bias, mask = instance.input(0), instance.input(2), instance.input(3)
    heads = instance.integer("num_heads", 0)
    if x is None or bias is None or not heads or instance.input(4) is not None:
        return None
    if (mask is not None and len(mask.shape) != 2) or instance.input(5) is not None:
        return None
    batch, rows = x.shape[:2]
    hidden = bias.shape[0] // 3
    floats = 4 * batch * rows * hidden + batch * heads * rows * rows
    if instance.integer("unidirectional", 0):
        floats += batch * rows * rows
    elif mask is not None:
        floats += batch * rows
    return 4 * floats + 64 * batch * heads


_MATMUL = Operator(axes=_matmul, product=True, work=_product_work, packed_inputs=(1,))
_WITH_PACKED_WEIGHTS = (
    *("QAttention", "MatMulNBits", "MatMulFpQ4", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
)

OPERATORS: Mapping[str, Operator] = {
    **dict.fromkeys((":MatMul", "com.microsoft:FusedMatMul"), _MATMUL),
    ":Gemm": Operator(axes=_gemm, product=True, work=_product_work, packed_inputs=(1,)),
    "com.microsoft:FusedGemm": Operator(work=_product_work, packed_inputs=(1,)),
    ":Einsum": Operator(work=_einsum_work, scratch=_einsum),
    ":Attention": Operator(scratch=_attention),
    "com.microsoft:Attention": Operator(scratch=_ms_attention, packed_inputs=(1,)),
    **dict.fromkeys(
        (f"com.microsoft:{op}" for op in _WITH_PACKED_WEIGHTS), Operator(packed_inputs=(1,))
    ),
}
