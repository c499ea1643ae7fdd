"""Forms of operators that few models have, many of them found by the fuzzer of values (tools/fuzz):
gradients by finite differences, gradients that are known, and what is refused."""

from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.gradients import Array, check, draw, reference, runtime
from helpers.graphs import parse
from memplan.errors import ModelError


def written(text: str) -> onnx.ModelProto:
    """The graph behind ``g``, of opset 20 unless the text begins with another: ``13: (…) => …``."""
    opset, colon, rest = text.partition(": (")
    header = f'<ir_version: 10, opset_import: ["" : {opset if colon else 20}]> g '
    return parse(header + (f"({rest}" if colon else text))


# By name: inputs and outputs, constants, nodes.
FINITE = {
    "nothing side by side": """(double[3,0] x) => (double[3,0] y) <int64[2] n = {1, 1}>
        { y = Tile (x, n) }""",
    "nothing repeated": """(double[1,0,4] x) => (double[2,0,4] y) <double[2,0,4] c = {}>
        { y = Mul (x, c) }""",
    "a slice of nothing": """(double[3] x) => (double[0] y, double[3] z)
        <int64[1] n = {2}, int64[1] m = {1}> { y = Slice (x, n, m) z = Tanh (x) }""",
    "groups of channels before two open sizes": """(double[1,4,H,W] x, double[4,2,1,2] w)
        => (double[1,4,H,V] y) { y = ConvTranspose <group = 2, kernel_shape = [1, 2]> (x, w) }""",
    # As ``torch.onnx.export(optimize=False)`` writes mean pooling.
    "axes that are a Concat of constants": """(double[2,3,4,5] x, double[3,2] w)
        => (double[2,2] y) { one = Constant <value = int64[1] {-1}> ()
        two = Constant <value = int64[1] {-2}> ()  axes = Concat <axis = 0> (one, two)
        p = ReduceMean <keepdims = 0> (x, axes) y = MatMul(p, w) }""",
    # ONNX (1.23) has no inference for GroupNormalization of opset 21.
    "behind a group normalization": """21: (double[2,4,3] x, double[4] s, double[4] b, double[4] t)
        => (double[2,4,3] y) { n = GroupNormalization<num_groups = 2>(x, s, b) r = Tanh(n)
        y = GroupNormalization<num_groups = 4>(r, t, b) }""",
}


@pytest.mark.parametrize("name", FINITE)
def test_finite_differences(name: str) -> None:
    """Every output brings in a gradient, fed as an input of the output's type."""
    model = written(FINITE[name])
    sizes = {
        v.name: [
            {"H": 2, "W": 3}.get(d.dim_param, d.dim_value) for d in v.type.tensor_type.shape.dim
        ]
        for v in model.graph.input
    }
    check((model, {name: draw(shape, k) for k, (name, shape) in enumerate(sizes.items())}))


ONES = np.ones((4, 3))
BRANCHES = """(double[N] x, double[N] w, bool flag) => (double[N] y)
    { y = If (flag) <then_branch = a () => (double[N] p) { p = Mul (x, w) },
                     else_branch = b () => (double[N] q) { q = Sin (x) }> }"""
KEPT_BY_ONE = """(float[N,M] x, float[N,M] w, bool flag) => (float[N,M] y0, float[N,M] z, float y)
    { t = Mul (x, w) z = Mul (t, w)
      y0 = If (flag) <then_branch = a () => (float[N,M] p) { e = Identity (t) p = Mul (e, w) },
                     else_branch = b () => (float[N,M] q) { q = Sub (w, t) }>
      s = Add (y0, z)  y = ReduceSum <keepdims = 0> (s) }"""
TILED = """(float[N,1] x, float[1,3] w) => (float y)
    { r = Constant <value_ints = [2, 1]> ()  t = Tile (x, r)  u = Mul (t, w)
      s = ReduceSum <keepdims = 0> (u)  v = ReduceSum <keepdims = 0> (w)  y = Add (s, v) }"""
SLICED = """{}: (float[N,N,4] x) => (float[K,L,4] y)
    <int64[2] s = {{-6, -1}}, int64[2] e = {{2, 2}}, int64[2] a = {{0, 1}}, int64[2] t = {{2, 1}}>
    {{ y = Slice (x, s, e, a, t) }}"""


def corner(n: int) -> Array:
    """What SLICED takes of so many rows and columns."""
    found = np.zeros((n, n, 4))
    found[0:2:2, n - 1 : 2] = 1
    return found


# By name: the graph, and what it is fed with the gradients of y (by ``dy``, or of its sum).
KNOWN: dict[str, tuple[str, list[tuple[dict[str, Any], dict[str, Any]]]]] = {
    # ONNX's inference counts it, ONNX Runtime does not make it.
    "a window that would begin behind the end": (
        """(float[1,1,2,3] x) => (float[1,1,2,M] y)
        { y = MaxPool <ceil_mode = 1, kernel_shape = [1, 2], strides = [1, 3]> (x) }""",
        [
            (
                {"x": [[[[7, 1, 2], [8, 2, 1]]]], "dy": [[[[5], [6]]]]},
                {"x": [[[[5, 0, 0], [6, 0, 0]]]]},
            )
        ],
    ),
    "repetitions of an open size that is empty": (
        TILED,
        [
            (
                {"x": np.ones((n, 1)), "w": np.ones((1, 3))},
                {"x": np.full((n, 1), 6), "w": [3 * [1 + 2 * n]]},
            )
            for n in (0, 2)
        ],
    ),
    # Its zeros have the size that the tensor has then.
    "a branch that does not read a tensor of unknown size": (
        BRANCHES,
        [
            ({"x": [1, 2, 3], "w": [4, 5, 6], "flag": True}, {"w": [1, 2, 3]}),
            ({"x": [1, 2, 3], "w": [4, 5, 6], "flag": False}, {"w": [0, 0, 0]}),
        ],
    ),
    # ONNX Runtime puts tensors of one stated size into one buffer.
    "what only one branch keeps has no size that the other keeps to": (
        KEPT_BY_ONE,
        [
            ({"x": 2 * ONES, "w": 3 * ONES, "flag": flag}, {"x": wanted * ONES})
            for flag, wanted in ((True, 18), (False, 6))
        ],
    ),
    # That there are none is known when it runs.
    **{
        f"a slice of no elements by steps, opset {opset}": (
            SLICED.format(opset),
            [({"x": np.ones((n, n, 4))}, {"x": corner(n)}) for n in (3, 2)],
        )
        for opset in (13, 20)
    },
    # ONNX's inference leaves its shape unsaid.
    "the gradient of one element is fed as a number": (
        "(float[2,2] x) => (float z) <int64[2] i = {0, -1}> { y = GatherND (x, i) z = Neg (y) }",
        [({"x": np.ones((2, 2)), "dy": 3}, {"x": [[0, 3], [0, 0]]})],
    ),
    # The gradient that comes in by default is one number; CumSum wants it in full size.
    "a gradient in full size for an unknown rank": (
        """(float[2,3] x, int64[n] s) => (float z) <int64 axis = {0}>
        { a = Reshape(x, s) y = CumSum(a, axis) z = ReduceSum<keepdims = 0>(y) }""",
        [({"x": draw((2, 3)), "s": [3, 2]}, {"x": [[3, 3, 2], [2, 1, 1]]})],
    ),
    "a y that is an x": (
        "(float[2] x) => (float[2] y) { y = Tanh(x) }",
        [({"x": [0, 0]}, {"x": [1, 1], "y": [1, 1]})],
    ),
    "float16 in windows that overlap": (
        "(float16[1,1,5] x) => (float16[1,1,3] y) { y = MaxPool <kernel_shape = [3]> (x) }",
        [({"x": [[[0, 1, 2, 1, 0]]]}, {"x": [[[0, 0, 3, 0, 0]]]})],
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_gradients(name: str) -> None:
    text, runs = KNOWN[name]
    for feeds, wanted in runs:
        known(written(text), feeds, wanted)


def known(model: onnx.ModelProto, feeds: dict[str, Any], wanted: dict[str, Any]) -> None:
    """The gradients of y in a run, fed with numbers of the inputs' types."""
    kinds = {v.name: v.type.tensor_type.elem_type for v in model.graph.input}
    kind = onnx.helper.tensor_dtype_to_np_dtype
    given = {name: np.asarray(value, kind(kinds.get(name, 1))) for name, value in feeds.items()}
    trained = memplan.gradients(model, "y", list(wanted), "dy" if "dy" in feeds else None)
    found = runtime(trained, given)
    for x, gradient in wanted.items():
        np.testing.assert_array_equal(found[f"{x}_grad"], gradient)
        assert found[f"{x}_grad"].dtype == kind(kinds.get(x, 1))


# Type, operator, shape of x, indices and the gradient.
GATHERS: list[tuple[str, str, tuple[int, ...], Any, Any]] = [
    # The same place twice: its gradients are added, and stock ONNX Runtime runs that.
    ("float16", "Gather", (4, 3), [[0, 2, 2], [3, 0, 2]], [[2] * 3, [0] * 3, [3] * 3, [1] * 3]),
    ("float16", "GatherElements", (2, 3), [[0, 1, 1], [1, 1, 0]], [[1, 0, 1], [1, 2, 1]]),
    ("float16", "GatherND", (4, 3), [[0], [2], [2]], [[1] * 3, [0] * 3, [2] * 3, [0] * 3]),
    ("float16", "Gather <axis = 1>", (2, 3), [0, 2, 2, 2], [[1, 0, 3]] * 2),
    # In float32: in float16 a sum of ones ends at 2048.
    ("float16", "Gather", (3, 2), [1] * 4096, [[0, 0], [4096, 4096], [0, 0]]),
    # GatherND of no indices reads the whole tensor, as often as there are any.
    ("float", "GatherND", (5, 3), np.zeros((2, 0)), np.full((5, 3), 2)),
    # Nothing is added.
    *(
        ("float", gather, shape, np.zeros(places), np.zeros(shape))
        for gather, shape, places in (
            ("Gather", (5, 3), (2, 0)),
            ("Gather", (5, 3), (0, 2)),
            ("Gather", (5, 3), (0,)),
            ("Gather", (5, 0), (2, 2)),
            ("Gather <axis = 1>", (5, 3), (2, 0)),
            ("Gather <axis = 1>", (5, 3), (0, 2)),
            ("GatherND", (5, 3), (2, 0, 1)),
            ("GatherND", (5, 3), (2, 0, 2)),
        )
    ),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("kind", "gather", "shape", "places", "wanted"), GATHERS)
def test_gathers(
    kind: str, gather: str, shape: tuple[int, ...], places: Any, wanted: Any, dynamic: bool
) -> None:
    """With open sizes of the indices it is known at run time only how many there are."""
    counts = np.shape(places)
    named = len(counts) - (gather == "GatherND") if dynamic else 0
    sizes = ",".join([*(f"N{k}" for k in range(named)), *map(str, counts[named:])])
    rows = ",".join(map(str, shape))
    text = f"({kind}[{rows}] x, int64[{sizes}] i) => (y) {{ y = {gather} (x, i) }}"
    model = onnx.shape_inference.infer_shapes(written(text))
    known(model, {"x": np.ones(shape), "i": places}, {"x": wanted})


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
    text = f"""(float[N,3] x) => (float y) <float[3] w = {{1, 2, 3}}, int64[1] a = {{0}}{names}>
    {{ m = Mul (x, w) c = Slice (m, s, e, a, t)
      q = ReduceSum <keepdims = 0> (c) r = ReduceSum <keepdims = 0> (m) y = Add (q, r) }}"""
    x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    taken = np.ones_like(x)
    taken[slice(*bounds)] += 1
    found = runtime(memplan.gradients(written(text), "y", ["x"]), {"x": x})
    np.testing.assert_array_equal(found["x_grad"], taken * np.asarray([1, 2, 3], np.float32))


# By name: the graph, whose gradient of y by x is asked for, and what is said.
REFUSED = {
    # ONNX Runtime (1.31.1) pads as if the kernel were not dilated, and makes fewer elements; with
    # strides that pass over elements its kernels begin at the first element, or at others.
    **{
        f"{op} {attributes} by auto_pad": (
            f"""(float[1,1,5] x, float[1,1,1] w) => (float[1,1,M] y)
            {{ y = {op} <auto_pad = "SAME_UPPER", {attributes}> {reads} }}""",
            "needs pads instead of auto_pad",
        )
        for op, attributes, reads in (
            ("AveragePool", "dilations = [2], kernel_shape = [2]", "(x)"),
            ("MaxPool", "dilations = [2], kernel_shape = [2]", "(x)"),
            ("AveragePool", "kernel_shape = [1], strides = [5]", "(x)"),
            ("MaxPool", "kernel_shape = [1], strides = [5]", "(x)"),
            ("Conv", "kernel_shape = [1], strides = [5]", "(x, w)"),
        )
    },
    # ONNX Runtime (1.31.1) gives C, and not β·C, where A and B have nothing to multiply.
    "a factor that the runtime forgets": (
        """(float[3,0] a, float[0,2] b, float[2] x) => (float[3,2] y)
        { y = Gemm <beta = 0.3> (a, b, x) }""",
        "needs beta = 1",
    ),
    "axes that a run decides": (
        """(float[2,3,4] x, int64[1] more) => (float y)
        { axes = Identity(more) z = ReduceMean <keepdims = 0> (x, axes)
          y = ReduceSum <keepdims = 0> (z) }""",
        "not known|run time",
    ),
    "axes that are found in data": (
        """(float[2,3,4] x, float[4] more) => (float y)
        { axes = ArgMax <keepdims = 1> (more) z = ReduceMean <keepdims = 0> (x, axes)
          y = ReduceSum <keepdims = 0> (z) }""",
        "not known|run time",
    ),
    "a shape that nothing tells where a gradient depends on it": (
        """(float[2,3] x, int64[n] s) => (float[k] y)
        { a = Reshape(x, s) b = Mul(a, a) c = ReduceSum(b) y = Mul(c, c) }""",
        "rank of tensor",
    ),
    "a mode of Resize": (
        """(float[1,1,3,2] x) => (float[1,1,6,4] y) <float[4] s = {1, 1, 2, 2}>
        { y = Resize <mode = "cubic"> (x, , s) }""",
        "mode 'cubic'",
    ),
    "an antialias of Resize": (
        """(float[1,1,3,2] x) => (float[1,1,6,4] y) <float[4] s = {1, 1, 2, 2}>
        { y = Resize <mode = "linear", antialias = 1> (x, , s) }""",
        "antialias",
    ),
    "coordinates of Resize": (
        """(float[1,1,3,2] x) => (float[1,1,6,4] y) <float[4] s = {1, 1, 2, 2}>
        { y = Resize <coordinate_transformation_mode = "half_pixel_symmetric"> (x, , s) }""",
        "half_pixel_symmetric",
    ),
    "sampling at a grid": (
        "(float[1,1,3,3] x, float[1,2,2,2] g) => (float[1,1,2,2] y) { y = GridSample (x, g) }",
        "no gradient is known for GridSample",
    ),
    "statistics of a layer normalization": (
        "(float[2,4] x, float[4] s) => (float[2,4] z, float[2,1] y) "
        "{ z, y = LayerNormalization (x, s) }",
        "statistics of LayerNormalization",
    ),
    "another reduction of what is scattered": (
        """(float[3] x, float[1] u) => (float[3] y) <int64[1] i = {0}>
        { y = ScatterElements <reduction = "max"> (x, i, u) }""",
        "reduction 'max'",
    ),
    "a diagonal by Einsum": (
        """(float[3,3] x) => (float[3] y) { y = Einsum <equation = "ii->i"> (x) }""",
        "repeated letter",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    text, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        memplan.gradients(written(text), "y", ["x"])


def test_a_gradient_to_feed_for_a_tensor_of_unknown_rank() -> None:
    model = written("(float[N] x, int64[M] shape) => (float[] y) { y = Reshape (x, shape) }")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="the rank of 'y' is not known"):
        memplan.gradients(model, "y", ["x"], "dy")


@pytest.mark.parametrize(
    "call", ["Gelu(b)", "Pow(b, w)", "HardSwish(b)", "LayerNormalization(b, w)"]
)
def test_an_element_type_that_nobody_knows_is_named(call: str) -> None:
    """It ended in a KeyError of ours, behind an operator that nobody knows."""
    nodes = f"{{ a = acme.Foo(x) b = Mul(a, w) y = {call} }}"
    model = written(f"(float[4,3] x, float[3] w) => (float[4,3] y) {nodes}")
    model.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    with pytest.raises(ModelError, match="the element type of tensor 'b' is not known"):
        memplan.gradients(model, "y", "w", check=False)


@pytest.mark.parametrize("opset", [21, 23])
def test_what_follows_a_group_normalization(opset: int) -> None:
    """ONNX's inference knows no type behind it."""
    text = f"""{opset}: (float[1,4,2] x, float[4] s) => (float z)
    {{ y = GroupNormalization <num_groups = 2> (x, s, s) t = Tanh (y)
       z = ReduceSum <keepdims = 0> (t) }}"""
    onnx.checker.check_model(memplan.gradients(written(text), "z", ["x"]))


def test_weights_behind_computed_axes_have_a_rank() -> None:
    """Of a recurrent layer: its sizes were "not known"."""
    model = written(
        """(float[5,2,3] x, float[16,3] wi, float[16,4] wh) => (float[5,1,2,4] y) {
          nought = Constant <value = int64 {0}> ()
          axis = Constant <value = int64[1] {0}> ()
          axes = Unsqueeze(nought, axis)
          w = Unsqueeze(wi, axes)  r = Unsqueeze(wh, axes)
          y = LSTM <hidden_size = 4> (x, w, r) }"""
    )
    grads = memplan.gradients(model, "y", ["wi", "wh"])
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in grads.graph.output
    }
    assert (shapes["wi_grad"], shapes["wh_grad"]) == ([16, 3], [16, 4])


def test_floats_are_left_alone() -> None:
    """They may be trained, and what is computed of them in the graph stays there."""
    model = written(
        """(float[4] x) => (float z) <float[4] w = {1, 2, 3, 4}> {
          v = Mul(w, w)  y = Mul(x, v)  z = ReduceSum <keepdims = 0> (y) }"""
    )
    found = memplan.gradients(model, "z", "w")
    weights = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in found.graph.initializer
    }
    assert weights["w"].tolist() == [1, 2, 3, 4]
    assert [node.op_type for node in found.graph.node][:2] == ["Mul", "Mul"]
    assert reference(found, {"x": np.ones(4, np.float32)})["w_grad"].tolist() == [2, 4, 6, 8]
