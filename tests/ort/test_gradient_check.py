"""``grad`` and ``lower`` hold gradients against central differences: wrong rules are found and
named, right ones are not."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import memplan
from helpers.gradients import runtime, single
from helpers.graphs import parse
from helpers.running import Memplan, runner
from memplan.api.grad import check_graphs, gradient_check
from memplan.api.grad.check_graphs import Differentiated, NotComparableError
from memplan.api.grad.check_outcome import GradientsDifferError
from memplan.api.grad.double_graph import in_double
from memplan.autodiff.emit import gradient_registry as registry
from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients

NET = """
    g (float[5,5] x, float[5,5] target) => (float loss)
        <float[5,5] w1, float[5] bias1, float[5,5] w2, float ratio = {0.25}, bool yes = {1}>
    {
        [first] a = Gemm<transB = 1>(x, w1)
        [bias] c = Add(a, bias1)
        [relu] r = Relu(c)
        [drop] d = Dropout(r, ratio, yes)
        [twice] s = Mul(d, r)
        [second] e = MatMul(s, w2)
        [soft] p = Softmax<axis = 1>(e)
        [apart] q = Sub(target, p)
        [square] z = Mul(q, q)
        [mean] loss = ReduceSum<keepdims = 0>(z)
    }"""


def network() -> onnx.ModelProto:
    """A network of square matrices, in which a wrong gradient has the right shape."""
    model = parse(NET)
    del model.graph.value_info[:]
    generator = np.random.default_rng(0)
    for name, shape in (("w1", (5, 5)), ("bias1", (5,)), ("w2", (5, 5))):
        value = generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def half_of_product(ctx: Context) -> Gradients:
    a, b = ctx.tensors
    return (lambda: ctx.dy * b, None) if a != b else (lambda: ctx.dy * 2 * a,)


def transposed(ctx: Context) -> Gradients:
    a, b = ctx.tensors
    return (lambda: ctx.gemm(ctx.dy, b, 0, 1), lambda: ctx.gemm(a, ctx.dy, 0, 0))


def scaled(ctx: Context) -> Gradients:
    a, b = ctx.tensors[:2]
    return (lambda: ctx.gemm(ctx.dy, b), lambda: ctx.gemm(ctx.dy, a, 1, 0, 1.001))


def along_the_other_axis(ctx: Context) -> Gradients:
    return (ctx.y * (ctx.dy - ctx.sum(ctx.dy * ctx.y, [0])),)


PLANTED: dict[str, tuple[str, Callable[[Context], Gradients], str]] = {
    "a sign": ("Sub", lambda ctx: (ctx.dy, lambda: ctx.dy), "w2"),
    "a transposed factor": ("MatMul", transposed, "w2"),
    "a broadcast that is not summed": (
        "Add",
        lambda ctx: (ctx.dy, lambda: ctx.slice(ctx.dy, [0], [1], [0])),
        "bias1",
    ),
    "a dropped term": ("Mul", half_of_product, "w1"),
    "a scale": ("Gemm", scaled, "w1"),
    "no mask": ("Dropout", lambda ctx: (ctx.dy * (1 / 0.75),), "w1"),
    "an axis": ("Softmax", along_the_other_axis, "w2"),
    "zero": ("Relu", lambda ctx: (ctx.dy - ctx.dy,), "w1"),
    "not a number": ("Relu", lambda ctx: (ctx.dy / (ctx.dy - ctx.dy),), "w1"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_wrong_rule_is_found(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, rule, tensor = PLANTED[case]
    memplan.grad(network(), "loss")
    plant(monkeypatch, op, rule)
    with pytest.raises(GradientsDifferError) as caught:
        memplan.grad(network(), "loss")
    assert tensor in {each.tensor for each in caught.value.check.wrong}
    assert caught.value.exit_code == 1


def plant(monkeypatch: pytest.MonkeyPatch, op: str, rule: Callable[[Context], Gradients]) -> None:
    entry = registry._ENTRIES["", op]
    monkeypatch.setitem(registry._ENTRIES, ("", op), replace(entry, rule=rule))


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Memplan:
    onnx.save(network(), tmp_path / "f.onnx")
    return runner(tmp_path, monkeypatch, capfd)


def test_the_command_says_what_was_checked(run: Memplan) -> None:
    done = run("grad", "f.onnx", "-o", "t.onnx", "--loss", "loss")
    said = " ".join(done.stdout.split())
    assert "checked against the forward graph: 3 gradients along 1 direction, in float64" in said
    assert "the same 1 random draw in both" in said
    done = run("grad", "f.onnx", "-o", "t.onnx", "--loss", "loss", "--force", "--format", "json")
    check = json.loads(done.stdout)["check"]
    assert check["verdict"] == "equal"
    assert check["error"] <= check["tolerance"] == 1e-6
    done = run("grad", "f.onnx", "-o", "u.onnx", "--loss", "loss", "--no-check", "--format", "json")
    assert json.loads(done.stdout)["check"] is None


def test_a_difference_ends_with_code_1_and_no_file(
    run: Memplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "Sub", lambda ctx: (ctx.dy, lambda: ctx.dy))
    done = run("grad", "f.onnx", "-o", "t.onnx", "--loss", "loss", "--optimizer", "adamw")
    assert done.returncode == 1
    assert "that of 'w1' is off by 2 of its size" in done.stderr
    assert not (tmp_path / "t.onnx").exists()
    done = run("grad", "f.onnx", "-o", "t.onnx", "--loss", "loss", "--no-check")
    assert done.returncode == 0, done.stderr
    with pytest.raises(GradientsDifferError):
        memplan.gradients(network(), "loss", ["w1", "w2"])


def test_a_graph_with_gradients_that_does_not_run_is_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_long(ctx: Context) -> Gradients:
        places = ctx.cast(ctx.dy * 0.0, TensorProto.INT64) + 7
        return (ctx.op("GatherElements", ctx.dy, places, axis=0),)

    plant(monkeypatch, "Relu", too_long)
    with pytest.raises(GradientsDifferError, match="the training graph does not run"):
        memplan.grad(network(), "loss")


def test_a_graph_with_gradients_is_not_broken_where_its_forward_graph_does_not_run() -> None:
    text = """g (float[4,6] x, int64[2] shape) => (float loss)
        { b = Reshape(x, shape) loss = ReduceSum<keepdims = 0>(b) }"""
    training = parse(text.replace("float loss", "float loss, float[4,6] grad"))
    training.graph.node.append(helper.make_node("MatMul", ["x", "x"], ["grad"]))
    problem = Differentiated(parse(text), training, {"loss": None}, {"x": "grad"}, Path(), {})
    with pytest.raises(NotComparableError, match="the forward graph does not run"):
        gradient_check._compared(problem)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adamw{clip_norm=1}", "loss_scale": "dynamic"},
        {"dropout": "counter{seed=3}"},
        {"optimizer": "sgd", "own_update": True},
    ],
    ids=str,
)
def test_gradients_before_clipping_and_scaling_are_checked(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = memplan.grad(network(), memplan.GradOptions("loss", **options))  # type: ignore[arg-type]
    assert (made.check.verdict, made.check.gradients, made.check.draws) == ("equal", 3, 1)
    plant(monkeypatch, "MatMul", transposed)
    with pytest.raises(GradientsDifferError, match="that of 'w2'"):
        memplan.grad(network(), memplan.GradOptions("loss", **options))  # type: ignore[arg-type]


def test_kinks_and_ties_at_the_point_itself_are_no_difference() -> None:
    """All weights are 0: every ReLU is at its kink, every maximum a tie."""
    text = """
        g (float[4,6] x) => (float loss)
            <float[6,6] w1 = {W}, float[6,6] w2 = {W}, int64[1] first = {0}>
        {
            a = MatMul(x, w1)
            r = Relu(a)
            b = MatMul(r, w2)
            c = Max(a, b)
            e = Abs(c)
            d = Unsqueeze(e, first)
            m = MaxPool<kernel_shape = [2], strides = [2]>(d)
            s = Sub(m, m)
            z = Add(m, s)
            loss = ReduceSum<keepdims = 0>(z)
        }""".replace("W", ",".join(["0"] * 36))
    check = memplan.grad(parse(text), "loss").check
    assert check.verdict == "equal", check.lines


def test_a_computed_tensor_at_a_kink_is_no_difference() -> None:
    """A half of what is differentiated by is exactly 0, where the absolute value has a kink."""
    text = """g (float[64] x) => (float loss)
        { h = Relu(x) z = Abs(h) s = Mul(z, z) t = Add(z, s) loss = ReduceSum<keepdims = 0>(t) }"""
    memplan.gradients(parse(text), "loss", "h")


def test_what_is_skipped_is_said(caplog: pytest.LogCaptureFixture) -> None:
    text = """g (float[4,6] x) => (float loss) <float[6,6] w>
        { a = MatMul(x, w) p = Softmax(a) k = Multinomial(p) f = Cast<to = 1>(k)
          z = Mul(a, f) loss = ReduceSum<keepdims = 0>(z) }"""
    model = parse(text.replace("[6,6] w", "[6,1] w"))
    weight = np.ones((6, 1), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    with caplog.at_level(logging.WARNING):
        memplan.gradients(model, "loss", "w")
    assert "not checked against the forward graph: the draws of Multinomial cannot" in caplog.text


def test_made_up_sizes_that_give_another_shape_are_no_difference(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = parse("g (float[4] x, int64[1] times) => (float[12] y) { y = Tile(x, times) }")
    with caplog.at_level(logging.WARNING):
        memplan.gradients(model, "y", "x", grad_ys="dy")
    assert "on made-up inputs 'y' has the shape [" in caplog.text


def test_sizes_are_chosen_for_symbolic_dimensions() -> None:
    text = """g (float[N,M,6] x) => (float loss) <float[6,6] w>
        { a = MatMul(x, w) b = Gelu(a) loss = ReduceMean<keepdims = 0>(b) }"""
    model = parse(text)
    weight = np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    check = memplan.grad(model, "loss").check
    assert dict(check.dims) == {"N": 3, "M": 4}
    check = memplan.grad(model, "loss", dims={"N": 5}).check
    assert dict(check.dims) == {"M": 3}


def test_labels_of_a_flattened_batch_are_as_many_as_the_graph_makes() -> None:
    text = """g (int64[N,6] ids) => (float[M,10] logits) <float[10,8] table>
        { flat = Constant<value = int64[2] {-1, 8}>() e = Gather(table, ids) r = Reshape(e, flat)
          t = Transpose(table) logits = MatMul(r, t) }"""
    model = parse(text)
    weight = np.random.default_rng(0).standard_normal((10, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "table"))
    options = memplan.GradOptions("cross-entropy", logits="logits")
    check = memplan.grad(model, options).check
    assert check.verdict == "equal", check.lines
    assert sorted(dict(check.dims).values()) == [3, 18]


def test_a_symbolic_dimension_may_be_what_a_weight_has() -> None:
    """No size that is tried first fits the weight."""
    text = """g (float[N,M] x) => (float[N,5] y, float loss) <float[5,29] w>
        { y = Gemm<transB = 1>(x, w) z = Mul(y, y) loss = ReduceSum<keepdims = 0>(z) }"""
    model = parse(text)
    weight = np.random.default_rng(0).standard_normal((5, 29)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    check = memplan.grad(model, "loss").check
    assert check.verdict == "equal", check.lines
    assert dict(check.dims) == {"N": 4, "M": 29}


def test_a_gradient_that_is_fed_may_have_a_size_that_no_input_has() -> None:
    text = """g (float[N,3] x) => (float[M,1] y)
        { s = Constant<value_ints = [-1, 1]>() t = Tanh(x) y = Reshape(t, s) }"""
    made = memplan.gradients(parse(text), "y", "x", "dy")
    found = runtime(made, {"x": np.zeros((2, 3), np.float32), "dy": np.ones((6, 1), np.float32)})
    assert found["x_grad"].tolist() == [[1, 1, 1]] * 2


def test_what_would_take_minutes_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_check, "_PATIENCE", -1)
    check = memplan.grad(network(), "loss").check
    assert check.verdict == "skipped"
    assert "for one run of the forward graph), more than -1 s" in check.reason


def test_weights_that_are_inputs_count_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """g (float[4,6] x, float[6,6] w) => (float loss)
        { a = MatMul(x, w) loss = ReduceSum<keepdims = 0>(a) }"""
    monkeypatch.setattr(check_graphs, "available_bytes", lambda: 8 * 5 * (24 + 36))
    check = memplan.grad(parse(text), memplan.GradOptions("loss", wrt=("w",))).check
    assert "that may take" in check.reason


WINDOWS = [
    ("Conv", {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2], "group": 2}),
    ("Conv", {"auto_pad": "SAME_LOWER"}),
    ("ConvTranspose", {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 0]}),
    ("ConvTranspose", {"dilations": [2, 1], "group": 2}),
    ("AveragePool", {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
    ("AveragePool", {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0], "count_include_pad": 1}),
    ("GlobalAveragePool", {}),
    ("GlobalMaxPool", {}),
    ("Erf", {}),
]


@pytest.mark.parametrize(("op", "attributes"), WINDOWS, ids=str)
def test_operators_without_a_float64_kernel_are_the_same_in_float64(
    op: str, attributes: dict[str, object]
) -> None:
    generator = np.random.default_rng(2)
    group = attributes.get("group", 1)
    kernel = (4, 4 // int(str(group)), 3, 2)
    arrays = [generator.standard_normal((2, 4, 7, 6)).astype(np.float32)]
    if "Conv" in op:
        arrays.append(generator.standard_normal(kernel).astype(np.float32))
    model, feeds = single(op, *arrays, out_dtypes=[TensorProto.FLOAT], **attributes)
    wide, left = in_double(model)
    assert not left
    (wanted,) = runtime(model, feeds).values()
    (found,) = runtime(wide, {n: a.astype(np.float64) for n, a in feeds.items()}).values()
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
