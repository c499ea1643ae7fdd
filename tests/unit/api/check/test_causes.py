"""What a growth is put down to, and what it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from helpers.locks import MIB, an_entry, today
from memplan.api.check.causes import causes
from memplan.api.check.lock import TopTensors
from memplan.api.check.traits import Traits

OLD = Traits(
    structure="0" * 32,
    operators={"Gelu": 12, "MatMul": 24, "Mul": 6},
    types={"float16": 100, "int64": 4},
    inputs={"x": "float16[8,128]", "labels": "int64[8]", "lr": "float32[]"},
)


def told(new: Traits, **changes: Any) -> list[str]:
    """The causes of a growth from OLD to ``new``."""
    before = an_entry(traits=OLD)
    more = TopTensors("probs*", "stash", 12, MIB)
    settings = {"fingerprint": "0" * 32, "top": (*before.top, more), **changes}
    return [cause.line for cause in causes(before, today(before, traits=new, **settings))]


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
    assert told(replace(OLD, structure="1", inputs=inputs))[0].startswith(cause)


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
    assert told(replace(OLD, structure="1", types=types))[0] == cause


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
    assert told(replace(OLD, structure="1", operators=operators))[0] == cause


def test_vendors_fusions_need_no_table() -> None:
    fused = replace(OLD, operators={"com.microsoft:SkipGroupNorm": 3})
    before = an_entry(traits=fused)
    apart = replace(OLD, structure="1", operators={"GroupNormalization": 3, "Add": 3})
    (cause,) = causes(before, today(before, traits=apart, fingerprint="0" * 32))
    assert cause.text.startswith("fusion lost: 3 com.microsoft:SkipGroupNorm became")


def test_order_is_what_is_left_when_all_else_is_the_same() -> None:
    assert told(OLD)[0].startswith("another order")
    assert told(OLD)[1] == STASH
    assert told(replace(OLD, structure="1")) == [STASH]


def test_what_an_older_lock_does_not_tell_is_not_guessed() -> None:
    before = an_entry()
    assert before.traits is None
    now = today(before, traits=OLD, fingerprint="0" * 32)
    (cause,) = causes(before, replace(now, entry=replace(now.entry, classes={"stash": 99 * MIB})))
    assert cause.text == "more stash at the peak"
    (cause,) = causes(before, today(before, peak_bytes=101 * MIB))
    assert cause.kind == "same-graph"


def test_tensors_that_grew_are_not_called_more() -> None:
    before = an_entry(traits=OLD)
    top = (TopTensors("act*", "stash", 8, 20 * MIB),)
    new = replace(OLD, structure="1")
    (cause,) = causes(before, today(before, traits=new, top=top, fingerprint="0" * 32))
    assert cause.text == "8 tensors at the peak are larger"
