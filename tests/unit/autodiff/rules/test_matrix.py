"""Rules of matrix products against finite differences."""

from __future__ import annotations

import pytest

from helpers.gradients import check, draw, single

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
