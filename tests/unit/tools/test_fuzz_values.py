"""The fuzzer of values: it finds wrong rules, and none in what is there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memplan.autodiff.emit import gradient_registry
from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients
from memplan.autodiff.emit.operations import Operations

ROOT = Path(__file__).resolve().parents[3]
SEED = 11
pytestmark = pytest.mark.ort


@pytest.fixture(scope="module")
def values() -> Any:
    sys.path.insert(0, str(ROOT / "tools" / "fuzz"))
    try:
        import values

        yield values
    finally:
        sys.path.remove(str(ROOT / "tools" / "fuzz"))


def test_a_case_is_known_by_its_number(values: Any) -> None:
    one, two, other = (values.case_of(SEED, number).model for number in (1, 1, 2))
    assert one == two
    assert one != other


def test_few_graphs(values: Any) -> None:
    ended = [values.examined(SEED, number) for number in range(24)]
    assert [told for told, _ in ended if told[0]] == []
    assert sum("right" in " ".join(counts) for _, counts in ended) > 18


def _flag_turned(self: Operations, value: Any, flag: int) -> tuple[Any, int]:
    """Any Transpose ahead of a Gemm as its flag, whatever its axes."""
    made = self.maker(value)
    if made is not None and made.op_type == "Transpose":
        return self.tensor(made.input[0]), 1 - flag
    return value, flag


def _from_this_end(ctx: Context) -> Gradients:
    return (ctx.op("CumSum", ctx.dy, ctx.inputs[1], reverse=ctx.attribute("reverse", 0)),)


def _to_both(ctx: Context) -> Gradients:
    return [ctx.dy for _ in ctx.inputs]


def _of_one_factor(ctx: Context) -> Gradients:
    a, b = ctx.tensors
    return (ctx.dy * b, None if a == b else ctx.dy * a)


def _of_a_matrix(ctx: Context) -> Gradients:
    order = list(range(ctx.y.rank))[::-1]
    return (ctx.transpose(ctx.whole(), order),)


PLANTED: dict[str, tuple[int, Callable[[Context], Gradients]]] = {
    "CumSum": (17, _from_this_end),
    "Max": (7, _to_both),
    "Mul": (36, _of_one_factor),
    "Transpose": (33, _of_a_matrix),
}
"""By operator: the first of a hundred graphs that finds the rule out, and the rule."""


@pytest.mark.parametrize("op", PLANTED)
def test_a_wrong_rule_is_found(op: str, values: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    number, rule = PLANTED[op]
    known = gradient_registry._ENTRIES["", op]
    monkeypatch.setitem(gradient_registry._ENTRIES, ("", op), replace(known, rule=rule))
    _is_found(values, number, op)


def test_a_transpose_that_is_none_is_found(values: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of c9b39250, where a gradient was off by 111%."""
    monkeypatch.setattr(Operations, "_untransposed", _flag_turned)
    _is_found(values, 71, "Transpose")


def _is_found(values: Any, number: int, op: str) -> None:
    assert number < 100
    (code, place, message), _ = values.examined(SEED, number)
    assert code
    assert place.partition(":")[0] in ("wrong", "wrong node", "does not run"), message
    assert op in place
