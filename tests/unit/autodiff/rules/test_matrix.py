"""Rules of matrix products against finite differences."""

import itertools

import pytest
from onnx import TensorProto, helper

from helpers.effort import few_by_day
from helpers.gradients import check, draw, model_of, single

SHAPES = [
    ((2, 3), (3, 4)),
    ((3,), (3,)),
    ((3,), (2, 3, 4)),
    ((3,), (3, 4)),
    ((2, 5, 3), (3,)),
    ((5, 3), (3,)),
    ((2, 1, 5, 3), (4, 3, 2)),
    ((5, 3), (4, 3, 2)),
    ((2, 5, 3), (3, 2)),
]


@pytest.mark.parametrize(("one", "other"), SHAPES)
def test_matmul(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    check(single("MatMul", draw(one, 1), draw(other, 2)))


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (4,), (1, 4), (2, 1), (2, 4)])
def test_gemm(trans_a: int, trans_b: int, bias: tuple[int, ...] | None) -> None:
    a, b = draw((2, 3), 1), draw((3, 4), 2)
    made = single(
        "Gemm",
        a.T if trans_a else a,
        b.T if trans_b else b,
        *([] if bias is None else [draw(bias, 3)]),
        transA=trans_a,
        transB=trans_b,
        alpha=0.5,
        beta=1.5,
    )
    check(made)


PERMS = [list(p) for n in (2, 3, 4) for p in itertools.permutations(range(n))]
TRANSPOSED = [("Gemm", p) for p in ([0, 1], [1, 0], None)] + [("MatMul", p) for p in (*PERMS, None)]


@pytest.mark.parametrize(
    ("axes_of", "slot", "other"), few_by_day(itertools.product(TRANSPOSED, (0, 1), (1, 3)))
)
def test_a_transpose_ahead_of_a_product_is_read_with_its_axes(
    axes_of: tuple[str, list[int] | None], slot: int, other: int
) -> None:
    """All sizes alike, so that a transposition too many shows in the numbers alone; beside a
    factor so small that copying it is cheaper, as in attention, and beside one of the same size."""
    op, perm = axes_of
    rank = len(perm or [0, 1])
    turned = op == "Gemm" and slot == 0
    last = [other, 3] if slot or turned else [3, other]
    sides = ["b", "t"] if slot else ["t", "b"]
    axes, flags = {"perm": perm} if perm else {}, {"transB": 1} if op == "Gemm" else {}
    nodes = [
        helper.make_node("Transpose", ["a"], ["t"], name="turn", **axes),
        helper.make_node(op, sides, ["y"], name="product", **flags),
    ]
    feeds = {"a": draw([3] * rank, 1), "b": draw([*[3] * (rank - 2), *last], 2)}
    check(model_of(nodes, feeds, {"y": TensorProto.DOUBLE}))
