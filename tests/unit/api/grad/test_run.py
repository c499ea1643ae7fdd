"""``memplan grad`` and ``memplan.gradients``: what they build, say and refuse."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import memplan
from helpers.gradients import draw, reference, runtime
from helpers.graphs import open_text, parse
from helpers.running import Memplan
from memplan.errors import ModelError, UsageError
from memplan.ir.graph import Graph, Phase
from memplan.ir.phases import find_phases
from memplan.proto.metadata import node_metadata

MLP = """
    g (float[N,4] x, float[N,2] target, float mask) => (float[N,2] p, float loss)
        <float[4,8] fc1_weight = {WEIGHTS}, float[8,2] fc2_weight = {HALF}, float half = {0.5}>
    {
        [fc1] a = MatMul(x, fc1_weight)
        [relu] h = Relu(a)
        [fc2] p = MatMul(h, fc2_weight)
        [diff] d = Sub(p, target)
        [square] s = Mul(d, d)
        [mean] m = ReduceMean<keepdims = 0>(s)
        [loss] loss = Mul(m, half)
    }"""
MLP = MLP.replace("WEIGHTS", ",".join(f"{n:.3f}" for n in draw((32,)))).replace(
    "HALF", ",".join(f"{n:.3f}" for n in draw((16,), 1))
)


@pytest.fixture
def run(inside: Memplan, tmp_path: Path) -> Memplan:
    onnx.save(parse(MLP), tmp_path / "f.onnx")
    return inside


def outputs(path: Path) -> list[str]:
    return [value.name for value in onnx.load(path).graph.output]


def inputs(path: Path) -> list[str]:
    return [value.name for value in onnx.load(path).graph.input]


def test_report(run: Memplan, tmp_path: Path) -> None:
    result = run("grad", "f.onnx", "-o", "t.onnx", "--loss", "loss")
    assert result.returncode == 0, result.stderr
    assert "f.onnx: loss 'loss', " in result.stdout
    assert "gradients of 2 tensors: fc1_weight, fc2_weight" in result.stdout
    assert "none of 3 tensors: half, x, target (see --wrt)" in result.stdout
    assert "wrote t.onnx" in result.stdout
    assert outputs(tmp_path / "t.onnx") == ["p", "loss", "fc2_weight_grad", "fc1_weight_grad"]
    assert inputs(tmp_path / "t.onnx") == ["x", "target", "mask", "fc1_weight", "fc2_weight"]
    assert run("analyze", "t.onnx", "--dim", "N=3").returncode == 0


def test_json(run: Memplan) -> None:
    result = run(
        "grad", "f.onnx", "-o", "t.onnx", "--loss", "loss", "--wrt", "fc2*", "--format", "json"
    )
    found = json.loads(result.stdout)
    assert found["schema"] == "memplan.grad/1"
    assert found["wrt"] == ["fc2_weight"]
    assert found["new_inputs"] == ["fc2_weight"]
    assert found["new_outputs"] == ["fc2_weight_grad"]
    assert found["nodes"]["forward"] == 9  # Size and its Cast, for the mean
    assert found["nodes"]["update"] == 0


def test_stdout_and_quiet(run: Memplan, tmp_path: Path) -> None:
    assert run("grad", "f.onnx", "-o", "t.onnx", "--loss", "loss", "-q").stdout == "t.onnx\n"
    result = run("grad", "f.onnx", "-o", "-", "--loss", "loss", "--format", "json")
    assert result.returncode == 2


def test_narrow_wrt_keeps_less(run: Memplan, tmp_path: Path) -> None:
    """With the last layer alone, nothing of the first is read by the backward part."""
    run("grad", "f.onnx", "-o", "t.onnx", "--loss", "loss", "--wrt", "fc2_weight")
    model = onnx.load(tmp_path / "t.onnx")
    read = {
        name
        for node in model.graph.node
        if node_metadata(node).get("memplan.phase") == "backward"
        for name in node.input
    }
    assert read.isdisjoint({"a", "x", "fc1_weight", "fc2_weight"})


def test_forward_only(run: Memplan, tmp_path: Path) -> None:
    run("grad", "f.onnx", "-o", "t.onnx", "--loss", "mse", "--logits", "p", "--forward-only")
    assert outputs(tmp_path / "t.onnx") == ["loss", "loss_1"]
    assert "targets" in inputs(tmp_path / "t.onnx")


def test_cross_entropy(run: Memplan, tmp_path: Path) -> None:
    """The loss and its gradient are the textbook's; the logits are no output any more."""
    result = run("grad", "f.onnx", "-o", "t.onnx", "--loss", "cross-entropy", "--logits", "p")
    assert "classes lie along axis 1" in result.stdout
    assert "p" not in outputs(tmp_path / "t.onnx")
    model = onnx.load(tmp_path / "t.onnx")
    x = draw((3, 4)).astype(np.float32)
    labels = np.asarray([1, 0, 1])
    defaults = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    feeds = {"x": x, "target": np.zeros((3, 2), np.float32), "mask": np.asarray(0, np.float32)}
    found = runtime(model, {**feeds, "labels": labels})
    w1, w2 = defaults["fc1_weight"], defaults["fc2_weight"]
    hidden = np.maximum(x @ w1, 0)
    logits = hidden @ w2
    soft = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found["loss_1"], -np.log(soft[range(3), labels]).mean(), rtol=1e-5)
    soft[range(3), labels] -= 1
    np.testing.assert_allclose(found["fc2_weight_grad"], hidden.T @ soft / 3, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--loss", "a"], 3, "the loss 'a' is not a float scalar"),
        (["--loss", "x"], 3, "--loss x: no node of the graph computes it"),
        (["--loss", "mse"], 2, "built behind logits"),
        (["--loss", "loss", "--logits", "p"], 2, "--logits is for losses that are built"),
        (["--loss", "mse", "--logits", "q"], 3, "no float tensor of that name"),
        (["--loss", "loss", "--wrt", "mask"], 3, "'mask' does not lead to the loss"),
        (["--loss", "loss", "--wrt", "nothing"], 2, "no float input or initializer of that name"),
        (["--loss", "loss", "--optimizer", "lamb"], 2, "unknown --optimizer lamb"),
        (["--loss", "loss", "--class-axis", "1"], 2, "--class-axis"),
        (["--loss", "cross-entropy", "--logits", "p", "--class-axis", "2"], 2, "2 dimensions"),
    ],
)
def test_bad_options(
    run: Memplan, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    result = run("grad", "f.onnx", "-o", "t.onnx", *arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert message in result.stderr
    assert result.stderr.count("\n") <= 2
    assert not (tmp_path / "t.onnx").exists()


UNKNOWN_OPS = """<ir_version: 10, opset_import: ["" : 20, "odd" : 1]>
    g (float[3,3] w) => (float loss)
    { [one] a = odd.Strange(w) [two] b = Det(a) [three] c = Det(w) [four] r = Round(w)
      [five] m = Mod<fmod = 1>(w, r) [six] k = ReduceSum<keepdims = 0>(m)
      [seven] loss = Sum(b, c, k) }"""


def test_operators_without_a_rule(run: Memplan, tmp_path: Path) -> None:
    """One error names them all."""
    onnx.save(parse(UNKNOWN_OPS), tmp_path / "u.onnx")
    result = run("grad", "u.onnx", "-o", "t.onnx", "--loss", "loss", "--wrt", "w")
    assert result.returncode == 3
    wanted = "no gradient is known for Det (two, three); Mod (five); odd:Strange (one)"
    assert wanted in result.stderr
    assert not (tmp_path / "t.onnx").exists()


def test_nothing_trained(run: Memplan, tmp_path: Path) -> None:
    """Parameters that are graph inputs are offered."""
    text = """g (float[2,4] x, float[4,1] w) => (float loss)
        { a = MatMul(x, w) loss = ReduceSum<keepdims = 0>(a) }"""
    onnx.save(parse(text), tmp_path / "i.onnx")
    result = run("grad", "i.onnx", "-o", "t.onnx", "--loss", "loss")
    assert result.returncode == 3
    assert "--wrt 'w'" in result.stderr


def test_existing_output(run: Memplan, tmp_path: Path) -> None:
    assert run("grad", "f.onnx", "-o", "t.onnx", "--loss", "loss").returncode == 0
    assert run("grad", "f.onnx", "-o", "t.onnx", "--loss", "loss").returncode == 2
    assert run("grad", "f.onnx", "-o", "f.onnx", "--loss", "loss", "--force").returncode == 2


# -- memplan.gradients -----------------------------------------------------------------------------

TWO = """
    g (float[2,3] x, float[3] w) => (float[2,3] y, float[2] z)
    { h = Mul(x, w) y = Tanh(h) axis = Constant<value = int64[1] {1}>()
      z = ReduceSum<keepdims = 0>(h, axis) }"""


def test_several_ys_and_given_gradients() -> None:
    """Σ y·a + Σ z·b, with a as an array and b as an input."""
    a, b = draw((2, 3)).astype(np.float32), draw((2,), 1).astype(np.float32)
    model = memplan.gradients(parse(TWO), ["y", "z"], ["x", "h"], grad_ys=[a, "b"])
    x, w = draw((2, 3), 2).astype(np.float32), draw((3,), 3).astype(np.float32)
    found = reference(model, {"x": x, "w": w, "b": b})
    inner = a * (1 - np.tanh(x * w) ** 2) + b[:, None]
    np.testing.assert_allclose(found["h_grad"], inner, rtol=1e-5)
    np.testing.assert_allclose(found["x_grad"], inner * w, rtol=1e-5)


def test_gradient_of_the_sum_by_default() -> None:
    model = memplan.gradients(parse(TWO), "z", ("w",))
    x = draw((2, 3)).astype(np.float32)
    found = reference(model, {"x": x, "w": x[0]})
    np.testing.assert_allclose(found["w_grad"], x.sum(axis=0), rtol=1e-5)


@pytest.mark.parametrize(
    ("ys", "xs", "error"),
    [
        ("nothing", "x", UsageError),
        ("y", "nothing", UsageError),
        ("y", "axis", UsageError),
        ("y", ["x", "x"], UsageError),
        ("z", ["x", "y"], ModelError),
        ("h", "z", ModelError),
    ],
)
def test_bad_names(ys: str, xs: str | list[str], error: type[Exception]) -> None:
    with pytest.raises(error):
        memplan.gradients(parse(TWO), ys, xs)


def test_shared_tensor_is_summed_once() -> None:
    """x is read three times; there are two additions, and no copies."""
    text = """g (float[4] x) => (float z)
        { a = Exp(x) b = Tanh(x) c = Mul(a, b) d = Mul(c, x) z = ReduceSum<keepdims = 0>(d) }"""
    model = memplan.gradients(parse(text), "z", "x")
    ops = [n.op_type for n in model.graph.node if "/grad/" in n.name]
    assert ops.count("Add") == 2
    assert "Identity" not in ops
    assert "Expand" not in ops
    x = draw((4,)).astype(np.float32)
    wanted = np.exp(x) * (np.tanh(x) * x + (1 - np.tanh(x) ** 2) * x + np.tanh(x))
    np.testing.assert_allclose(reference(model, {"x": x})["x_grad"], wanted, rtol=1e-5)


def test_integer_paths_end_silently() -> None:
    text = """g (float[4] x) => (float z)
        { i = Cast<to = 7>(x) f = Cast<to = 1>(i) r = Floor(x) s = Shape(x) n = Cast<to = 1>(s)
          y = Sum(x, f, r) w = Mul(y, n) z = ReduceSum<keepdims = 0>(w) }"""
    model = memplan.gradients(parse(text), "z", "x")
    found = reference(model, {"x": draw((4,)).astype(np.float32)})
    np.testing.assert_array_equal(found["x_grad"], np.full(4, 4, np.float32))
    with pytest.raises(ModelError, match="does not depend"):
        memplan.gradients(parse(text), "f", "x")


def test_model_local_functions() -> None:
    """They are inlined first."""
    text = """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        g (float[4] x) => (float z) { a = own.Square(x) z = ReduceSum<keepdims = 0>(a) }
        <domain: "own", opset_import: ["" : 20]> Square (v) => (w) { w = Mul(v, v) }"""
    model = memplan.gradients(parse(text), "z", "x")
    x = draw((4,)).astype(np.float32)
    np.testing.assert_allclose(reference(model, {"x": x})["x_grad"], 2 * x)


def test_function_operators_leave_the_graph() -> None:
    """The runtime has no kernel for HardSwish, and would put its nodes out of order."""
    text = "g (float[4] x) => (float z) { a = HardSwish(x) z = ReduceSum<keepdims = 0>(a) }"
    model = memplan.gradients(parse(text), "z", "x")
    assert "HardSwish" not in {node.op_type for node in model.graph.node}
    x = draw((4,), low=-5, high=5).astype(np.float32)
    np.testing.assert_allclose(
        runtime(model, {"x": x})["x_grad"],
        np.where(x < -3, 0, np.where(x > 3, 1, x / 3 + 0.5)),
        rtol=1e-5,
    )


def unmarked(graph: Graph) -> Graph:
    from dataclasses import replace

    return replace(graph, metadata=tuple({} for _ in graph.nodes))


def test_phases_by_data_flow_agree() -> None:
    """What memplan finds in a generated graph without its marks is what the marks say."""
    model = memplan.gradients(parse(MLP), "loss", ["fc1_weight", "fc2_weight"])
    graph = open_text(model, dims={"N": 3}).graph
    told, found = find_phases(graph), find_phases(unmarked(graph))
    assert Phase.BACKWARD in told.of
    assert told.of == found.of
    assert told.parameters == found.parameters


@pytest.mark.parametrize(
    ("body", "wrt", "said"),
    [
        (
            "a = MatMul(x, v)  b = Add(a, one)  c = Gemm(b, w, one)",
            ("v", "w", "one"),
            "('one': 2 Add nodes)",
        ),
        (
            "a = LayerNormalization(x, one)  b = LayerNormalization(a, one) "
            "c = LayerNormalization(b, own)",
            ("one", "own"),
            "('one': 2 LayerNormalization nodes)",
        ),
        ("c = LayerNormalization(x, own)", ("own",), ""),
    ],
    ids=["biases", "scales", "apart"],
)
def test_tensors_that_an_exporter_merged_are_pointed_out(
    body: str, wrt: tuple[str, ...], said: str
) -> None:
    """Biases begin with zeros and scales with ones, and PyTorch's default export keeps one for all
    layers of a width: training would tie them."""
    model = parse(
        "g (float[4,8] x, float[8,8] v, float[8,8] w, float[8] one, float[8] own) => (float loss) "
        f"{{ {body} loss = ReduceSum <keepdims = 0> (c) }}"
    )
    notes = memplan.grad(model, memplan.GradOptions(loss="loss", wrt=wrt)).notes
    assert len(notes) == bool(said)
    for note in notes:
        assert note.startswith(f"1 tensor with several layers each {said}")
        assert "optimize=False" in note
