"""What a captured step may be off by."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")
from memplan.api.capture.compare_steps import (  # noqa: E402
    GRADIENT_UNITS,
    UNITS,
    ZERO_UNITS,
    Compared,
    Difference,
    Tolerance,
    UpdateTolerance,
    compare,
)

UNIT = float(np.finfo(np.float32).eps)
ONES = np.ones(4)


def of_kind(kind: str, held: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    return {(kind, name): array for name, array in held.items()}


def learnt(first: Any, exact: Any, narrowest: float = UNIT) -> Tolerance:
    right = None if exact is None else of_kind("gradient", exact)
    return Tolerance(of_kind("gradient", first), right, narrowest)


def compared(
    got: Any, first: Any, exact: Any, tolerance: Tolerance, kind: str = "gradient"
) -> Compared:
    got, first, exact = (of_kind(kind, held) for held in (got, first, exact))
    return compare(1, (got.__getitem__, first, exact), tolerance)


def held(found: float, own: float = 0.0, name: str = "a") -> list[Difference]:
    """A tensor of ones that is off by ``found``, where PyTorch's is off by ``own``."""
    first = {"a": ONES + own, "b": ONES * 100}
    exact = {"a": ONES, "b": ONES * 100}
    got = {"a": ONES.copy(), "b": ONES * 100}
    got[name][0] += found
    return compared(got, first, exact, learnt(first, exact)).differences


def test_rounding_is_no_difference_and_more_is() -> None:
    assert held(0.9 * GRADIENT_UNITS * UNIT) == []
    (found,) = held(1.1 * GRADIENT_UNITS * UNIT)
    assert (found.kind, found.name, found.step) == ("gradient", "a", 1)
    assert found.error == pytest.approx(1.1 * GRADIENT_UNITS * UNIT)


def test_pytorchs_own_error_widens_what_is_allowed_to_that_tensor_alone() -> None:
    assert held(7e-3, own=1e-3) == []
    assert held(9e-3 + 1e-3, own=1e-3)
    assert held(2.0, own=1e-3, name="b") != []


def test_what_is_zero_but_for_rounding_is_granted_that_of_the_largest() -> None:
    first = {"a": ONES, "b": np.zeros(4)}
    tolerance = learnt(first, first)
    noise = {"a": ONES, "b": np.full(4, 0.9 * ZERO_UNITS * UNIT)}
    assert not compared(noise, first, first, tolerance).differences
    noise["b"] = np.full(4, 1.1 * ZERO_UNITS * UNIT)
    (found,) = compared(noise, first, first, tolerance).differences
    assert found.error == math.inf


def test_what_is_zero_but_for_rounding_is_not_the_worst() -> None:
    first = {"a": ONES, "b": np.full(4, 0.9 * ZERO_UNITS * UNIT)}
    got = {"a": ONES + 1e-5, "b": np.zeros(4)}
    found = compared(got, first, first, learnt(first, first))
    assert (found.worst, found.differences) == ("a", [])
    assert found.errors["gradient"] == pytest.approx(1e-5, rel=1e-6)


def test_of_several_steps_the_largest_errors_stay() -> None:
    steps = [{"a": ONES + 1e-5, "b": ONES}, {"a": ONES, "b": ONES + 1e-6}]
    first = {"a": ONES, "b": ONES}
    whole = Compared({"loss": 0.0})
    for got in steps:
        whole.join(compared(got, first, first, learnt(first, first)))
    assert (whole.worst, whole.errors["loss"]) == ("a", 0.0)
    assert whole.errors["gradient"] == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_differs_unless_pytorchs_is_the_same(bad: float) -> None:
    (found,) = held(bad)
    assert found.error == math.inf
    first = {"a": np.array([1.0, bad])}
    assert not compared(first, first, first, learnt(first, first), "loss").differences


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_entry_that_is_not_finite_lifts_no_tolerance(bad: float) -> None:
    """PyTorch's is not in float32, and is in float64: the others are held as before."""
    first, exact = {"a": np.array([1.0, bad])}, {"a": np.ones(2)}
    tolerance = learnt(first, exact)
    assert tolerance.own == {("gradient", "a"): 0.0}
    for got, differs in ([1.0, bad], False), ([1.0, 1.0], False), ([3.0, bad], True):
        found = compared({"a": np.array(got)}, first, exact, tolerance)
        assert (bool(found.differences), found.empty) == (differs, set()), got


def test_a_tensor_without_a_finite_entry_is_named() -> None:
    first = {"a": np.full(2, np.nan)}
    found = compared(first, first, {}, learnt(first, None))
    assert (found.differences, found.empty) == ([], {"a"})
    finite = compared({"a": np.ones(2)}, first, {}, learnt(first, None))
    assert [each.name for each in finite.differences] == ["a"]


def test_an_update_that_is_not_finite_has_a_tolerance() -> None:
    want = {"a": torch.tensor([1.0, math.inf])}
    tolerance = UpdateTolerance(of_kind("parameter", {"a": ONES[:2]}), of_kind("parameter", want))
    for got, differs in ([1.0, math.inf], 0), ([1.1, math.inf], 1), ([1.0, math.nan], 1):
        found = compared({"a": np.array(got)}, want, {}, tolerance, "parameter")
        assert len(found.differences) == differs, got


def test_what_an_update_may_be_off_by_is_a_share_of_the_change() -> None:
    before, want = {"a": np.full(4, 2.0)}, {"a": torch.full((4,), 3.0)}
    strict, rough = (
        UpdateTolerance(of_kind("parameter", before), of_kind("parameter", want), names)
        for names in ((), ("a",))
    )
    for off, wrong in (0.9e-4, (0, 0)), (1.5e-4, (1, 0)), (0.09, (1, 0)), (0.11, (1, 1)):
        got = {"a": np.full(4, 3.0 + off)}
        found = (compared(got, want, {}, each, "parameter") for each in (strict, rough))
        assert tuple(len(each.differences) for each in found) == wrong, off


def test_whole_numbers_are_equal_or_not() -> None:
    first, large = {"a": np.array([1, 2])}, {"a": np.array([2**60, 1])}
    tolerance = learnt({}, None)
    rows = [
        (first, first, {}, 0),
        ({"a": np.array([1, 3])}, first, {}, 1),
        ({"a": np.array([1, 3])}, first, {"a": np.array([1, 3])}, 0),
        ({"a": np.array([2**60 + 1, 1])}, large, {}, 1),
        ({"a": np.array([1])}, first, {}, 1),
        ({"a": np.array([True, False])}, {"a": np.array([True, True])}, {}, 1),
    ]
    for got, want, exact, differs in rows:
        assert len(compared(got, want, exact, tolerance, "buffer").differences) == differs, got


@pytest.mark.parametrize(
    ("kind", "narrowest", "got", "differs"),
    [
        ("gradient", UNIT, ONES * (1 + 0.9 * GRADIENT_UNITS * UNIT), False),
        ("gradient", UNIT, ONES * (1 + 1.1 * GRADIENT_UNITS * UNIT), True),
        # A narrow type is granted its own rounding, what is no gradient less.
        ("gradient", 2.0**-10, ONES * 1.1, False),
        ("gradient", 2.0**-10, ONES * 1.2, True),
        ("buffer", UNIT, ONES * (1 + 0.9 * UNITS * UNIT), False),
        ("buffer", UNIT, ONES * (1 + 1.1 * UNITS * UNIT), True),
        ("gradient", UNIT, np.ones(3), True),
    ],
)
def test_without_float64_the_type_and_the_kind_decide(
    kind: str, narrowest: float, got: Any, differs: bool
) -> None:
    tolerance = learnt({"a": ONES}, None, narrowest)
    found = compared({"a": got}, {"a": ONES}, {}, tolerance, kind)
    assert bool(found.differences) == differs
