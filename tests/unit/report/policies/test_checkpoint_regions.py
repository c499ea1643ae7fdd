"""Which modules are checkpointed: those that hold least."""

from dataclasses import replace
from typing import Any

import pytest

from helpers.planned_calls import block, plan_of
from memplan.errors import UsageError
from memplan.planning.plan_file import TensorDecision
from memplan.report.policies.checkpoint_regions import regions
from memplan.report.policies.plan_calls import planned_calls

KEPT = ("attn/qkv linear 0", "mlp/0 linear 0", "add 0", "add 1")


def paths(*rows: Any) -> list[str]:
    return [region.path for region in regions(planned_calls(plan_of(*rows)))]


EVERYTHING = [call.strip("/ ") for call, _ in block("", ())]
PART = (("a gelu 0", "recomputed", 8000), ("b linear 0", "kept", 10))
# Calls and what becomes of them, and the modules that are checkpointed.
REGIONS: dict[str, tuple[list[Any], list[str]]] = {
    "blocks rather than what is in them or around them": (
        [row for k in range(4) for row in block(f"net/blocks.{k}", KEPT)],
        [f"net.blocks.{k}" for k in range(4)],
    ),
    "a module that recomputes nothing is left alone": (
        [*block("blocks.0", EVERYTHING), *block("blocks.1", KEPT)],
        ["blocks.1"],
    ),
    "nothing is recomputed": ([*block("blocks.0", EVERYTHING)], []),
    "a large module is cut where little goes from part to part": (
        [(f"net/stage{k}/{call}", fate, n) for k in range(3) for call, fate, n in PART],
        ["net.stage0", "net.stage1", "net.stage2"],
    ),
    # A part whose result is to be made again would keep it as the input of the next part.
    "what only passes through is not split off": (
        [
            *((f"net/part{k} gelu 0", "recomputed", 100) for k in range(3)),
            ("net/last linear 0", "kept"),
        ],
        ["net"],
    ),
    "a result that goes on is held anyhow": (
        [("net/tokens embedding 0", "recomputed"), ("net/fc linear 0", "kept")],
        ["net"],
    ),
    "at the top": ([("tokens embedding 0", "recomputed"), ("fc linear 0", "kept")], []),
}


@pytest.mark.parametrize(("rows", "found"), REGIONS.values(), ids=REGIONS)
def test_modules_that_hold_least_are_checkpointed(rows: list[Any], found: list[str]) -> None:
    assert paths(*rows) == found


def test_a_module_without_a_call_of_its_own_is_no_region() -> None:
    """``blocks`` is a list of modules, which cannot be called."""
    rows = ("blocks.0/act relu 0", "recomputed"), ("blocks.0/fc linear 0", "kept")
    assert paths(*rows) != ["blocks"]


@pytest.mark.parametrize(("nbytes", "found"), [(800, ["pool"]), (20, [])])
def test_what_stands_beside_a_result_is_not(nbytes: int, found: list[str]) -> None:
    """Such as the places of the largest elements; the means of a normalization are few."""
    result = plan_of(("pool max_pool2d 0", "kept", 400))
    places = replace(result.tensors[0], tensor="places", nbytes=nbytes, decision="recomputed")
    plan = replace(result, tensors=(*result.tensors, places))
    assert [region.path for region in regions(planned_calls(plan))] == found


INSIDE = ("net/act relu 0", "net/fc linear 0", "net/act@1 relu 0")
TWICE = ("net/act relu 0", "net/fc linear 0", "net@1/act@1 relu 0", "net@1/fc@1 linear 0")


@pytest.mark.parametrize(
    ("calls", "names"),
    [(INSIDE, "act fc act@1"), (TWICE, "act fc act fc")],
    ids=["inside", "of it"],
)
def test_second_calls_of_a_module(calls: tuple[str, ...], names: str) -> None:
    rows = ((call, "kept" if "fc" in call else "recomputed") for call in calls)
    (region,) = regions(planned_calls(plan_of(*rows)))
    assert " ".join(name for name, _ in region.calls) == names


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
