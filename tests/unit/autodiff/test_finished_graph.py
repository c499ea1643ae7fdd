"""What ONNX Runtime would compute wrongly, or not at all, is not in a finished training graph."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from helpers.graphs import parse
from helpers.sessions import outputs, session
from memplan.autodiff.finished_graph import finished, without_known_faults
from memplan.ops.float_types import unsupported_kernels
from memplan.ops.sharp_edges import sharp_edges

PADS = "p = Constant <value = int64[8] {0, 0, 0, 0, 0, 0, 1, 1}> () "
MAX = "MaxPool <kernel_shape = [3, 3], strides = [2, 2]>"
VECTOR = "float[3,4] p, float[3] v) => (float[4] y) { t = Transpose (p) [n] y = MatMul (t, v)"

GRAPHS = {
    "vector": f"g ({VECTOR} }}",
    "two vectors": (
        "g (float[2,3,4] p, float[3] v) => (float[2,4] y, float[2,4] z) { u = Neg (v) "
        "t = Transpose <perm = [0, 2, 1]> (p) [n] y = MatMul (t, v) [m] z = MatMul (t, u) }"
    ),
    "vector in a body": (
        "g (float[3,4] p, float[3] v, bool b) => (float[4] y) { y = If (b) <then_branch = a () => "
        "(float[4] s) { t = Transpose (p) s = MatMul (t, v) }, else_branch = c () => (float[4] u) "
        "{ o = Transpose (p) w = Neg (v) u = MatMul (o, w) }> }"
    ),
    "pool": (
        f"g (float[1,1,6,6] x) => (float[1,1,3,3] y) {{ {PADS} q = Pad (x, p) [n] y = {MAX} (q) }}"
    ),
}


def run(model: onnx.ModelProto, level: str) -> list[np.ndarray]:
    """The outputs at a level of optimization, for negative numbers."""
    rng, feeds = np.random.default_rng(0), {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        sizes = [dim.dim_value for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        draw = rng.random(sizes) - 3
        feeds[value.name] = np.ones(sizes, dtype) if dtype.kind in "bi" else draw.astype(dtype)
    return list(session(model, level, 0).run(None, feeds))


@pytest.mark.parametrize("name", GRAPHS)
def test_no_level_of_optimization_changes_the_result(name: str) -> None:
    model = parse(GRAPHS[name])
    own = run(model, "ORT_DISABLE_ALL")
    assert not all(map(np.allclose, own, run(model, "ORT_ENABLE_ALL"))), "there is no edge here"
    mended = finished(model)
    assert not sharp_edges(mended)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"):
        for before, after in zip(own, run(mended, level), strict=True):
            np.testing.assert_allclose(after, before, rtol=1e-5)


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_what_is_scattered_in_float16_is_added_in_float32(op: str) -> None:
    shape = "[2,4]" if op == "ScatterElements" else "[2,1]"
    model = parse(
        f"g (float16[3,4] x, int64{shape} i, float16[2,4] u) => (float16[3,4] y) "
        f'{{ [n] y = {op} <reduction = "add"> (x, i, u) }}'
    )
    (found,) = unsupported_kernels(model)
    assert (found.node, found.dtype, found.when) == ("n", "float16", "run")
    with pytest.raises(Exception, match="MLFloat16"):
        run(model, "ORT_DISABLE_ALL")
    mended = finished(model)
    assert not unsupported_kernels(mended)
    assert [node.op_type for node in mended.graph.node] == ["Cast", "Cast", op, "Cast"]
    assert mended.graph.node[2].name == "n"
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        (got,) = run(mended, level)
        assert got.dtype == np.float16
        assert got[1].mean() < -5  # three numbers below -2


def test_nodes_keep_their_phase_and_other_graphs_are_left_alone() -> None:
    text = f"g ({VECTOR} }}"
    model = parse(text)
    model.graph.node[1].metadata_props.add(key="phase", value="backward")
    mended = finished(model)
    assert [
        (node.op_type, [item.value for item in node.metadata_props]) for node in mended.graph.node
    ] == [
        ("Transpose", []),
        ("Unsqueeze", ["backward"]),
        ("MatMul", ["backward"]),
        ("Squeeze", ["backward"]),
    ]
    assert [list(numpy_helper.to_array(t)) for t in mended.graph.initializer] == [[1], [-1]]
    plain = parse("g (float[3,4] p, float[4] v) => (float[3] y) { y = MatMul (p, v) }")
    before = [node.op_type for node in plain.graph.node]
    assert [node.op_type for node in finished(plain).graph.node] == before


DROPOUTS = """
<ir_version: 10, opset_import: ["" : 22]>
graph (float[100, 10] x) => (float[100, 10] y, bool[100, 10] m)
<float ratio = {0.25}, bool on = {1}, bool off = {0}>
{
  a = Dropout <seed = 7> (x, ratio, on)
  b, m = Dropout <seed = 8> (x, ratio, on)
  c = Dropout (x, ratio, off)
  d = Sub (c, c)
  e = Mul (b, d)
  y = Add (a, e)
}
"""


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_an_unread_mask_is_drawn(level: str) -> None:
    """With the runtime's optimizer, too."""
    model = parse(DROPOUTS)
    without_known_faults(model)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds[:3] == ["Dropout", "Where", "Dropout"]
    assert kinds.count("Dropout") == 3
    y = outputs(model, {"x": np.full((100, 10), 3, np.float32)}, level)["y"]
    assert set(np.unique(y)) == {0.0, 4.0}
    assert 0.2 < (y == 0).mean() < 0.3
