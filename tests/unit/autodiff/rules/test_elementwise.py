"""Elementwise rules against finite differences."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from helpers.gradients import check, draw, single

UNARY = {
    "Identity": {},
    "Neg": {},
    "Abs": {},
    "Exp": {},
    "Erf": {},
    "Sin": {},
    "Cos": {},
    "Atan": {},
    "Sinh": {},
    "Cosh": {},
    "Asinh": {},
    "Relu": {},
    "LeakyRelu": {},
    "Elu": {},
    "Selu": {},
    "ThresholdedRelu": {},
    "Sigmoid": {},
    "HardSigmoid": {},
    "Tanh": {},
    "Softplus": {},
    "Softsign": {},
    "Mish": {},
    "HardSwish": {},
    "Gelu": {},
}


@pytest.mark.parametrize("op", UNARY)
def test_unary(op: str) -> None:
    check(single(op, draw((2, 3))))


def test_cast() -> None:
    """The gradient is in the input's type."""
    made = single("Cast", draw((2, 3)), out_dtypes=[onnx.TensorProto.FLOAT], to=1)
    trained = check(made, step=1e-2, tolerance=1e-3)
    kinds = {v.name: v.type.tensor_type.elem_type for v in trained.graph.output}
    assert kinds["x0_grad"] == onnx.TensorProto.DOUBLE


def test_celu() -> None:
    """ONNX defines it for float32 only."""
    x = draw((2, 3)).astype(np.float32)
    made = single("Celu", x, out_dtypes=[onnx.TensorProto.FLOAT], alpha=0.7)
    check(made, step=1e-2, tolerance=1e-3)


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Reciprocal"])
def test_positive(op: str) -> None:
    check(single(op, draw((2, 3), low=0.3, high=3)))


@pytest.mark.parametrize(
    ("op", "low", "high"),
    [
        ("Asin", -0.9, 0.9),
        ("Acos", -0.9, 0.9),
        ("Atanh", -0.9, 0.9),
        ("Acosh", 1.2, 3),
        ("Tan", -1, 1),
    ],
)
def test_bounded(op: str, low: float, high: float) -> None:
    check(single(op, draw((2, 3), low=low, high=high)))


SHAPES = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (4, 1, 3)), ((), (2,))]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
@pytest.mark.parametrize(("one", "other"), SHAPES)
def test_broadcast(op: str, one: tuple[int, ...], other: tuple[int, ...]) -> None:
    check(single(op, draw(one, 1, 0.5, 2), draw(other, 2, 0.6, 2.2)))
