"""Forms of operators that few models have: what the fuzzer of values (tools/fuzz) has found."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import memplan
from helpers.gradients import check, draw, runtime
from helpers.graphs import parse
from memplan.errors import ModelError

pytestmark = pytest.mark.ort

# By name: inputs and outputs, constants, nodes.
CASES = {
    "nothing side by side": """(double[3,0] x) => (double[3,0] y) <int64[2] n = {1, 1}>
        { y = Tile (x, n) }""",
    "nothing repeated": """(double[1,0,4] x) => (double[2,0,4] y) <double[2,0,4] c = {}>
        { y = Mul (x, c) }""",
    "a slice of nothing": """(double[3] x) => (double[0] y, double[3] z)
        <int64[1] n = {2}, int64[1] m = {1}> { y = Slice (x, n, m) z = Tanh (x) }""",
}


@pytest.mark.parametrize("name", CASES)
def test_an_odd_form(name: str) -> None:
    """Every output brings in a gradient, fed as an input of the output's type."""
    model = parse(f'<ir_version: 10, opset_import: ["" : 20]> g {CASES[name]}')
    sizes = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    check((model, {"x": draw(sizes)}))


@pytest.mark.parametrize(
    ("bounds", "rows"),
    [
        ((2, 1, 2), 4),
        ((2, 1, 3), 4),
        ((1, -1, -2), 4),
        ((0, 3, -3), 4),
        ((1, 4, 3), 1),
        ((1, -1, 1), 1),
        ((2, 10**12, 1), 1),
        ((2, -3, 1), 4),
        ((2, -3, 1), 7),
        ((1, -1, 1), 4),
    ],
)
def test_a_slice_of_an_open_size(bounds: tuple[int, int, int], rows: int) -> None:
    """What is left of few rows may be nothing, before its end or behind it."""
    names = "".join(f", int64[1] {n} = {{{b}}}" for n, b in zip("set", bounds, strict=True))
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[N,3] x) => (float y) <float[3] w = {{1, 2, 3}}, int64[1] a = {{0}}{names}>
    {{ m = Mul (x, w) c = Slice (m, s, e, a, t)
      q = ReduceSum <keepdims = 0> (c) r = ReduceSum <keepdims = 0> (m) y = Add (q, r) }}"""
    x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    taken = np.ones_like(x)
    taken[slice(*bounds)] += 1
    found = runtime(memplan.gradients(parse(text), "y", ["x"]), {"x": x})
    np.testing.assert_array_equal(found["x_grad"], taken * np.asarray([1, 2, 3], np.float32))


def test_groups_of_channels_before_two_open_sizes() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (double[1,4,H,W] x, double[4,2,1,2] w) => (double[1,4,H,V] y)
    { y = ConvTranspose <group = 2, kernel_shape = [1, 2]> (x, w) }"""
    check((parse(text), {"x": draw([1, 4, 2, 3]), "w": draw([4, 2, 1, 2], 1)}))


def test_a_window_that_would_begin_behind_the_end() -> None:
    """ONNX's inference counts it, ONNX Runtime does not make it."""
    pool = "MaxPool <ceil_mode = 1, kernel_shape = [1, 2], strides = [1, 3]>"
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[1,1,2,3] x) => (float[1,1,2,M] y) {{ y = {pool} (x) }}"""
    x = np.asarray([[[[7, 1, 2], [8, 2, 1]]]], np.float32)
    trained = memplan.gradients(parse(text), "y", ["x"], "dy")
    found = runtime(trained, {"x": x, "dy": np.asarray([[[[5], [6]]]], np.float32)})
    np.testing.assert_array_equal(found["x_grad"], [[[[5, 0, 0], [6, 0, 0]]]])


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_dilated_windows_that_are_padded_otherwise_than_onnx_says(op: str) -> None:
    """ONNX Runtime (1.31.1) pads as if the kernel were not dilated, and makes fewer elements."""
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[1,1,5] x) => (float[1,1,M] y)
    {{ y = {op} <auto_pad = "SAME_UPPER", dilations = [2], kernel_shape = [2]> (x) }}"""
    with pytest.raises(ModelError, match="needs pads instead of auto_pad"):
        memplan.gradients(parse(text), "y", ["x"])


def test_a_factor_that_the_runtime_forgets() -> None:
    """ONNX Runtime (1.31.1) gives C, and not β·C, where A and B have nothing to multiply."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[3,0] a, float[0,2] b, float[2] c) => (float[3,2] y)
    { y = Gemm <beta = 0.3> (a, b, c) }"""
    with pytest.raises(ModelError, match="needs beta = 1"):
        memplan.gradients(parse(text), "y", ["c"])


def test_repetitions_of_an_open_size_that_is_empty() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[N,1] x, float[1,3] w) => (float y)
    { r = Constant <value_ints = [2, 1]> ()  t = Tile (x, r)  u = Mul (t, w)
      s = ReduceSum <keepdims = 0> (u)  v = ReduceSum <keepdims = 0> (w)  y = Add (s, v) }"""
    trained = memplan.gradients(parse(text), "y", ["x", "w"])
    for rows in (0, 2):
        x, w = np.ones((rows, 1), np.float32), np.ones((1, 3), np.float32)
        found = runtime(trained, {"x": x, "w": w})
        np.testing.assert_array_equal(found["x_grad"], np.full((rows, 1), 6))
        np.testing.assert_array_equal(found["w_grad"], np.full((1, 3), 1 + 2 * rows))


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool", "Conv"])
def test_strides_that_pass_over_elements(op: str) -> None:
    """With auto_pad, kernels of ONNX Runtime (1.31.1) begin at the first element, or at others."""
    inputs = "(x, w)" if op == "Conv" else "(x)"
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[1,1,5] x, float[1,1,1] w) => (float[1,1,1] y)
    {{ y = {op} <auto_pad = "SAME_UPPER", kernel_shape = [1], strides = [5]> {inputs} }}"""
    with pytest.raises(ModelError, match="needs pads instead of auto_pad"):
        memplan.gradients(parse(text), "y", ["x"])


def test_a_branch_that_does_not_read_a_tensor_of_unknown_size() -> None:
    """Its zeros have the size that the tensor has then."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (double[N] x, double[N] w, bool flag) => (double[N] y)
    { y = If (flag) <then_branch = a () => (double[N] p) { p = Mul (x, w) },
                     else_branch = b () => (double[N] q) { q = Sin (x) }> }"""
    trained = memplan.gradients(parse(text), "y", ["x", "w"])
    x, w = draw((3,)), draw((3,), 1)
    for flag, wanted in ((True, x), (False, 0 * x)):
        found = runtime(trained, {"x": x, "w": w, "flag": np.asarray(flag)})
        np.testing.assert_array_equal(found["w_grad"], wanted)


def test_what_only_one_branch_keeps_has_no_size_that_the_other_keeps_to() -> None:
    """ONNX Runtime puts tensors of one stated size into one buffer."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[N,M] x, float[N,M] w, bool flag) => (float[N,M] y, float[N,M] z)
    { t = Mul (x, w) z = Mul (t, w)
      y = If (flag) <then_branch = a () => (float[N,M] p) { e = Identity (t) p = Mul (e, w) },
                     else_branch = b () => (float[N,M] q) { q = Sub (w, t) }> }"""
    trained = memplan.gradients(parse(text), ["y", "z"], ["x", "w"])
    x, w = np.full((2, 3), 2, np.float32), np.full((2, 3), 3, np.float32)
    for flag, wanted in ((True, w * w), (False, -w)):
        found = runtime(trained, {"x": x, "w": w, "flag": np.asarray(flag)})
        np.testing.assert_array_equal(found["x_grad"], wanted + w * w)


@pytest.mark.parametrize("opset", [13, 20])
def test_a_slice_of_no_elements_by_steps(opset: int) -> None:
    """That there are none is known when it runs."""
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]>
    g (float[N,N,4] x) => (float[K,L,4] y) <int64[2] s = {{-6, -1}}, int64[2] e = {{2, 2}},
      int64[2] a = {{0, 1}}, int64[2] steps = {{2, 1}}> {{ y = Slice (x, s, e, a, steps) }}"""
    trained = memplan.gradients(parse(text), "y", ["x"])
    for n in (3, 2):
        found = runtime(trained, {"x": np.ones((n, n, 4), np.float32)})["x_grad"]
        wanted = np.zeros((n, n, 4))
        wanted[0:2:2, n - 1 : 2] = 1
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("opset", [21, 23])
def test_what_follows_a_group_normalization(opset: int) -> None:
    """ONNX's inference knows no type behind it."""
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]>
    g (float[1,4,2] x, float[4] s) => (float z)
    {{ y = GroupNormalization <num_groups = 2> (x, s, s) t = Tanh (y)
       z = ReduceSum <keepdims = 0> (t) }}"""
    trained = memplan.gradients(parse(text), "z", ["x"])
    assert onnx.checker.check_model(trained) is None


def test_the_gradient_of_one_element_is_fed_as_a_number() -> None:
    """ONNX's inference leaves its shape unsaid."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[2,2] x) => (float z) <int64[2] i = {0, -1}> { y = GatherND (x, i) z = Neg (y) }"""
    trained = memplan.gradients(parse(text), "y", ["x"], "dy")
    feeds = {"x": np.ones((2, 2), np.float32), "dy": np.asarray(3, np.float32)}
    np.testing.assert_array_equal(runtime(trained, feeds)["x_grad"], [[0, 3], [0, 0]])


def test_a_gradient_to_feed_for_a_tensor_of_unknown_rank() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[N] x, int64[M] shape) => (float[] y) { y = Reshape (x, shape) }"""
    model = parse(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="the rank of 'y' is not known"):
        memplan.gradients(model, "y", ["x"], "dy")
