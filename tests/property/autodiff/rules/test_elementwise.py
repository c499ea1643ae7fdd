"""Gradient rules against finite differences, over their attributes, shapes and opsets at random."""

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.drawing import ints, quiet, shapes
from helpers.effort import tries
from helpers.gradients import check, draw, reference, runtime, single

QUIET = quiet(25)
OPSETS = st.sampled_from([13, 15, 16, 18, 20, onnx.defs.onnx_opset_version()])
Draw = Any


def some_axes(draw: Draw, rank: int, low: int = 0) -> list[int]:
    """Different axes, some counted from the back."""
    axes = draw(st.lists(st.integers(0, rank - 1), unique=True, min_size=low, max_size=rank))
    return [axis - rank * draw(st.integers(0, 1)) for axis in axes]


def broadcastable(draw_: Draw, count: int) -> list[tuple[int, ...]]:
    """Shapes that broadcast to one."""
    whole = draw_(shapes(0, 3))
    result = []
    for _ in range(count):
        own = [dim if draw_(st.booleans()) else 1 for dim in whole]
        result.append(tuple(own[draw_(st.integers(0, len(own))) :]))
    return result


@QUIET
@given(st.data())
def test_broadcasting(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"]))
    one, other = broadcastable(data.draw, 2)
    check(single(op, draw(one, 1, 0.5, 2), draw(other, 2, 0.63, 2.2), opset=data.draw(OPSETS)))


@QUIET
@given(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 2.5]), shapes(0, 3))
def test_power_by_a_number(exponent: float, shape: tuple[int, ...]) -> None:
    made = single("Pow", draw(shape, low=0.4), np.asarray(exponent))
    model, feeds = made
    number = onnx.numpy_helper.from_array(feeds.pop("x1"), "x1")
    del model.graph.input[1]
    model.graph.initializer.append(number)
    if exponent:
        check(made)


REDUCTIONS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
]


@settings(QUIET, max_examples=tries(80))
@given(st.data())
def test_reductions(data: st.DataObject) -> None:
    op, opset = data.draw(st.sampled_from(REDUCTIONS)), data.draw(OPSETS)
    shape = data.draw(shapes())
    x = draw(shape, low=0.2) if op == "ReduceLogSum" else draw(shape)
    axes = some_axes(data.draw, len(shape), 1)
    attributes: dict[str, Any] = {"keepdims": data.draw(st.integers(0, 1))}
    as_input = opset >= 18 or op == "ReduceSum"
    if data.draw(st.booleans()):  # all axes
        check(single(op, x, opset=opset, **attributes))
    elif as_input:
        check(single(op, x, ints(*axes), opset=opset, **attributes))
    else:
        check(single(op, x, opset=opset, axes=axes, **attributes))


@pytest.mark.parametrize("run", [reference, runtime])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reduction_over_no_axes(op: str, run: Any) -> None:
    """What that is for some operators is not agreed on; the gradient fits what was computed."""
    x = draw((2, 3), low=0.3) if op == "ReduceLogSum" else draw((2, 3))
    check(single(op, x, ints(), noop_with_empty_axes=1), run=run)
