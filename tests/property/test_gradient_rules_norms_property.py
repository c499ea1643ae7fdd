"""Gradients of normalizations against finite differences, over their attributes."""

from __future__ import annotations

from typing import Any

import pytest
from gradients import Array, check, check_on_runtime, draw, reference, single, with_symbols
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

QUIET = settings(
    deadline=None,
    derandomize=True,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
Draw = Any


def shaped(draw_: Draw, low: int, high: int, size: int = 4) -> tuple[int, ...]:
    rank = draw_(st.integers(low, high))
    return tuple(draw_(st.integers(1, size)) for _ in range(rank))


def batch_norm_inputs(shape: tuple[int, ...]) -> list[Array]:
    channels = shape[1:2]
    vectors = [draw(channels, 1), draw(channels, 2), draw(channels, 3), draw(channels, 4, 0.3, 2.0)]
    return [draw(shape), *vectors]


@QUIET
@given(st.data())
def test_batch_norm_by_given_statistics(data: st.DataObject) -> None:
    inputs = batch_norm_inputs(shaped(data.draw, 2, 5))
    opset = data.draw(st.sampled_from([13, 14, 15, 20]))
    epsilon = data.draw(st.sampled_from([1e-5, 0.1]))
    check_on_runtime(single("BatchNormalization", *inputs, opset=opset, epsilon=epsilon))


@QUIET
@given(st.data())
def test_batch_norm_in_training(data: st.DataObject) -> None:
    """Running statistics come out as well; gradients flow through them too."""
    shape = shaped(data.draw, 2, 4)
    attributes = {"epsilon": data.draw(st.sampled_from([1e-2, 0.1])), "training_mode": 1}
    if data.draw(st.booleans()):
        attributes["momentum"] = 0.6
    opset = data.draw(st.sampled_from([14, 15, 20]))
    made = single(
        "BatchNormalization", *batch_norm_inputs(shape), opset=opset, outputs=3, **attributes
    )
    ys = data.draw(st.sampled_from([["y0"], ["y0", "y1"], ["y0", "y1", "y2"]]))
    xs = ["x0", "x1", "x2"] + (["x3"] if "y1" in ys else [])
    check_on_runtime(made, xs=xs, ys=ys, tolerance=1e-3)


def test_batch_norm_in_training_before_opset_14() -> None:
    """Further outputs mean training; the runtime has no kernel for that."""
    made = single("BatchNormalization", *batch_norm_inputs((2, 3, 2)), opset=13, outputs=5)
    for value in made[0].graph.output[1:]:  # which ONNX's shape inference does not find
        value.type.tensor_type.shape.dim.add().dim_value = 3
    model = check(made, xs=["x0", "x1", "x2"], ys=["y0"])
    assert [node.op_type for node in model.graph.node].count("BatchNormalization") == 2


@QUIET
@given(st.data())
def test_layer_norm(data: st.DataObject) -> None:
    """The scale may be as large as what is normalized, or broadcast to it."""
    op = data.draw(st.sampled_from(["LayerNormalization", "RMSNormalization"]))
    opset = 23 if op == "RMSNormalization" else data.draw(st.sampled_from([17, 20, 23]))
    shape = shaped(data.draw, 1, 4)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    own = list(shape[axis:])
    if data.draw(st.booleans()):
        own = [dim if data.draw(st.booleans()) else 1 for dim in own]
        own = own[data.draw(st.integers(0, len(own) - 1)) :]
    vectors = [draw(own, 1)]
    if op == "LayerNormalization" and data.draw(st.booleans()):
        vectors.append(draw(own, 2))
    epsilon = data.draw(st.sampled_from([1e-2, 0.1]))
    made = single(op, draw(shape), *vectors, opset=opset, axis=axis, epsilon=epsilon)
    check_on_runtime(made)


@QUIET
@given(st.data())
def test_instance_norm(data: st.DataObject) -> None:
    shape = shaped(data.draw, 3, 5)
    epsilon = data.draw(st.sampled_from([1e-2, 0.1]))
    vectors = [draw(shape[1:2], 1), draw(shape[1:2], 2)]
    check_on_runtime(single("InstanceNormalization", draw(shape), *vectors, epsilon=epsilon))


@QUIET
@given(st.data())
def test_group_norm(data: st.DataObject) -> None:
    """Scale and bias per group before opset 21, per channel since."""
    groups, channels = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    opset = data.draw(st.sampled_from([18, 21]))
    rest = shaped(data.draw, 1, 3, 3)
    shape = (data.draw(st.integers(1, 3)), groups * channels, *rest)
    count = groups * channels if opset == 21 else groups
    attributes = {"num_groups": groups, "epsilon": data.draw(st.sampled_from([1e-2, 0.1]))}
    vectors = [draw((count,), 1), draw((count,), 2)]
    made = single("GroupNormalization", draw(shape), *vectors, opset=opset, **attributes)
    (output,) = made[0].graph.output
    if not output.type.tensor_type.HasField("shape"):  # before opset 21 it is deprecated
        for size in shape:
            output.type.tensor_type.shape.dim.add().dim_value = size
    check_on_runtime(made)
