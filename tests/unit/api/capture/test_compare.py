"""What a captured step may be off by."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")
from memplan.api.capture.compare import UNITS, Difference, Tolerance, compare

UNIT = float(np.finfo(np.float32).eps)
PRECISION = {"a": UNIT, "b": UNIT}
ONES = np.ones(4)


def held(found: float, own: float = 0.0, name: str = "a") -> tuple[Difference, ...]:
    """A tensor of ones that is off by ``found``, where PyTorch's is off by ``own``."""
    first = {"a": ONES + own, "b": ONES * 100}
    exact = {"a": ONES, "b": ONES * 100}
    tolerance = Tolerance(first, exact, PRECISION, UNIT)
    got = {"a": ONES.copy(), "b": ONES * 100}
    got[name][0] += found
    return compare("gradient", 1, got, first, exact, tolerance).differences


def test_rounding_is_no_difference_and_more_is() -> None:
    assert held(0.9 * UNITS * UNIT) == ()
    (found,) = held(1.1 * max(UNITS, 100) * UNIT)
    assert (found.kind, found.name, found.step) == ("gradient", "a", 1)
    assert found.error == pytest.approx(1.1 * max(UNITS, 100) * UNIT)


def test_pytorchs_own_error_widens_what_is_allowed_to_that_tensor_alone() -> None:
    assert held(7e-3, own=1e-3) == ()
    assert held(9e-3 + 1e-3, own=1e-3)
    assert held(2.0, own=1e-3, name="b") != ()


def test_what_is_zero_but_for_rounding_is_granted_that_of_the_largest() -> None:
    first = {"a": ONES, "b": np.zeros(4)}
    tolerance = Tolerance(first, first, PRECISION, UNIT)
    noise = {"a": ONES, "b": np.full(4, 0.9 * UNIT)}
    assert not compare("gradient", 1, noise, first, first, tolerance).differences
    noise["b"] = np.full(4, 3 * UNIT)
    (found,) = compare("gradient", 1, noise, first, first, tolerance).differences
    assert found.error == math.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_differs_unless_pytorchs_is_the_same(bad: float) -> None:
    (found,) = held(bad)
    assert found.error == math.inf
    first = {"a": np.array([1.0, bad])}
    tolerance = Tolerance(first, first, PRECISION, UNIT)
    assert not compare("loss", 1, first, first, first, tolerance).differences


def test_without_float64_the_type_decides() -> None:
    first = {"a": ONES}
    tolerance = Tolerance(first, None, PRECISION, UNIT)
    near = {"a": ONES * (1 + 50 * UNIT)}
    far = {"a": ONES * (1 + 500 * UNIT)}
    assert not compare("gradient", 1, near, first, {}, tolerance).differences
    assert compare("gradient", 1, far, first, {}, tolerance).differences


def test_another_shape_differs() -> None:
    tolerance = Tolerance({"a": ONES}, None, PRECISION, UNIT)
    assert compare("gradient", 1, {"a": np.ones(3)}, {"a": ONES}, {}, tolerance).differences
