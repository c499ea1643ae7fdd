"""Gradients of normalizations against finite differences, over their attributes."""

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st

from helpers.drawing import quiet, shapes
from helpers.gradients import Array, check, check_on_runtime, draw, runtime, single
from helpers.graphs import parse
from memplan.autodiff.backward import Request, build_gradients

QUIET = quiet(30)


def state_shapes(model: onnx.ModelProto, shape: tuple[int, ...]) -> None:
    """For outputs whose shape ONNX's inference does not find."""
    for value in model.graph.output:
        if not value.type.tensor_type.HasField("shape"):
            for size in shape:
                value.type.tensor_type.shape.dim.add().dim_value = size


def batch_norm_inputs(shape: tuple[int, ...]) -> list[Array]:
    channels = shape[1:2]
    vectors = [draw(channels, 1), draw(channels, 2), draw(channels, 3), draw(channels, 4, 0.3, 2.0)]
    return [draw(shape), *vectors]


@QUIET
@given(st.data())
def test_batch_norm_in_training(data: st.DataObject) -> None:
    """Running statistics come out as well; gradients flow through them too."""
    shape = data.draw(shapes(2, 4, 4))
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
    """Further outputs mean training; the runtime has no kernel for that. Nobody reads the last two,
    which no later opset has."""
    made = single("BatchNormalization", *batch_norm_inputs((2, 3, 2)), opset=13, outputs=5)
    del made[0].graph.output[3:]
    state_shapes(made[0], (3,))
    model = check(made, xs=["x0", "x1", "x2"], ys=["y0"])
    assert [node.op_type for node in model.graph.node].count("BatchNormalization") == 2


@QUIET
@given(st.data())
def test_layer_norm(data: st.DataObject) -> None:
    """The scale may be as large as what is normalized, or broadcast to it."""
    op = data.draw(st.sampled_from(["LayerNormalization", "RMSNormalization"]))
    opset = 23 if op == "RMSNormalization" else data.draw(st.sampled_from([17, 20, 23]))
    shape = data.draw(shapes(1, 4, 4))
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
def test_group_norm(data: st.DataObject) -> None:
    """Scale and bias per group before opset 21, per channel since."""
    groups, channels = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    opset = data.draw(st.sampled_from([18, 21]))
    rest = data.draw(shapes(1, 3))
    shape = (data.draw(st.integers(1, 3)), groups * channels, *rest)
    count = groups * channels if opset == 21 else groups
    attributes = {"num_groups": groups, "epsilon": data.draw(st.sampled_from([1e-2, 0.1]))}
    vectors = [draw((count,), 1), draw((count,), 2)]
    made = single("GroupNormalization", draw(shape), *vectors, opset=opset, **attributes)
    state_shapes(made[0], shape)  # before opset 21 it is deprecated
    check_on_runtime(made)


@QUIET
@given(st.data())
def test_mean_variance(data: st.DataObject) -> None:
    """The gradient of its definition, written out: ONNX has it for float32 only."""
    shape = tuple(data.draw(st.integers(2, 4)) for _ in range(4))
    axes = data.draw(st.sampled_from([[0, 2, 3], [2, 3], [0, 1, 2, 3], [1]]))
    x, kinds = draw(shape).astype(np.float32), [onnx.TensorProto.FLOAT]
    made = single("MeanVarianceNormalization", x, axes=axes, out_dtypes=kinds)
    state_shapes(made[0], shape)
    sizes = ",".join(map(str, shape))
    written = parse(f"""g (float[{sizes}] x0) => (float[{sizes}] y0)
        <int64[{len(axes)}] axes = {{{",".join(map(str, axes))}}}, float small = {{0.000000001}}>
        {{ mean = ReduceMean(x0, axes) apart = Sub(x0, mean) square = Mul(apart, apart)
          variance = ReduceMean(square, axes) root = Sqrt(variance) below = Add(root, small)
          y0 = Div(apart, below) }}""")
    feeds = {"x0": x, "seed": draw(shape, 1).astype(np.float32)}
    request = Request(("y0",), ("x0",), ("seed",))
    found, wanted = (
        runtime(build_gradients(model, request), feeds)["x0_grad"] for model in (made[0], written)
    )
    # ONNX defines the variance as a difference of squares, which rounds.
    least = float(x.var(axis=tuple(axes)).min())
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 + 5e-6 / least)
