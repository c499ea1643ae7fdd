"""Made-up inputs that a graph survives, and given inputs that fit."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import memplan
from helpers.graphs import graph_of, open_text, parse
from memplan.errors import UsageError
from memplan.ir.graph import Graph
from memplan.runtime.archive import BFLOAT16, load_arrays, save_arrays
from memplan.runtime.inputs import load_inputs, synthesize


def made_up(text: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs for the graph in ``text``."""
    return {name: np.asarray(value) for name, value in synthesize(graph_of(text), seed).items()}


PLAIN = "g (float[64,8] x, int64[64] n) => (float[64,8] y) { [y] y = Neg(x) [m] m = Neg(n) }"


def test_shapes_types_and_magnitudes() -> None:
    found = made_up(PLAIN)
    assert list(found) == ["x", "n"]
    assert found["x"].shape == (64, 8)
    assert found["x"].dtype == np.float32
    assert 0.02 < found["x"].std() < 0.1
    assert (found["x"] < 0).any()
    # An integer that indexes nothing is 0 or 1.
    assert found["n"].dtype == np.int64
    assert set(found["n"].tolist()) == {0, 1}


def test_the_seed_decides() -> None:
    first, again, other = made_up(PLAIN), made_up(PLAIN), made_up(PLAIN, seed=1)
    assert first["x"].tobytes() == again["x"].tobytes()
    assert first["x"].tobytes() != other["x"].tobytes()


def test_booleans_take_both_values() -> None:
    found = made_up("g (bool[64] x) => (bool[64] y) { y = Not(x) }")
    assert found["x"].dtype == bool
    assert set(found["x"].tolist()) == {False, True}


INDEXED = {
    "Gather": "g (int64[4096] i, float[5,3] t) => (float[4096,3] y) { y = Gather(t, i) }",
    "Gather along an axis": "g (int64[4096] i, float[9,5] t) => (float[9,4096] y)"
    " { y = Gather<axis = 1>(t, i) }",
    "Gather along the last axis": "g (int64[4096] i, float[9,5] t) => (float[9,4096] y)"
    " { y = Gather<axis = -1>(t, i) }",
    "GatherElements": "g (int64[2,2048] i, float[2,5] t) => (float[2,2048] y)"
    " { y = GatherElements<axis = 1>(t, i) }",
    "ScatterElements": "g (int64[4096] i, float[5] t, float[4096] u) => (float[5] y)"
    " { y = ScatterElements(t, i, u) }",
    "GatherND": "g (int64[2048,2] i, float[9,5] t) => (float[2048] y) { y = GatherND(t, i) }",
    "through a Reshape": "g (int64[2048,2] i, float[5,3] t) => (float[4096,3] y)"
    " <int64[1] flat = {-1}> { j = Reshape(i, flat) y = Gather(t, j) }",
    "through a Cast": "g (int32[4096] i, float[5,3] t) => (float[4096,3] y)"
    " { j = Cast<to = 7>(i) y = Gather(t, j) }",
    "two tables": "g (int64[4096] i, float[9,3] t, float[5,3] u) => (float[4096,3] y)"
    " { a = Gather(t, i) b = Gather(u, i) y = Add(a, b) }",
    "one-hot": "g (int64[4096] i) => (float[4096,5] y)"
    " <int64 depth = {5}, float[2] values = {0, 1}> { y = OneHot(i, depth, values) }",
}


def test_an_axis_that_is_none_limits_no_index() -> None:
    """ONNX's inference takes this one; the runtime does not."""
    axis = -(2**63)
    text = f"g (int64[4096] i, float[5] t) => (float[4096] y) {{ y = Gather<axis = {axis}>(t, i) }}"
    assert set(made_up(text)["i"].tolist()) == {0, 1}


@pytest.mark.parametrize("kind", INDEXED)
def test_indices_stay_below_what_they_index(kind: str) -> None:
    index = made_up(INDEXED[kind])["i"]
    assert index.min() == 0
    assert index.max() == 4


def test_the_label_of_a_cross_entropy_is_below_the_number_of_classes() -> None:
    found = made_up("""
    g (float[4096,5] z, int64[4096] i) => (float loss)
    { loss = SoftmaxCrossEntropyLoss(z, i) }""")
    assert (found["i"].min(), found["i"].max()) == (0, 4)


def test_a_float_below_a_root_or_logarithm_is_positive() -> None:
    text = "g (float[512] v, float[512] x) => (float[512] y) <float e = {0.1}> { NODES }"
    direct = made_up(text.replace("NODES", "s = Sqrt(v) y = Add(s, x)"))
    assert direct["v"].min() >= 0.5
    assert direct["x"].min() < 0
    # As in Adam: decayed, added to, then the root.
    scaled = made_up(text.replace("NODES", "a = Mul(v, e) b = Add(a, e) s = Sqrt(b) y = Add(s, x)"))
    assert scaled["v"].min() >= 0.5
    # Not when something that forgets the sign stands between.
    squared = made_up(text.replace("NODES", "a = Exp(v) s = Log(a) y = Add(s, x)"))
    assert squared["v"].min() < 0


def test_types_that_cannot_be_made_up() -> None:
    for text in (
        "g (string[4] x) => (string[4] y) { y = Identity(x) }",
        "g (complex64[4] x) => (complex64[4] y) { y = Identity(x) }",
    ):
        with pytest.raises(UsageError, match="input 'x'") as caught:
            made_up(text)
        assert "--inputs" in caught.value.hint


def saved(path: Path, **arrays: np.ndarray) -> Path:
    """An ``.npz`` file of these arrays."""
    np.savez(path / "inputs.npz", **arrays)
    return path / "inputs.npz"


def test_inputs_from_a_file(tmp_path: Path) -> None:
    graph = graph_of(PLAIN)
    x, n = np.ones((64, 8), np.float32), np.ones(64, np.int64)
    found = load_inputs(saved(tmp_path, n=n, x=x), graph)
    assert sorted(found) == ["n", "x"]
    assert found["x"].tobytes() == x.tobytes()


def test_inputs_that_do_not_fit(tmp_path: Path) -> None:
    graph = graph_of(PLAIN)
    x, n = np.ones((64, 8), np.float32), np.ones(64, np.int64)
    with pytest.raises(UsageError, match="has no array 'n'"):
        load_inputs(saved(tmp_path, x=x), graph)
    with pytest.raises(
        UsageError, match=r"'x' is float32\[8, 64\].*the model wants float32\[64, 8\]"
    ):
        load_inputs(saved(tmp_path, x=x.T, n=n), graph)
    with pytest.raises(UsageError, match=r"'n' is float64\[64\], the model wants int64\[64\]"):
        load_inputs(saved(tmp_path, x=x, n=n.astype(np.float64)), graph)


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    graph = graph_of(PLAIN)
    path = tmp_path / "inputs.npz"
    with pytest.raises(UsageError, match=r"cannot be read as \.npz"):
        load_inputs(path, graph)
    path.write_bytes(b"PK no archive")
    with pytest.raises(UsageError, match=r"cannot be read as \.npz"):
        load_inputs(path, graph)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.array([{}], dtype=object), n=np.ones(64, np.int64))
    with pytest.raises(UsageError):
        load_inputs(path, graph_of(PLAIN))


@pytest.mark.parametrize(
    "kind", sorted(set(onnx.TensorProto.DataType.keys()) - {"UNDEFINED", "STRING"})
)
def test_every_element_type_is_made_up_or_refused(kind: str, tmp_path: Path) -> None:
    number = onnx.TensorProto.DataType.Value(kind)
    x, y = (onnx.helper.make_tensor_value_info(name, number, [8]) for name in "xy")
    node = onnx.helper.make_node("Identity", ["x"], ["y"], name="n")
    body = onnx.helper.make_graph([node], "g", [x], [y])
    opset = [onnx.helper.make_opsetid("", 23)]
    graph = open_text(onnx.helper.make_model(body, opset_imports=opset)).graph
    made = re.fullmatch(r"FLOAT|B?FLOAT16|DOUBLE|BOOL|U?INT(8|16|32|64)", kind)
    if made is None:
        with pytest.raises(UsageError) as caught:
            synthesize(graph)
        assert "--inputs" in caught.value.hint
        return
    save_arrays(tmp_path / "x.npz", synthesize(graph))
    value = load_arrays(tmp_path / "x.npz")["x"]
    assert value.dtype == onnx.helper.tensor_dtype_to_np_dtype(number)
    assert value.shape == (8,)


# Draws.


def drawn(text: str, draw: int) -> dict[str, np.ndarray]:
    return {k: np.asarray(v) for k, v in synthesize(graph_of(text), 0, draw).items()}


STEP = """g (float[64, 64] x, float[64, 64] w, float lr, int64 step, bool flag, bool[64] mask)
  => (float[64, 64] y, float[64, 64] z, int64 n, bool f, bool[64] m) {
    p = MatMul(x, w)  y = Mul(p, lr)  z = Relu(x)  n = Add(step, step)
    f = Not(flag)  m = Not(mask) }"""


def test_draws_differ_in_kind() -> None:
    first, second, third = (drawn(STEP, k) for k in range(3))
    assert (first["lr"], first["step"]) == (1, 1)
    assert (second["lr"], second["step"]) == (np.float32(0.37), 3)
    assert third["lr"] not in (1, second["lr"])
    assert third["step"] == 5
    assert first["flag"] != second["flag"]
    assert first["flag"] == third["flag"]
    assert not np.array_equal(first["mask"], second["mask"])
    assert np.abs(first["x"]).max() < 1
    assert np.abs(second["x"]).max() > 6
    # What is multiplied by keeps the scale of what it is multiplied with.
    assert second["w"].std() == pytest.approx(1 / 8, rel=0.1)


@pytest.mark.parametrize(
    ("text", "fan_in"),
    [
        ("g (float[9, 4] x, float[64, 4] w) => (float[9, 64] y) { y = Gemm<transB=1>(x, w) }", 4),
        ("g (float[9, 64] x, float[64, 4] w) => (float[9, 4] y) { y = Gemm(x, w) }", 64),
        ("g (float[9, 64] x, float[64] w) => (float[9] y) { y = MatMul(x, w) }", 64),
        (
            "g (float[1, 4, 9, 9] x, float[64, 4, 5, 5] w) => (float[1, 64, 5, 5] y)"
            " { y = Conv(x, w) }",
            100,
        ),
    ],
    ids=["transposed", "gemm", "vector", "conv"],
)
def test_matrices_are_scaled_by_their_fan_in(text: str, fan_in: int) -> None:
    scale = drawn(text, 1)["w"].std() * fan_in**0.5
    assert scale == pytest.approx(1, rel=0.3)
    assert drawn(text, 1)["x"].std() > 1.2


def test_what_must_be_positive_is_so_in_every_draw() -> None:
    text = "g (float[64, 64] v) => (float[64, 64] y) { y = Sqrt(v) }"
    assert drawn(text, 1)["v"].min() >= 0.5
    assert drawn(text, 1)["v"].max() > 6


def test_indices_are_legal_in_every_draw() -> None:
    text = "g (float[5, 4] t, int64[64] i) => (float[64, 4] y) { y = Gather(t, i) }"
    assert set(drawn(text, 1)["i"].tolist()) == {0, 1, 2, 3, 4}


# Given inputs beyond those that are needed.


def _with_default() -> Graph:
    model = parse("g (float[4] x, float[4] w) => (float[4] y) { y = Mul(x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    return open_text(model).graph


def test_inputs_with_a_default_may_be_given(tmp_path: Path) -> None:
    x = np.zeros(4, np.float32)
    assert sorted(load_inputs(saved(tmp_path, x=x), _with_default())) == ["x"]
    assert sorted(load_inputs(saved(tmp_path, x=x, w=x), _with_default())) == ["w", "x"]
    with pytest.raises(UsageError, match=r"'w' is float32\[3\], the model wants float32\[4\]"):
        load_inputs(saved(tmp_path, x=x, w=x[:3]), _with_default())


def test_an_array_that_is_not_an_input_is_refused(tmp_path: Path) -> None:
    x = np.zeros(4, np.float32)
    with pytest.raises(UsageError, match="array 'ww', which is not a graph input") as caught:
        load_inputs(saved(tmp_path, x=x, ww=x), _with_default())
    assert caught.value.hint == "near matches: w"
    with pytest.raises(UsageError, match="and 1 more such") as caught:
        load_inputs(saved(tmp_path, x=x, typo=x, zz=x), _with_default())
    assert caught.value.hint == "inputs: x, w"


def test_bfloat16_is_given_as_numpy_writes_it_or_as_memplan_wrote_it(tmp_path: Path) -> None:
    graph = graph_of("g (bfloat16[3] x) => (bfloat16[3] y) { y = Identity(x) }")
    bits = np.array([1, 2, 3], np.uint16)
    earlier = bits.view([("bfloat16", np.uint16)])
    for value in (bits.view("V2"), bits.view(BFLOAT16), earlier):
        found = load_inputs(saved(tmp_path, x=value), graph)["x"]
        assert found.dtype == BFLOAT16
        assert found.view(np.uint16).tolist() == [1, 2, 3]
    with pytest.raises(UsageError, match=r"is uint16\[3\], the model wants bfloat16\[3\]"):
        load_inputs(saved(tmp_path, x=bits), graph)


def test_settings_of_an_update_are_varied_but_in_the_first_draw() -> None:
    """A rewritten file in which a learning rate is folded would pass otherwise."""
    made = memplan.grad(
        parse(
            """g (float[4] x) => (float loss) <float[4] w = {1, 2, 3, 4}, float half = {0.5}>
            { a = Mul(x, w)  b = Mul(a, half)  loss = ReduceSum <keepdims = 0> (b) }"""
        ),
        memplan.GradOptions("loss", wrt=("w",), optimizer="adamw"),
    )
    graph = open_text(made.model).graph
    state = {"x", "w.exp_avg", "w.exp_avg_sq"}
    assert set(synthesize(graph, 0)) == state
    found = synthesize(graph, 0, 1)
    assert set(found) == state | {"lr", "step", "weight_decay"}
    assert (found["lr"], found["step"]) == (np.float32(0.37), 3)
