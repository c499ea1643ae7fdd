"""The comparison of outputs."""

from pathlib import Path

import numpy as np
import pytest

from memplan.runtime.archive import BFLOAT16, digests, load_arrays, save_arrays
from memplan.runtime.compare_outputs import (
    NOISE,
    TOLERANCE,
    Comparison,
    OutputDifference,
    compare_outputs,
    difference,
    excess,
    output_difference,
    uniform_value,
)


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


def test_the_last_output_is_compared_as_the_first_is(tmp_path: Path) -> None:
    x = np.ones(4, np.float32)
    for place in range(3):
        others = [x.copy() for _ in range(3)]
        others[place][-1] = 2
        found = compared(tmp_path, [x, x, x], others)
        assert [d.name for d in found.differences] == ["pqr"[place]]


def test_outputs_are_matched_by_name_where_some_are_missing(tmp_path: Path) -> None:
    x = np.ones(2, np.float32)
    save_arrays(tmp_path / "a.npz", {"o0": x, "o1": 2 * x})
    save_arrays(tmp_path / "b.npz", {"o0": 2 * x})
    paths = tmp_path / "a.npz", tmp_path / "b.npz"
    assert compare_outputs(*paths, ["p", "q"], ["q"]).bitwise
    assert not compare_outputs(*paths, ["p", "q"], ["p"]).bitwise


def test_an_element_may_differ_by_one_in_ten_thousand() -> None:
    """Of itself and of the median element: the tolerance of a float is this, not ten times it."""
    x = np.array([1.0, 1.0, 1.0, 4.0], np.float64)
    step = np.array([0, 0, 0, 1.0])
    limit = TOLERANCE * (4 + 1)
    assert TOLERANCE == 1e-4
    assert excess(x, x + 0.99 * limit * step) < 1
    assert excess(x, x + 1.01 * limit * step) > 1
    assert output_difference("p", x, x + 0.99 * limit * step).allowed(None)
    assert not output_difference("p", x, x + 1.01 * limit * step).allowed(None)


def test_a_large_element_hides_no_other() -> None:
    generator = np.random.default_rng(0)
    x = (generator.standard_normal(1024) * 0.05).astype(np.float32)
    x[0] = 1e5
    lost = np.where(np.arange(1024) == 0, x, 0).astype(np.float32)
    assert difference(x, lost)[1] < 1e-4
    assert not output_difference("p", x, lost).allowed(None)


def test_an_element_near_zero_may_differ_as_its_neighbours_do() -> None:
    x = np.array([1.0, -2.0, 1e-9, 1.5])
    assert output_difference("p", x, x + np.array([0, 0, 1e-6, 0])).allowed(None)


def test_zeros_do_not_make_the_tolerance_zero() -> None:
    x = np.zeros(100)
    x[:3] = [1.0, 2.0, 1e-9]
    assert output_difference("p", x, x + np.where(x == 1e-9, 1e-6, 0)).allowed(None)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.array([1.0, 2.0]), np.array([1.0, np.nan])),
        (np.array([1.0, np.inf]), np.array([1.0, -np.inf])),
        (np.array([1.0, np.inf]), np.array([1.0, 3.0])),
        (np.zeros(2), np.array([0.0, 1e-30])),
        (np.array([2**60]), np.array([2**60 + 1])),
        (np.array([2**63], np.uint64), np.array([2**63 + 1], np.uint64)),
        (np.array([True]), np.array([False])),
        (np.array(["a"]), np.array(["b"])),
    ],
    ids=["nan", "sign", "infinite", "zeros", "int64", "uint64", "bool", "text"],
)
def test_no_tolerance_covers_it(x: np.ndarray, y: np.ndarray) -> None:
    assert not output_difference("p", x, y).allowed(None)
    assert output_difference("p", x, x.copy()).allowed(None)


def test_whole_numbers_are_compared_exactly() -> None:
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert difference(np.array([2**60]), np.array([2**60 + 1]))[0] == 1
    assert difference(np.array([low]), np.array([high]))[0] == 2.0**64


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.ones(2, np.float64), "float32[2] -> float64[2]"),
        (np.ones((2, 1), np.float32), "float32[2] -> float32[2, 1]"),
        (np.ones(2, BFLOAT16), "float32[2] -> bfloat16[2]"),
    ],
    ids=["type", "shape", "bfloat16"],
)
def test_types_and_shapes_come_before_values(y: np.ndarray, said: str) -> None:
    found = output_difference("p", np.ones(2, np.float32), y)
    assert found.mismatch == said
    assert not found.allowed(found)


def _differing(name: str, by: float) -> OutputDifference:
    return OutputDifference(name, "", by, by, by, is_float=True)


def test_an_output_may_differ_by_four_times_its_own_noise() -> None:
    assert NOISE == 4
    assert _differing("p", 39).allowed(_differing("p", 10))
    assert not _differing("p", 41).allowed(_differing("p", 10))
    assert not _differing("p", 41).allowed(None)
    # Quiet outputs still have the tolerance.
    assert _differing("p", 0.9).allowed(_differing("p", 0.01))


@pytest.mark.parametrize(
    ("x", "value"),
    [
        (np.array([np.nan, -np.nan]), "nan"),
        (np.array([np.nan, 1.0]), None),
        (np.array([0.0, -0.0]), "0.0"),
        (np.zeros(100, np.int64), "0"),
        (np.array([0.5] * 100), "0.5"),
        (np.array([0.5] * 99 + [1]), None),
        (np.array(3), "3"),
        (np.zeros(0), None),
        (np.array([True, True]), "True"),
    ],
    ids=["nan", "a nan", "zero", "int", "one", "last", "scalar", "empty", "bool"],
)
def test_outputs_of_one_value_are_noted(x: np.ndarray, value: str | None) -> None:
    assert uniform_value(x) == value


def test_a_digest_tells_bits_types_and_shapes_apart() -> None:
    x = np.zeros(4, np.float32)
    values = [x, -x, x.astype(np.int32), x.reshape(2, 2), x[:3], x.view(np.uint32)]
    assert len(set(digests(values))) == len(values)
    assert digests([x]) == digests([x.copy()])


def test_arrays_of_every_kind_arrive(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0, np.inf], np.float32)
    sent = {
        "bf": values.astype(BFLOAT16),
        "text": np.array(["a", "bc"], object),
        "scalar": np.float32(3),
        "several": [np.ones(2), np.zeros(1)],
    }
    save_arrays(tmp_path / "a.npz", sent)
    found = load_arrays(tmp_path / "a.npz")
    assert found["bf"].dtype == BFLOAT16
    assert found["text"].tolist() == ["a", "bc"]
    assert found["scalar"] == 3
    assert "1., 1." in str(found["several"])
    near = output_difference("p", found["bf"], (values * np.float32(1.01)).astype(BFLOAT16))
    assert near.is_float
    assert near.max_abs_diff == 0.015625
