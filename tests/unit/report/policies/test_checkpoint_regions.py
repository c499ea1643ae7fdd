"""Which modules are checkpointed: those that hold least."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.planned_calls import block, plan_of
from memplan.errors import UsageError
from memplan.planning.plan_file import TensorDecision
from memplan.report.policies.checkpoint_regions import regions
from memplan.report.policies.plan_calls import planned_calls

KEPT = ("attn/qkv linear 0", "mlp/0 linear 0", "add 0", "add 1")


def paths(*rows: tuple[str, str] | tuple[str, str, int]) -> list[str]:
    return [region.path for region in regions(planned_calls(plan_of(*rows)))]


def test_blocks_are_checkpointed_rather_than_what_is_in_them_or_around_them() -> None:
    rows = [row for k in range(4) for row in block(f"net/blocks.{k}", KEPT)]
    assert paths(*rows) == [f"net.blocks.{k}" for k in range(4)]


def test_a_module_that_recomputes_nothing_is_left_alone() -> None:
    everything = [call.strip("/ ") for call, _ in block("", ())]
    assert paths(*block("blocks.0", everything), *block("blocks.1", KEPT)) == ["blocks.1"]
    assert paths(*block("blocks.0", everything)) == []


def test_a_module_without_a_call_of_its_own_is_no_region() -> None:
    """``blocks`` is a list of modules, which cannot be called."""
    assert paths(("blocks.0/act relu 0", "recomputed"), ("blocks.0/fc linear 0", "kept")) != [
        "blocks"
    ]


def test_a_large_module_is_cut_where_little_goes_from_part_to_part() -> None:
    part = [("a gelu 0", "recomputed", 8000), ("b linear 0", "kept", 10)]
    rows = [(f"net/stage{k}/{call}", fate, n) for k in range(3) for call, fate, n in part]
    assert paths(*rows) == ["net.stage0", "net.stage1", "net.stage2"]


def test_what_only_passes_through_is_not_split_off() -> None:
    """A part whose result is to be made again would keep it as the input of the next part."""
    rows = [(f"net/part{k} gelu 0", "recomputed", 100) for k in range(3)]
    assert paths(*rows, ("net/last linear 0", "kept")) == ["net"]


def test_a_result_that_goes_on_is_held_anyhow() -> None:
    assert paths(("net/tokens embedding 0", "recomputed"), ("net/fc linear 0", "kept")) == ["net"]
    assert paths(("tokens embedding 0", "recomputed"), ("fc linear 0", "kept")) == []


@pytest.mark.parametrize(("nbytes", "found"), [(800, ["pool"]), (20, [])])
def test_what_stands_beside_a_result_is_not(nbytes: int, found: list[str]) -> None:
    """Such as the places of the largest elements; the means of a normalization are few."""
    result = plan_of(("pool max_pool2d 0", "kept", 400))
    places = replace(result.tensors[0], tensor="places", nbytes=nbytes, decision="recomputed")
    plan = replace(result, tensors=(*result.tensors, places))
    assert [region.path for region in regions(planned_calls(plan))] == found


def test_second_calls_of_a_module_inside_are_told_apart() -> None:
    (region,) = regions(
        planned_calls(
            plan_of(
                ("net/act relu 0", "recomputed"),
                ("net/fc linear 0", "kept"),
                ("net/act@1 relu 0", "kept"),
            )
        )
    )
    assert [name for name, _ in region.calls] == ["act", "fc", "act@1"]


def test_calls_of_a_module_that_is_called_twice_are_one() -> None:
    (region,) = regions(
        planned_calls(
            plan_of(
                ("net/act relu 0", "recomputed"),
                ("net/fc linear 0", "kept"),
                ("net@1/act@1 relu 0", "recomputed"),
                ("net@1/fc@1 linear 0", "kept"),
            )
        )
    )
    assert [name for name, _ in region.calls] == ["act", "fc", "act", "fc"]


def test_the_larger_part_of_a_call_decides() -> None:
    calls = planned_calls(
        plan_of(
            ("a linear 0", "kept", 10),
            ("a linear 0", "recomputed", 30),
            ("b linear 0", "kept", 10),
            ("b linear 0", "recomputed", 2),
        )
    )
    assert [(call.kept, call.nbytes) for call in calls] == [(False, 30), (True, 10)]


@pytest.mark.parametrize("call", ["linear", "a linear x", "a b() 0", "a linear 99999999999"])
def test_what_is_no_call_is_not_one(call: str) -> None:
    odd = TensorDecision("t", "n", "Op", None, 8, "recomputed", call=call)
    with pytest.raises(UsageError, match="does not say which calls of PyTorch"):
        planned_calls(replace(plan_of(), tensors=(odd,)))
