"""The comparison of outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memplan.runtime.compare import Comparison, compare_outputs, difference


def compared(tmp_path: Path, first: list[np.ndarray], second: list[np.ndarray]) -> Comparison:
    """Two runs' outputs, named p, q, r... ."""
    for name, arrays in (("a", first), ("b", second)):
        named = {f"o{k}": value for k, value in enumerate(arrays)}
        np.savez(tmp_path / f"{name}.npz", **named)
    names = ["p", "q", "r"][: len(first)]
    return compare_outputs(tmp_path / "a.npz", tmp_path / "b.npz", names)


def test_equal_bits(tmp_path: Path) -> None:
    x = np.array([1.0, np.nan, np.inf, -0.0], np.float32)
    assert compared(tmp_path, [x, x], [x, x.copy()]) == Comparison(True, 0.0, 0.0, "", 0, 2)


def test_the_worst_output_is_named_and_all_that_differ_are_counted(tmp_path: Path) -> None:
    big = np.array([100.0, 50.0], np.float32)
    small = np.array([0.5, 0.25], np.float32)
    same = np.ones(3, np.float32)
    found = compared(tmp_path, [big, small, same], [big + 1, small + np.float32(0.25), same])
    assert not found.bitwise
    assert (found.differing, found.outputs) == (2, 3)
    # q differs less in absolute, more in relative terms.
    assert found.max_abs_diff == 1.0
    assert found.worst == "q"
    assert found.max_rel_diff == 0.5


def test_equal_values_of_other_bits_differ_by_nothing(tmp_path: Path) -> None:
    found = compared(tmp_path, [np.array([0.0])], [np.array([-0.0])])
    assert found == Comparison(False, 0.0, 0.0, "p", 1, 1)


@pytest.mark.parametrize(
    ("x", "y", "wanted"),
    [
        (np.array([1.0, 2.0]), np.array([1.0, 2.5]), (0.5, 0.25)),
        (np.array([np.nan, 2.0]), np.array([np.nan, 1.0]), (1.0, 0.5)),
        (np.array([np.inf, 2.0]), np.array([np.inf, 2.0]), (0.0, 0.0)),
        (np.array([np.inf]), np.array([-np.inf]), (np.inf, np.inf)),
        (np.array([np.nan]), np.array([1.0]), (np.inf, np.inf)),
        (np.array([0.0]), np.array([1.0]), (1.0, np.inf)),
        (np.array([1.0]), np.array([[1.0]]), (np.inf, np.inf)),
        (np.array([True, False]), np.array([True, True]), (1.0, 1.0)),
        (np.array([3], np.uint8), np.array([255], np.uint8), (252.0, 84.0)),
        (np.array(["a"]), np.array(["b"]), (np.inf, np.inf)),
        (np.zeros(0), np.zeros(0), (0.0, 0.0)),
    ],
    ids=[
        "close",
        "nan",
        "inf",
        "signs",
        "one-nan",
        "zero",
        "shape",
        "bool",
        "uint8",
        "text",
        "empty",
    ],
)
def test_differences(x: np.ndarray, y: np.ndarray, wanted: tuple[float, float]) -> None:
    assert difference(x, y) == wanted
