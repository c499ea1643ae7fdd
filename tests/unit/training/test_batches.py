"""Batches: what does not fit is told in one line; what is cut is cut the same again."""

from typing import Any

import numpy as np
import pytest

from memplan.errors import UsageError
from memplan.ir.roles import Role
from memplan.training.batches import Batches, checked_batch
from memplan.training.step_file import Slot

FLOAT, INT64 = 1, 7


def slot(name: str, shape: tuple[int | str, ...], dtype: str = "float32", **more: Any) -> Slot:
    return Slot(name, Role.BATCH, FLOAT, np.dtype(dtype), shape, **more)


X, Y = slot("x", (4, 3)), slot("y", (4,), "int64")
GOOD = {"x": np.zeros((4, 3), np.float32), "y": np.zeros(4, np.int64)}


def test_a_batch_that_fits_is_taken() -> None:
    assert set(checked_batch([X, Y], GOOD)) == {"x", "y"}
    lists = checked_batch([X, Y], {"x": [[1, 2, 3]] * 4, "y": [1, 2, 3, 4]})
    assert lists["x"].dtype == np.float32


def test_what_has_a_default_may_be_left_out() -> None:
    mask = slot("mask", (4,), default=np.ones(4, np.float32))
    assert "mask" not in checked_batch([X, Y, mask], GOOD)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"x": GOOD["x"]}, "the batch has no 'y'"),
        ({**GOOD, "xx": GOOD["x"]}, "the step has no batch input 'xx'"),
        (
            {**GOOD, "x": np.zeros((4, 3))},
            r"'x' is float64\[4, 3\], the step wants float32\[4, 3\]",
        ),
        ({**GOOD, "y": np.zeros(4, np.int32)}, r"'y' is int32\[4\], the step wants int64\[4\]"),
        ({**GOOD, "x": np.zeros((5, 3), np.float32)}, r"'x' is float32\[5, 3\]"),
        ({**GOOD, "x": np.zeros(12, np.float32)}, r"'x' is float32\[12\]"),
        ({**GOOD, "x": "words"}, "'x' is not an array of numbers"),
        ({**GOOD, "x": [[1, 2], [3]]}, "'x' is not an array of numbers"),
    ],
)
def test_what_does_not_fit_is_told(batch: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        checked_batch([X, Y], batch)


def test_a_size_of_one_name_is_the_same_in_all_inputs() -> None:
    slots = [slot("x", ("N", 3)), slot("y", ("N",), "int64")]
    checked_batch(slots, {"x": np.zeros((7, 3), np.float32), "y": np.zeros(7, np.int64)})
    with pytest.raises(UsageError, match="'N' is 7 in 'x' and 6 in 'y'"):
        checked_batch(slots, {"x": np.zeros((7, 3), np.float32), "y": np.zeros(6, np.int64)})


def arrays(count: int) -> dict[str, np.ndarray]:
    x = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    return {"x": x, "y": np.arange(count)}


def test_every_sample_comes_once_per_epoch_and_epochs_differ() -> None:
    data = Batches([X, Y], arrays(12), seed=1)
    epochs = [np.concatenate([next(data)["y"] for _ in range(3)]) for _ in range(2)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(12))
    assert (epochs[0] != epochs[1]).any()
    again = Batches([X, Y], arrays(12), seed=1)
    assert (next(again)["y"] == epochs[0][:4]).all()
    batch = next(Batches([X, Y], arrays(12), seed=1))
    assert (batch["x"][:, 0] == 3 * batch["y"]).all()


def test_samples_that_fill_no_batch_are_left_out() -> None:
    data = Batches([X, Y], arrays(10), shuffle=False)
    assert data.count == 2
    assert [next(data)["y"].tolist() for _ in range(3)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [0, 1, 2, 3],
    ]


def test_ready_batches_are_asked_for_never_guessed() -> None:
    scale, table = slot("scale", ()), slot("table", (5, 2))
    given = {
        "x": np.arange(24, dtype=np.float32).reshape(2, 4, 3),
        "scale": np.arange(2, dtype=np.float32),
        "table": np.zeros((2, 5, 2), np.float32),
        "y": np.arange(8).reshape(2, 4),
    }
    data = Batches([X, Y, scale, table], given, shuffle=False, ready_batches=True)
    assert (data.count, data.samples) == (2, None)
    first, second = next(data), next(data)
    assert first["x"].shape == (4, 3)
    assert second["x"][0, 0] == 12
    assert second["y"].tolist() == [4, 5, 6, 7]
    assert second["scale"] == 1
    for slots, arrays_of in (([X, Y], ("x", "y")), ([scale], ("scale",))):
        with pytest.raises(UsageError) as caught:
            Batches(slots, {name: given[name] for name in arrays_of})
        assert caught.value.hint == "whole batches: ready_batches=True, or --ready-batches"
    with pytest.raises(UsageError, match=r"'x' of the data is float32\[12, 3\]"):
        Batches([X, Y], arrays(12), ready_batches=True)
    with pytest.raises(UsageError, match="ready batches are not cut"):
        Batches([X, Y, scale, table], given, size=4, ready_batches=True)


def test_inputs_with_other_numbers_of_samples_take_ready_batches() -> None:
    table = slot("table", (5, 2))
    with pytest.raises(UsageError, match=r"the inputs of a batch have \[4, 5\] samples"):
        Batches([X, Y, table], {**arrays(20), "table": np.zeros((20, 2), np.float32)})


def test_an_open_size_must_be_given() -> None:
    slots = [slot("x", ("N", 3)), slot("y", ("N",), "int64")]
    with pytest.raises(UsageError, match="leaves the size of a batch open"):
        Batches(slots, arrays(12))
    assert next(Batches(slots, arrays(12), size=6))["x"].shape == (6, 3)
    with pytest.raises(UsageError, match="a batch of 6 samples, but the step takes 4"):
        Batches([X, Y], arrays(12), size=6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": arrays(8)["x"]}, "the data has no 'y'"),
        ({**arrays(8), "z": np.zeros(8)}, "an array 'z', which is not a batch input"),
        ({**arrays(8), "y": np.arange(9)}, "8 samples of 'x' and 9 of 'y'"),
        (arrays(3), "the data has 3 samples, and a batch takes 4"),
        ({**arrays(8), "y": np.zeros(8, np.int32)}, "'y' of the data is int32"),
        ({**arrays(8), "x": np.zeros((8, 2), np.float32)}, r"'x' of the data is float32\[8, 2\]"),
    ],
)
def test_data_that_does_not_fit_is_told(given: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Batches([X, Y], given)


@pytest.mark.parametrize("taken", [0, 1, 2, 3, 5])
def test_data_goes_on_where_it_was(taken: int) -> None:
    data = Batches([X, Y], arrays(12), seed=5)
    for _ in range(taken):
        next(data)
    state = data.state()
    other = Batches([X, Y], arrays(12), seed=5)
    other.restore(state)
    for _ in range(5):
        assert (next(other)["y"] == next(data)["y"]).all()


def test_other_data_is_refused() -> None:
    state = Batches([X, Y], arrays(12), seed=5).state()
    with pytest.raises(UsageError, match="data with seed 5, this has 6"):
        Batches([X, Y], arrays(12), seed=6).restore(state)
    with pytest.raises(UsageError, match="data with count 3, this has 4"):
        Batches([X, Y], arrays(16), seed=5).restore(state)
