"""Gradients at ties and kinks, as PyTorch has them unless it says otherwise.

``tests/ort/test_gradients_at_ties.py`` compares them with PyTorch itself, where it is installed.
"""

from typing import Any

import numpy as np
import pytest

from helpers.gradients import Array, reference, single
from memplan.autodiff.backward import Request, build_gradients

X = np.asarray([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0])
DY = np.asarray([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def gradients(dy: Array, op: str, *inputs: Array, **attributes: Any) -> list[Array]:
    """Gradients of Σ y·dy by the inputs."""
    model, feeds = single(op, *inputs, **attributes)
    trained = build_gradients(model, Request(("y0",), tuple(feeds), ("dy",)))
    found = reference(trained, {**feeds, "dy": dy})
    return [found[f"{name}_grad"] for name in feeds]


@pytest.mark.parametrize(
    ("op", "slopes", "attributes"),
    [
        ("Relu", [0, 0, 0, 0, 1, 1], {}),
        ("Abs", [-1, -1, 0, 0, 1, 1], {}),
        ("LeakyRelu", [0.5, 0.5, 0.5, 0.5, 1, 1], {"alpha": 0.5}),
        ("ThresholdedRelu", [0, 0, 0, 0, 0, 1], {"alpha": 1.0}),
        ("HardSigmoid", [0, 0, 0.5, 0.5, 0, 0], {"alpha": 0.5, "beta": 0.5}),
    ],
)
def test_a_kink_belongs_to_one_side(op: str, slopes: list[float], attributes: Any) -> None:
    (grad,) = gradients(DY, op, X, **attributes)
    np.testing.assert_array_equal(grad, DY * slopes)


def test_prelu_has_its_slope_at_zero() -> None:
    x_grad, slope_grad = gradients(DY, "PRelu", X, np.asarray([0.25]))
    np.testing.assert_array_equal(x_grad, DY * [0.25, 0.25, 0.25, 0.25, 1, 1])
    np.testing.assert_array_equal(slope_grad, [-4.0])


def test_clip_has_no_gradient_at_its_bounds() -> None:
    x_grad, low, high = gradients(DY, "Clip", X, np.asarray(-1.0), np.asarray(1.0))
    np.testing.assert_array_equal(x_grad, DY * [0, 0, 1, 1, 0, 0])
    assert (low, high) == (3, 11)


@pytest.mark.parametrize(("op", "sign"), [("Max", 1), ("Min", -1)])
def test_inputs_that_tie_share_evenly(op: str, sign: int) -> None:
    other = sign * np.asarray([-2.0, 1.0, 0.0, -1.0, 1.0, 3.0])
    first, second = gradients(DY, op, sign * X, other)
    np.testing.assert_array_equal(first, DY * [0.5, 0, 0.5, 1, 0.5, 0])
    np.testing.assert_array_equal(second, DY * [0.5, 1, 0.5, 0, 0.5, 1])
    three = gradients(DY, op, sign * X, other, sign * X)
    np.testing.assert_allclose(three[0], DY * [1 / 3, 0, 1 / 3, 0.5, 1 / 3, 0], rtol=1e-15)
    np.testing.assert_allclose(three[1], DY * [1 / 3, 1, 1 / 3, 0, 1 / 3, 1], rtol=1e-15)
    np.testing.assert_array_equal(three[2], three[0])


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_of_a_tie_along_an_axis_all_get_a_share(op: str) -> None:
    x = np.asarray([[3.0, 1.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    (grad,) = gradients(np.asarray([4.0, 8.0]), op, x, np.asarray([1]), keepdims=0)
    hits = [[2, 0, 2, 0], [2, 2, 2, 2]] if op == "ReduceMax" else [[0, 2, 0, 2], [2, 2, 2, 2]]
    np.testing.assert_array_equal(grad, hits)


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2"])
def test_the_norm_of_zeros_has_a_gradient_of_zero(op: str) -> None:
    x = np.asarray([[0.0, -0.0], [3.0, -4.0]])
    (grad,) = gradients(np.asarray([1.0, 5.0]), op, x, np.asarray([1]), keepdims=0)
    np.testing.assert_array_equal(grad[0], [0, 0])
    wanted = [5, -5] if op == "ReduceL1" else [3, -4]
    np.testing.assert_allclose(grad[1], wanted, rtol=1e-15)


def test_the_largest_of_a_window_is_the_first_of_equals() -> None:
    x = np.asarray([[[[1.0, 1.0, 2.0, 0.0], [1.0, 1.0, 2.0, 2.0]]]])
    dy = np.asarray([[[[3.0, 5.0]]]])
    (grad,) = gradients(dy, "MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    np.testing.assert_array_equal(grad, [[[[3, 0, 5, 0], [0, 0, 0, 0]]]])


def test_powers_at_zero() -> None:
    x = np.asarray([0.0, 0.0, 0.0, 2.0])
    e = np.asarray([0.0, 1.0, 3.0, 0.0])
    base, exponent = gradients(DY[:4], "Pow", x, e)
    np.testing.assert_array_equal(base, [0, 2, 0, 0])
    np.testing.assert_allclose(exponent, [0, 0, 0, 4 * np.log(2)])


def test_products_with_zeros() -> None:
    x = np.asarray([[2.0, 3.0], [0.0, 3.0], [0.0, 0.0]])
    (grad,) = gradients(np.ones(3), "ReduceProd", x, np.asarray([1]), keepdims=0)
    np.testing.assert_array_equal(grad, [[3, 2], [3, 0], [0, 0]])
