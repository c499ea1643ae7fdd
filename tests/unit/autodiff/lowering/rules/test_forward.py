"""Foreign operators without a gradient of their own, against NumPy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.lowering import Array, Case, node, onnx_node, outputs_of, some

pytestmark = pytest.mark.ort
BOOL, INT64, FLOAT = (
    onnx.TensorProto.BOOL,
    onnx.TensorProto.INT64,
    onnx.TensorProto.FLOAT,
)


def result(
    op: str, given: dict[str, Array], constants: dict[str, Array] | None = None, **attributes: Any
) -> Array:
    """The one output of a node that reads all that is given, in order."""
    constants = constants or {}
    names = " ".join([*given, *constants])
    case = Case([node(op, names, "y", **attributes)], given, ["y"], constants)
    return outputs_of(case)["y"]


# -- activations -------------------------------------------------------------------------------


def gelu(x: Array) -> Array:
    """x·Φ(x)."""
    return np.vectorize(lambda n: n / 2 * (1 + math.erf(n / math.sqrt(2))))(x)


def test_gelu() -> None:
    x, bias = some(3, 4), some(4, seed=1)
    np.testing.assert_allclose(result("Gelu", {"x": x}), gelu(x), atol=1e-12)
    np.testing.assert_allclose(result("BiasGelu", {"x": x, "b": bias}), gelu(x + bias), atol=1e-12)


def test_quick_gelu() -> None:
    x = some(3, 4)
    found = result("QuickGelu", {"x": x}, alpha=1.3)
    np.testing.assert_allclose(found, x / (1 + np.exp(-np.float32(1.3) * x)), atol=1e-7)


def test_fast_gelu() -> None:
    x, bias = some(3, 4), some(4, seed=1)
    z = x + bias
    wanted = z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    np.testing.assert_allclose(result("FastGelu", {"x": x, "b": bias}), wanted, atol=1e-12)


# -- products ----------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["FusedMatMul", "TransposeMatMul"])
@pytest.mark.parametrize("turned_a", [0, 1])
@pytest.mark.parametrize("turned_b", [0, 1])
def test_product(op: str, turned_a: int, turned_b: int) -> None:
    a = some(2, 4, 3) if turned_a else some(2, 3, 4)
    b = some(5, 4, seed=1) if turned_b else some(4, 5, seed=1)
    found = result(op, {"a": a, "b": b}, transA=turned_a, transB=turned_b, alpha=0.5)
    left, right = (np.swapaxes(m, -1, -2) if t else m for m, t in ((a, turned_a), (b, turned_b)))
    np.testing.assert_allclose(found, 0.5 * left @ right, atol=1e-12)


@pytest.mark.parametrize("turned", [0, 1])
def test_product_with_the_first_axis_behind_the_batch(turned: int) -> None:
    """``transBatchA``: (M, B1, B2, K) stands for (B1, B2, M, K); transposed, for (B1, B2, K, M)."""
    a, b = some(4, 2, 3, 5), some(2, 3, 4 if turned else 5, 6, seed=1)
    found = result("FusedMatMul", {"a": a, "b": b}, transBatchA=1, transA=turned)
    left = np.moveaxis(a, 0, 2)
    np.testing.assert_allclose(
        found, (np.swapaxes(left, -1, -2) if turned else left) @ b, atol=1e-12
    )


# -- pieces ------------------------------------------------------------------------------------


def test_concat_with_lengths() -> None:
    nodes = [
        node("ConcatTraining", "a b", "y sizes", axis=-1),
        node("SplitTraining", "y sizes", "first second", axis=-1),
    ]
    feeds = {"a": some(2, 3), "b": some(2, 4, seed=1)}
    outputs = ["y", "sizes", "first", "second"]
    found = outputs_of(Case(nodes, feeds, outputs, types={"sizes": INT64}))
    np.testing.assert_array_equal(found["y"], np.concatenate([feeds["a"], feeds["b"]], 1))
    assert found["sizes"].tolist() == [3, 4]
    np.testing.assert_array_equal(found["first"], feeds["a"])
    np.testing.assert_array_equal(found["second"], feeds["b"])


@pytest.mark.parametrize("axes", [[0], [-1, 0], []])
@pytest.mark.parametrize("noop", [0, 1])
def test_sum(axes: list[int], noop: int) -> None:
    x = some(3, 4)
    found = result(
        "ReduceSumTraining",
        {"x": x},
        {"a": np.asarray(axes, np.int64)},
        keepdims=0,
        noop_with_empty_axes=noop,
    )
    wanted = x if noop and not axes else x.sum(tuple(axes) or None)
    np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("down", [0, 1])
def test_scale(down: int) -> None:
    x = some(3, 4)
    found = result("Scale", {"x": x, "s": np.asarray([4.0])}, scale_down=down)
    np.testing.assert_allclose(found, x / 4 if down else x * 4)


def test_scaled_sum() -> None:
    a, b, c = (some(3, 4, seed=k) for k in range(3))
    found = result("ScaledSum", {"a": a, "b": b, "c": c}, scale_0=0.5, scale_1=2.0, scale_2=-1.0)
    np.testing.assert_allclose(found, a / 2 + 2 * b - c)
    np.testing.assert_allclose(
        result("ScaledSum", {"a": a, "b": b}, scale_0=0.5, scale_1=2.0), a / 2 + 2 * b
    )


def test_mixed_precision_scale() -> None:
    nodes = [node("MixedPrecisionScale", "s a b", "x y", to=int(FLOAT))]
    feeds = {"s": np.asarray([0.5]), "a": some(3), "b": some(2, 2, seed=1)}
    found = outputs_of(Case(nodes, feeds, ["x", "y"], types={"x": FLOAT, "y": FLOAT}))
    assert found["x"].dtype == np.float32
    np.testing.assert_allclose(found["x"], feeds["a"] / 2, rtol=1e-6)
    np.testing.assert_allclose(found["y"], feeds["b"] / 2, rtol=1e-6)


def test_what_passes_through() -> None:
    nodes = [
        node("PassThrough", "a b", "x y"),
        node("Group", "a b", "done"),
        node("ZeroGradient", "a done", "zeros"),
    ]
    feeds = {"a": some(3), "b": some(2, 2, seed=1)}
    found = outputs_of(Case(nodes, feeds, ["x", "y", "done", "zeros"], types={"done": BOOL}))
    np.testing.assert_array_equal(found["x"], feeds["a"])
    np.testing.assert_array_equal(found["y"], feeds["b"])
    assert found["done"].item() is True
    np.testing.assert_array_equal(found["zeros"], np.zeros(3))


def test_shrunken_gather() -> None:
    x, places = some(5, 3), np.asarray([4, 1])
    np.testing.assert_array_equal(result("ShrunkenGather", {"x": x, "i": places}), x[places])


def test_old_accumulator() -> None:
    nodes = [node("InPlaceAccumulator", "a g on", "y"), node("InPlaceAccumulator", "a g", "z")]
    feeds = {"a": some(3), "g": some(3, seed=1), "on": np.asarray([False])}
    found = outputs_of(Case(nodes, feeds, ["y", "z"]))
    np.testing.assert_array_equal(found["y"], feeds["a"])
    np.testing.assert_allclose(found["z"], feeds["a"] + feeds["g"])


def test_dropout_of_a_sum() -> None:
    """Outside of training nothing is dropped."""
    nodes = [node("BiasDropout", "x b r ratio mode", "y mask")]
    feeds = {"x": some(3, 4), "b": some(4, seed=1), "r": some(3, 4, seed=2)}
    constants = {"ratio": np.asarray(0.5, np.float32), "mode": np.asarray(False)}
    found = outputs_of(Case(nodes, feeds, ["y"], constants))["y"]
    np.testing.assert_allclose(found, feeds["x"] + feeds["b"] + feeds["r"], atol=1e-12)


# -- numbers -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("odd", [0.0, math.inf, -math.inf, math.nan])
def test_finite(odd: float) -> None:
    x = np.asarray([1.0, odd, -3.0], np.float32)
    nodes = [node("IsFinite", "x", "each"), node("IsAllFinite", "w x", "all")]
    feeds = {"x": x, "w": np.ones((2, 2), np.float32)}
    found = outputs_of(Case(nodes, feeds, ["each", "all"], types={"each": BOOL, "all": BOOL}))
    np.testing.assert_array_equal(found["each"], np.isfinite(x))
    assert found["all"].item() == np.isfinite(x).all()


def test_norm_of_all() -> None:
    a, b = some(3), some(2, 2, seed=1)
    case = Case([node("ReduceAllL2", "a b", "y")], {"a": a, "b": b}, ["y"], types={"y": FLOAT})
    wanted = math.sqrt((a**2).sum() + (b**2).sum())
    assert outputs_of(case)["y"].item() == pytest.approx(wanted, rel=1e-6)


# -- broadcasting ------------------------------------------------------------------------------

SHAPES = [
    ((2, 3, 4), (2, 3, 4)),
    ((2, 3, 4), (4,)),
    ((2, 1, 4), (3, 1)),
    ((3, 1), (5, 2, 1, 7)),
    ((), (2, 3)),
    ((1, 3), (1, 3)),
]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("case", range(len(SHAPES)))
def test_broadcast_axes(case: int, known: bool) -> None:
    """What the gradient is summed over: with these axes, it has the input's number of elements."""
    shapes = [np.asarray(shape, np.int64) for shape in SHAPES[case]]
    feeds = dict(zip(("a", "b"), shapes, strict=True))
    nodes = [node("BroadcastGradientArgs", "a b", "p q")]
    types = {"p": INT64, "q": INT64}
    case_ = (
        Case(nodes, {}, ["p", "q"], feeds, types=types)
        if known
        else Case(nodes, feeds, ["p", "q"], types=types)
    )
    found = outputs_of(case_)
    whole = np.broadcast_shapes(*SHAPES[case])
    for shape, axes in zip(SHAPES[case], (found["p"], found["q"]), strict=True):
        summed = (
            np.zeros(whole).sum(tuple(axes.tolist()), keepdims=True)
            if axes.size
            else (np.zeros(whole))
        )
        assert summed.size == math.prod(shape), (shape, axes)


def test_broadcast_axes_of_named_dimensions() -> None:
    """A name may stand for 1: what it is broadcast against decides when the graph runs."""
    nodes = [
        onnx_node("Shape", "x", "sx", name="a"),
        onnx_node("Shape", "z", "sz", name="b"),
        node("BroadcastGradientArgs", "sx sz", "p q"),
    ]
    case = Case(
        nodes, {"x": some(4, 3), "z": some(4, 1)}, ["p", "q"], types={"p": INT64, "q": INT64}
    )
    model = case.model()
    for value, names in zip(model.graph.input, (["N", 3], ["M", 1]), strict=True):
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, 11, names))
    from helpers.lowering import evaluate
    from memplan.autodiff.lowering.lowered_graph import LoweringRequest, lower_model

    lowered = lower_model(model, LoweringRequest()).model
    for x, z, wanted in (
        (some(4, 3), some(4, 1), ([], [1])),
        (some(1, 3), some(4, 1), ([0], [1])),
        (some(4, 3), some(1, 1), ([], [0, 1])),
    ):
        found = evaluate(lowered, {"x": x, "z": z})
        assert (found["p"].tolist(), found["q"].tolist()) == wanted
