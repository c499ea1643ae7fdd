"""What passes take for granted of kernels, tried on ONNX Runtime at the values where it matters."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import DataObject, booleans, data, integers, tuples
from onnx import TensorProto, helper, numpy_helper

from helpers.effort import tries
from helpers.free_graphs import SPECIALS, feeds, models
from helpers.plans import outputs_of
from memplan.equivalence.prove import Side, prove, reference_side
from memplan.passes.change import facts_of
from memplan.passes.manager import PassManager
from memplan.passes.masks import Masks
from memplan.passes.narrow import Narrow, window_of
from memplan.passes.release import Release
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import opened
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

pytestmark = pytest.mark.ort

TUNED = session_kind("tuned")
OPS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
ACTIVATIONS: dict[str, tuple[str, tuple[float | None, ...], dict[str, float]]] = {
    "relu": ("Relu", (), {}),
    "relu6": ("Clip", (0, 6), {}),
    "clip above": ("Clip", (-1,), {}),
    "clip below": ("Clip", (None, 2), {}),
    "clip nothing": ("Clip", (), {}),
    "clip to one": ("Clip", (2, 2), {}),
    "clip upside down": ("Clip", (6, 0), {}),
    "clip to NaN": ("Clip", (0, float("nan")), {}),
    "leaky": ("LeakyRelu", (), {"alpha": 0.01}),
    "flat": ("LeakyRelu", (), {"alpha": 0.0}),
    "turned": ("LeakyRelu", (), {"alpha": -0.5}),
    "threshold": ("ThresholdedRelu", (), {"alpha": 1.0}),
    "abs": ("Abs", (), {}),
    "max": ("Max", (0,), {}),
    "min": ("Min", (6,), {}),
    "max of three": ("Max", (0, 2), {}),
    "max with NaN": ("Max", (float("nan"),), {}),
}


def specials(dtype: Any) -> np.ndarray:
    """NaN, infinities, both zeros, the smallest and largest, and the neighbours of all bounds."""
    info = np.finfo(dtype)
    tiny, largest = info.smallest_subnormal, info.max
    values = [np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, largest, -largest, 0.5, -0.3, 3, 7]
    for bound in (-1.0, 1.0, 2.0, 6.0, 65504.0, -65504.0):
        middle = dtype(bound)
        values += [
            middle,
            np.nextafter(middle, dtype(np.inf)),
            np.nextafter(middle, dtype(-np.inf)),
        ]
    return np.array(values, dtype)


def compared(name: str, dtype: Any, turned: bool) -> tuple[onnx.ModelProto, list[str]]:
    """A graph that compares what an activation reads with every special value, in every way, each
    a node of its own; and the names of the masks."""
    op, bounds, attributes = ACTIVATIONS[name]
    kind, values = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), specials(dtype)
    constants = [numpy_helper.from_array(np.array(v), f"c{k}") for k, v in enumerate(values)]
    reads = []
    for k, bound in enumerate(bounds):
        reads.append("" if bound is None else f"b{k}")
        if bound is not None:
            constants.append(numpy_helper.from_array(np.array(bound, dtype), f"b{k}"))
    nodes, made = [], []
    for test, k in itertools.product(OPS, range(len(values))):
        out = f"{test}_{k}"
        made.append(out)
        x, y, pair = f"x_{out}", f"y_{out}", [f"x_{out}", f"c{k}"]
        nodes += [
            helper.make_node("Neg", ["i"], [x], name=x),
            helper.make_node(op, [x, *reads], [y], name=y, **attributes),
            helper.make_node(test, pair[:: -1 if turned else 1], [out], name=out),
        ]
    shape = [len(values)]
    outputs = [helper.make_tensor_value_info(f"y_{made[0]}", kind, shape)]
    outputs += [helper.make_tensor_value_info(o, TensorProto.BOOL, shape) for o in made]
    inputs = [helper.make_tensor_value_info("i", kind, shape)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), made


def supported(op: str, dtype: Any) -> bool:
    return not (op == "ThresholdedRelu" and dtype is np.float64)


@pytest.mark.parametrize(("dtype", "turned"), [(np.float32, False), (np.float64, True)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_masks_of_outputs_are_those_of_inputs(name: str, dtype: Any, turned: bool) -> None:
    if not supported(ACTIVATIONS[name][0], dtype):
        pytest.skip("ONNX Runtime has no such kernel")
    model, made = compared(name, dtype, turned)
    before = opened(prepare(model, Path("masks.onnx"), {}))
    step = PassManager([Masks()]).run(before, simulate(before.graph, TUNED))[0]
    after = step.model.prepared.proto
    rewired = {n.output[0] for n in after.graph.node if f"y_{n.output[0]}" in n.input}
    proof = prove(reference_side(before.prepared), Side(after, Path()))
    assert proof.proved, proof.reason
    feeds = {"i": -specials(dtype)}
    first, second = outputs_of(model, feeds)[0], outputs_of(after, feeds)[0]
    for a, b in zip(first, second, strict=True):
        assert a.tobytes() == b.tobytes()
    # Rewired is all that can be, where NaN stays NaN on every provider and the bounds are exact.
    if ACTIVATIONS[name][0] == "Clip" and "NaN" not in name:
        masks = dict(zip((o.name for o in model.graph.output), first, strict=True))
        results = masks.pop(f"y_{made[0]}")
        alike = {
            out
            for out, mask in masks.items()
            if abs(constant := specials(dtype)[int(out.split("_")[1])]) < 65000
            and mask.tobytes() == _again(out.split("_")[0], results, constant, turned).tobytes()
        }
        constant_masks = {out for out, mask in masks.items() if not 0 < mask.sum() < len(mask)}
        assert alike - constant_masks <= rewired
        assert rewired or name in ("clip to one", "clip upside down")


def _again(test: str, y: np.ndarray, constant: Any, turned: bool) -> np.ndarray:
    compare = {
        "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal,
        "Less": np.less,
        "LessOrEqual": np.less_equal,
        "Equal": np.equal,
    }[test]
    result: np.ndarray = compare(constant, y) if turned else compare(y, constant)
    return result


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 3, 4, 7, 8, 15, 16, 33, 50_000])
def test_nan_passes_clip_and_leaky_relu(dtype: Any, count: int) -> None:
    """In the vectors of a kernel and in what is left over behind them."""
    kind, shape = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [count]
    nodes = [
        helper.make_node("Clip", ["x", "low", "high"], ["a"], name="a"),
        helper.make_node("LeakyRelu", ["x"], ["b"], name="b"),
        helper.make_node("Abs", ["x"], ["c"], name="c"),
    ]
    bounds = [numpy_helper.from_array(np.array(v, dtype), n) for n, v in (("low", 0), ("high", 6))]
    values = [helper.make_tensor_value_info(n, kind, shape) for n in "xabc"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], bounds)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    for result in outputs_of(model, {"x": np.full(count, np.nan, dtype)})[0]:
        assert np.isnan(result).all()


def bits(model: onnx.ModelProto, numbers: dict[str, np.ndarray]) -> tuple[list[bytes], list[int]]:
    outputs, ran = outputs_of(model, numbers)
    return [o.tobytes() for o in outputs], [node.nbytes - ran.base_bytes for node in ran.nodes]


@settings(
    max_examples=tries(150),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(models(), integers(0, 2**32 - 1))
def test_random_graphs_keep_their_bits_and_no_peak_rises(model: onnx.ModelProto, seed: int) -> None:
    before = opened(prepare(onnx.shape_inference.infer_shapes(model), Path("free.onnx"), {}))
    first = simulate(before.graph, TUNED)
    passes = [Release(), Masks(), Narrow(any_price=True)]
    steps = PassManager(passes).run(before, first)
    peaks = [first.peak_with_workspace_bytes]
    peaks += [step.timeline.peak_with_workspace_bytes for step in steps]
    assert peaks == sorted(peaks, reverse=True)
    after = steps[-1].model.prepared.proto
    proof = prove(reference_side(before.prepared), Side(after, Path()))
    assert proof.proved, proof.reason
    numbers = feeds(seed)
    outputs, dynamic = bits(after, numbers)
    assert dynamic == steps[-1].timeline.dynamic.tolist()
    assert outputs == bits(model, numbers)[0]


@settings(
    max_examples=tries(40),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=data())
def test_an_index_lies_in_its_window_whatever_is_there(data: DataObject) -> None:
    """What the proof takes for granted of the CPU's pools."""
    kernel, steps, apart = (data.draw(tuples(integers(1, 3), integers(1, 3))) for _ in range(3))
    pads = data.draw(tuples(*(integers(0, k - 1) for k in (*kernel, *kernel))))
    n, c, h, w = (data.draw(integers(low, 9)) for low in (1, 1, 7, 7))
    x = np.random.default_rng(data.draw(integers(0, 99))).choice(SPECIALS, (n, c, h, w))
    if data.draw(booleans()):
        x[:] = np.nan
    node = helper.make_node(
        "MaxPool", ["x"], ["v", "i"], name="pool", kernel_shape=kernel,
        strides=steps, dilations=apart, pads=pads,
    )  # fmt: skip
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    results = [
        helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("i", TensorProto.INT64, None),
    ]
    graph = helper.make_graph([node], "g", values, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    facts = facts_of(opened(prepare(onnx.shape_inference.infer_shapes(model), Path("p.onnx"), {})))
    indices = facts.graph.tensor_named("i")
    assert indices is not None
    window = window_of(facts, indices)
    assert window is not None
    rest = outputs_of(model, {"x": x})[0][1]
    for part in (part for parts in window.parts for part in parts):
        rest = rest - part
    assert rest.shape == indices.shape
    assert rest.min() >= 0
    assert rest.max() <= window.reach
