"""What ONNX Runtime gets wrong: the patterns are found, and each is wrong in the installed one."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from helpers.graphs import parse
from memplan.ops.sharp_edges import (
    Edge,
    disabled_notes,
    edge_notes,
    sharp_edges,
    wrong_optimizers,
)

PADS = "p = Constant <value = int64[8] {0, 0, 0, 0, 0, 0, 1, 1}> () "
MAX = "MaxPool <kernel_shape = [3, 3], strides = [2, 2]>"
IMAGE = "float[1,1,6,6] x"
MATRIX = "float[3,4] p, float[3] v"

WRONG = {
    "a transposed matrix and a vector": (
        f"g ({MATRIX}) => (y) {{ t = Transpose (p) [n] y = MatMul (t, v) }}",
        Edge.VECTOR,
    ),
    "a batch of them": (
        "g (float[2,3,4] p, float[3] v) => (y) "
        "{ t = Transpose <perm = [0, 2, 1]> (p) [n] y = MatMul (t, v) }",
        Edge.VECTOR,
    ),
    "a computed vector whose rank is not stated": (
        f"g ({MATRIX}) => (y) {{ u = Neg (v) t = Transpose (p) [n] y = MatMul (t, u) }}",
        Edge.VECTOR,
    ),
    "scaled, twice transposed and copied": (
        f"g ({MATRIX}) => (y) {{ c = Constant <value = float {{3.0}}> () t = Transpose (p) "
        "i = Identity (t) s = Div (i, c) [n] y = MatMul (s, v) }",
        Edge.VECTOR,
    ),
    "a Dropout that does nothing": (
        f"g ({MATRIX}) => (y) {{ t = Transpose (p) s = Dropout (t) [n] y = MatMul (s, v) }}",
        Edge.VECTOR,
    ),
    "zeros around negative numbers": (
        f"g ({IMAGE}) => (y) {{ {PADS} q = Pad (x, p) [n] y = {MAX} (q) }}",
        Edge.POOL,
    ),
    "zeros, stated and copied": (
        f"g ({IMAGE}) => (y) {{ {PADS} z = Constant <value = float {{0.0}}> () "
        f"q = Pad (x, p, z) r = Identity (q) [n] y = {MAX} (r) }}",
        Edge.POOL,
    ),
    "zeros in front of a mean of rounded-up windows": (
        f"g ({IMAGE}) => (y) {{ p = Constant <value = int64[8] {{0, 0, 1, 1, 0, 0, 1, 1}}> () "
        "q = Pad (x, p) [n] y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], "
        "pads = [1, 1, 1, 1], ceil_mode = 1, count_include_pad = 1> (q) }",
        Edge.POOL,
    ),
    "a fused node that is in the file": (
        f"g ({MATRIX}) => (y) {{ [n] y = com.microsoft.FusedMatMul <transA = 1> (p, v) }}",
        Edge.FUSED,
    ),
    "inside a body": (
        f"g ({MATRIX}, bool b) => (y) {{ y = If (b) <"
        "then_branch = a () => (float[4] s) { t = Transpose (p) [n] s = MatMul (t, v) }, "
        "else_branch = c () => (float[4] u) { o = Transpose (p) w = Neg (v) [n] u = MatMul (o, w) }"
        "> }",
        Edge.VECTOR,
    ),
}

RIGHT = {
    "the vector in front": "g (float[3,4] p, float[4] v) => (y) "
    "{ t = Transpose (p) y = MatMul (v, t) }",
    "no Transpose": "g (float[3,4] p, float[4] v) => (y) { y = MatMul (p, v) }",
    "a column": f"g ({MATRIX}) => (y) {{ a = Constant <value_ints = [1]> () t = Transpose (p) "
    "u = Unsqueeze (v, a) w = MatMul (t, u) y = Squeeze (w, a) }",
    "a kernel in between": f"g ({MATRIX}) => (y) {{ t = Transpose (p) r = Relu (t) "
    "y = MatMul (r, v) }",
    "nothing negative comes in": f"g ({IMAGE}) => (y) {{ {PADS} r = Relu (x) q = Pad (r, p) "
    f"y = {MAX} (q) }}",
    "with indices": f"g ({IMAGE}) => (y, i) {{ {PADS} q = Pad (x, p) y, i = {MAX} (q) }}",
    "with axes": f"g ({IMAGE}) => (y) {{ {PADS} z = Constant <value = float {{0.0}}> () "
    f"a = Constant <value_ints = [0, 1, 2, 3]> () q = Pad (x, p, z, a) y = {MAX} (q) }}",
    "a mean": f"g ({IMAGE}) => (y) {{ {PADS} q = Pad (x, p) "
    "y = AveragePool <kernel_shape = [3, 3], strides = [2, 2]> (q) }",
    "the edge repeated": f'g ({IMAGE}) => (y) {{ {PADS} q = Pad <mode = "edge"> (x, p) '
    f"y = {MAX} (q) }}",
}


# Named without need.
COARSE = {
    "two readers": f"g ({IMAGE}) => (y, z) {{ {PADS} q = Pad (x, p) y = {MAX} (q) z = Neg (q) }}",
    "something else than zeros": f"g ({IMAGE}) => (y) {{ {PADS} "
    f"z = Constant <value = float {{-9.0}}> () q = Pad (x, p, z) y = {MAX} (q) }}",
}
# Operators of others, which may have any inputs.
FOREIGN = (
    f"g ({MATRIX}) => (y) {{ y = acme.FusedMatMul <transA = 1> (p) }}",
    f"g ({MATRIX}) => (y) {{ y = com.microsoft.FusedMatMul <transA = 1> (p) }}",
    f"g ({IMAGE}) => (y) {{ r = acme.Identity () y = {MAX} (r) }}",
    f"g ({IMAGE}) => (y) {{ r = acme.Pad () y = {MAX} (r) }}",
)


def model_of(text: str) -> onnx.ModelProto:
    """The model; its outputs are typed by the runtime."""
    head, body = text.split(" => (", 1)
    names, rest = body.split(")", 1)
    typed = ", ".join(f"float {name}" for name in names.split(", "))
    model = parse(f"{head} => ({typed}){rest}")
    for value in model.graph.output:
        value.ClearField("type")
    return model


def outputs(model: onnx.ModelProto, level: str, disabled: tuple[str, ...] = ()) -> list[object]:
    """What the runtime makes of negative numbers; its message where it fails."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        sizes = [dim.dim_value for dim in tensor.shape.dim]
        draw = (rng.random(sizes) - 3).astype("f4")
        feeds[value.name] = np.array(True) if tensor.elem_type == onnx.TensorProto.BOOL else draw
    try:
        session = ort.InferenceSession(
            model.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=list(disabled),
        )
        return list(session.run(None, feeds))
    except Exception as error:
        return [str(error)]


def same(one: list[object], two: list[object]) -> bool:
    """Whether two runs gave the same, up to rounding."""
    return all(
        not isinstance(a, str)
        and not isinstance(b, str)
        and np.shape(a) == np.shape(b)
        and np.allclose(a, b, atol=1e-4)
        for a, b in zip(one, two, strict=True)
    )


@pytest.mark.parametrize("name", WRONG)
def test_what_the_runtime_gets_wrong_is_found(name: str) -> None:
    text, edge = WRONG[name]
    model = model_of(text)
    found = sharp_edges(model)
    assert {each.edge for each in found} == {edge}
    assert {each.node for each in found} == {"n"}
    own = outputs(model, "ORT_DISABLE_ALL")
    if edge is Edge.FUSED:
        assert not np.allclose(own[0], expected_product(model))
        return
    fused = outputs(model, "ORT_ENABLE_ALL")
    assert not same(own, fused), "the runtime is right now: leave this out of the list"
    assert same(own, outputs(model, "ORT_ENABLE_ALL", wrong_optimizers(found)))


def expected_product(model: onnx.ModelProto) -> np.ndarray:
    """Of the transposed matrix and the vector that ``outputs`` draws."""
    rng = np.random.default_rng(0)
    matrix, vector = (rng.random(sizes) - 3 for sizes in ((3, 4), (3,)))
    return matrix.T @ vector


@pytest.mark.parametrize("name", RIGHT)
def test_what_the_runtime_gets_right_is_not_named(name: str) -> None:
    model = model_of(RIGHT[name])
    assert not sharp_edges(model)
    assert same(outputs(model, "ORT_DISABLE_ALL"), outputs(model, "ORT_ENABLE_ALL"))


@pytest.mark.parametrize("name", COARSE)
def test_what_is_named_without_need_is_right_without_the_optimizer(name: str) -> None:
    model = model_of(COARSE[name])
    (found,) = sharp_edges(model)
    assert found.edge is Edge.POOL
    own = outputs(model, "ORT_DISABLE_ALL")
    assert same(own, outputs(model, "ORT_ENABLE_ALL", wrong_optimizers([found])))


@pytest.mark.parametrize("text", FOREIGN)
def test_operators_of_others_are_not_looked_into(text: str) -> None:
    assert not sharp_edges(model_of(text))


@pytest.mark.parametrize("perm", ["[0, 1]", "[1, 0]"])
def test_transposes_around_a_gemm_are_right(perm: str) -> None:
    """onnxruntime#32228, wrong until 1.30: the first to be looked at when the runtime changes."""
    for body in (
        f"t = Transpose <perm = {perm}> (a) y = Gemm (t, b, c)",
        f"t = Transpose <perm = {perm}> (b) y = Gemm (a, t, c)",
        f"m = Gemm (a, b, c) y = Transpose <perm = {perm}> (m)",
        f"t = Transpose <perm = {perm}> (a) m = MatMul (t, b) y = Add (m, c)",
    ):
        model = model_of(f"g (float[4,4] a, float[4,4] b, float[4] c) => (y) {{ {body} }}")
        assert same(outputs(model, "ORT_DISABLE_ALL"), outputs(model, "ORT_ENABLE_ALL"))


def test_scatternd_that_adds_is_named_on_the_cpu_alone() -> None:
    model = model_of(
        "g (float[3,4] x, float[2,4] u) => (y) { i = Constant <value = int64[2,1] {1, 1}> () "
        '[n] y = ScatterND <reduction = "add"> (x, i, u) }'
    )
    (found,) = sharp_edges(model)
    assert found.edge is Edge.SCATTER
    assert not found.optimizer
    assert "loses updates" in edge_notes([found])[0]
    assert not edge_notes([found], "cuda")


def test_notes_name_the_first_nodes() -> None:
    body = " ".join(f"[n{k}] y{k} = MatMul (t, v)" for k in range(5))
    outs = ", ".join(f"y{k}" for k in range(5))
    found = sharp_edges(model_of(f"g ({MATRIX}) => ({outs}) {{ t = Transpose (p) {body} }}"))
    assert edge_notes(found)[0].startswith("5 MatMuls ('n0', 'n1', 'n2' and 2 more) of a transp")
    assert disabled_notes(found) == (
        "fused without MatmulTransposeFusion, which ONNX Runtime gets wrong at 5 MatMuls "
        "('n0', 'n1', 'n2' and 2 more)",
    )
