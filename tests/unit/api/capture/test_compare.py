"""What a captured step may be off by."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")
from memplan.api.capture.compare_steps import (
    GRADIENT_UNITS,
    UNITS,
    ZERO_UNITS,
    Difference,
    Tolerance,
    compare,
    compare_update,
    compare_whole,
)

UNIT = float(np.finfo(np.float32).eps)
ONES = np.ones(4)


def held(found: float, own: float = 0.0, name: str = "a") -> tuple[Difference, ...]:
    """A tensor of ones that is off by ``found``, where PyTorch's is off by ``own``."""
    first = {"a": ONES + own, "b": ONES * 100}
    exact = {"a": ONES, "b": ONES * 100}
    tolerance = Tolerance(first, exact)
    got = {"a": ONES.copy(), "b": ONES * 100}
    got[name][0] += found
    return compare("gradient", 1, got, first, exact, tolerance).differences


def test_rounding_is_no_difference_and_more_is() -> None:
    assert held(0.9 * GRADIENT_UNITS * UNIT) == ()
    (found,) = held(1.1 * GRADIENT_UNITS * UNIT)
    assert (found.kind, found.name, found.step) == ("gradient", "a", 1)
    assert found.error == pytest.approx(1.1 * GRADIENT_UNITS * UNIT)


def test_pytorchs_own_error_widens_what_is_allowed_to_that_tensor_alone() -> None:
    assert held(7e-3, own=1e-3) == ()
    assert held(9e-3 + 1e-3, own=1e-3)
    assert held(2.0, own=1e-3, name="b") != ()


def test_what_is_zero_but_for_rounding_is_granted_that_of_the_largest() -> None:
    first = {"a": ONES, "b": np.zeros(4)}
    tolerance = Tolerance(first, first)
    noise = {"a": ONES, "b": np.full(4, 0.9 * ZERO_UNITS * UNIT)}
    assert not compare("gradient", 1, noise, first, first, tolerance).differences
    noise["b"] = np.full(4, 1.1 * ZERO_UNITS * UNIT)
    (found,) = compare("gradient", 1, noise, first, first, tolerance).differences
    assert found.error == math.inf


def test_what_is_zero_but_for_rounding_is_not_the_worst() -> None:
    first = {"a": ONES, "b": np.full(4, 0.9 * ZERO_UNITS * UNIT)}
    got = {"a": ONES + 1e-5, "b": np.zeros(4)}
    found = compare("gradient", 1, got, first, first, Tolerance(first, first))
    assert (found.worst, found.differences) == ("a", ())
    assert found.error == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_differs_unless_pytorchs_is_the_same(bad: float) -> None:
    (found,) = held(bad)
    assert found.error == math.inf
    first = {"a": np.array([1.0, bad])}
    tolerance = Tolerance(first, first)
    assert not compare("loss", 1, first, first, first, tolerance).differences


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_entry_that_is_not_finite_lifts_no_tolerance(bad: float) -> None:
    """PyTorch's is not in float32, and is in float64: the others are held as before."""
    first, exact = {"a": np.array([1.0, bad])}, {"a": np.ones(2)}
    tolerance = Tolerance(first, exact)
    assert tolerance.own == {"a": 0.0}
    for got, differs in ([1.0, bad], False), ([1.0, 1.0], False), ([3.0, bad], True):
        found = compare("gradient", 1, {"a": np.array(got)}, first, exact, tolerance)
        assert (bool(found.differences), found.empty) == (differs, ()), got


def test_a_tensor_without_a_finite_entry_is_named() -> None:
    first = {"a": np.full(2, np.nan)}
    found = compare("gradient", 1, first, first, {}, Tolerance(first, None))
    assert (found.differences, found.empty) == ((), ("a",))
    finite = compare("gradient", 1, {"a": np.ones(2)}, first, {}, Tolerance(first, None))
    assert [each.name for each in finite.differences] == ["a"]


def test_an_update_that_is_not_finite_has_a_tolerance() -> None:
    want = np.array([1.0, np.inf])
    assert not compare_update(1, "a", want, want, np.ones(2)).differences
    assert compare_update(1, "a", np.array([1.1, np.inf]), want, np.ones(2)).differences
    assert compare_update(1, "a", np.array([1.0, np.nan]), want, np.ones(2)).differences


def test_whole_numbers_are_equal_or_not() -> None:
    first, large = {"a": np.array([1, 2])}, {"a": np.array([2**60, 1])}
    assert not compare_whole("buffer", 1, first, first, {}).differences
    assert compare_whole("buffer", 1, {"a": np.array([1, 3])}, first, {}).differences
    assert not compare_whole(
        "buffer", 1, {"a": np.array([1, 3])}, first, {"a": np.array([1, 3])}
    ).differences
    assert compare_whole("buffer", 1, {"a": np.array([2**60 + 1, 1])}, large, {}).differences
    assert compare_whole("buffer", 1, {"a": np.array([1])}, first, {}).differences


def test_without_float64_the_type_decides() -> None:
    first = {"a": ONES}
    tolerance = Tolerance(first, None)
    near = {"a": ONES * (1 + 0.9 * GRADIENT_UNITS * UNIT)}
    far = {"a": ONES * (1 + 1.1 * GRADIENT_UNITS * UNIT)}
    assert not compare("gradient", 1, near, first, {}, tolerance).differences
    assert compare("gradient", 1, far, first, {}, tolerance).differences


def test_a_narrow_type_without_float64_is_granted_its_own_rounding() -> None:
    tolerance = Tolerance({"a": ONES}, None, 2.0**-10)
    assert not compare("gradient", 1, {"a": ONES * 1.1}, {"a": ONES}, {}, tolerance).differences
    assert compare("gradient", 1, {"a": ONES * 1.2}, {"a": ONES}, {}, tolerance).differences


def test_what_is_no_gradient_is_granted_less() -> None:
    tolerance = Tolerance({"a": ONES}, None).like({"a": 0.0})
    near = {"a": ONES * (1 + 0.9 * UNITS * UNIT)}
    far = {"a": ONES * (1 + 1.1 * UNITS * UNIT)}
    assert not compare("buffer", 1, near, {"a": ONES}, {}, tolerance).differences
    assert compare("buffer", 1, far, {"a": ONES}, {}, tolerance).differences


def test_another_shape_differs() -> None:
    tolerance = Tolerance({"a": ONES}, None)
    assert compare("gradient", 1, {"a": np.ones(3)}, {"a": ONES}, {}, tolerance).differences
