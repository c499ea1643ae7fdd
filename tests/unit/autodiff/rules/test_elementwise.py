"""Elementwise rules against finite differences."""

import numpy as np
import onnx
import pytest

from helpers.gradients import check, draw, single

# Where its derivative is looked at; other operators from -2 to 2.
RANGES = {
    **dict.fromkeys(("Log", "Sqrt", "Reciprocal"), (0.3, 3)),
    **dict.fromkeys(("Asin", "Acos", "Atanh"), (-0.9, 0.9)),
    "Acosh": (1.2, 3),
    "Tan": (-1, 1),
}
UNARY = """Identity Neg Abs Exp Erf Sin Cos Atan Sinh Cosh Asinh Relu LeakyRelu Elu Selu
    ThresholdedRelu Sigmoid HardSigmoid Tanh Softplus Softsign Mish HardSwish Gelu"""


@pytest.mark.parametrize("op", [*UNARY.split(), *RANGES])
def test_unary(op: str) -> None:
    low, high = RANGES.get(op, (-2, 2))
    check(single(op, draw((2, 3), low=low, high=high)))


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
