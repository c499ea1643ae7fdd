"""What a growth is put down to, and what it is not."""

from dataclasses import replace
from typing import Any

import pytest

from helpers.locks import MIB, an_entry, today
from memplan.api.check.causes import causes
from memplan.api.check.peak import TopTensors

OLD = an_entry(
    structure="0" * 32,
    operators={"Gelu": 12, "MatMul": 24, "Mul": 6},
    types={"float16": 100, "int64": 4},
    inputs={"x": "float16[8,128]", "labels": "int64[8]", "lr": "float32[]"},
)


def told(**changes: Any) -> list[str]:
    """The causes of a growth from OLD to another graph."""
    more = TopTensors("probs*", "stash", 12, MIB)
    now = today(OLD, fingerprint="0" * 32, **{"top": (*OLD.top, more), **changes})
    return [cause.line for cause in causes(OLD, now)]


STASH = "12 more tensors stay live into backward: probs*, 12 x 1.00 MiB"


@pytest.mark.parametrize(
    ("inputs", "cause"),
    [
        ({"x": "float16[16,128]", "labels": "int64[16]"}, "larger batch: 8 -> 16 in x, labels"),
        ({"x": "float16[8,256]"}, "larger input: x 8x128 -> 8x256"),
        ({"x": "float16[8,256]", "labels": "int64[9]"}, "larger input: x 8x128 -> 8x256 and 1"),
        ({"x": "float16[16,64]"}, STASH),
        ({"x": "float16[4,128]"}, STASH),
        ({"x": "float32[8,128]"}, STASH),
        ({"x": "edited", "labels": "int64[\u0664]"}, STASH),
        ({"x": "float16[16,128]", "other": "int64[9]"}, "larger batch: 8 -> 16 in x"),
        ({"a": "float16[16,128]", "b": "int64[16]", "c": "float32[]"}, "larger batch: 8 -> 16 in"),
    ],
)
def test_sizes(inputs: dict[str, str], cause: str) -> None:
    assert told(structure="1", inputs=inputs)[0].startswith(cause)


@pytest.mark.parametrize(
    ("types", "cause"),
    [
        ({"float32": 98, "int64": 4}, "wider element type: float16 -> float32 in 98 tensors"),
        (
            {"float16": 99, "float64": 1, "int64": 4},
            "wider element type: float16 -> float64 in 1 tensor",
        ),
        ({"float16": 97, "int64": 9}, STASH),
        ({"float16": 10, "float32": 2}, STASH),
        ({"float16": 101, "float32": 3}, STASH),
        ({"int8": 100, "int64": 4}, STASH),
    ],
)
def test_types(types: dict[str, int], cause: str) -> None:
    assert told(structure="1", types=types)[0] == cause


@pytest.mark.parametrize(
    ("operators", "cause"),
    [
        ({"Erf": 12, "Mul": 30, "MatMul": 24}, "fusion lost: 12 Gelu became 12 Erf, 24 Mul"),
        ({"Relu": 12, "MatMul": 24}, STASH),
        ({"Relu": 13, "MatMul": 24}, STASH),
        ({"Gelu": 12, "MatMul": 12, "Mul": 90}, STASH),
    ],
)
def test_fusions(operators: dict[str, int], cause: str) -> None:
    assert told(structure="1", operators=operators)[0] == cause


def test_vendors_fusions_need_no_table() -> None:
    fused = replace(OLD, operators={"com.microsoft:SkipGroupNorm": 3})
    apart = {"GroupNormalization": 3, "Add": 3}
    now = today(fused, structure="1", operators=apart, fingerprint="0" * 32)
    (cause,) = causes(fused, now)
    assert cause.text.startswith("fusion lost: 3 com.microsoft:SkipGroupNorm became")


def test_order_is_what_is_left_when_all_else_is_the_same() -> None:
    assert told()[0].startswith("another order")
    assert told()[1] == STASH
    assert told(structure="1") == [STASH]


def test_what_an_older_lock_does_not_tell_is_not_guessed() -> None:
    before = an_entry()
    assert before.structure is before.inputs is None
    now = replace(OLD, fingerprint="0" * 32, classes={"stash": 99 * MIB})
    (cause,) = causes(before, now)
    assert cause.text == "more stash at the peak"
    (cause,) = causes(before, today(before, peak_bytes=101 * MIB))
    assert cause.kind == "same-graph"


def test_tensors_that_grew_are_not_called_more() -> None:
    top = (TopTensors("act*", "stash", 8, 20 * MIB),)
    (cause,) = told(structure="1", top=top)
    assert cause == "8 tensors at the peak are larger: act*, 8 x 20.0 MiB"
