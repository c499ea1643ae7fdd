"""Running statistics: averages over steps, which no gradient changes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.gradients import runtime
from helpers.graphs import open_text, parse
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions, TrainingGraph
from memplan.autodiff.statistics import renew_statistics
from memplan.errors import UsageError
from memplan.proto.metadata import get_metadata
from memplan.simulate.explain import Explainer, TensorClass
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

MOMENTUM = 0.8
STEPS = 50
NET = """
    g (float[4, 2, 5, 5] x, float[4, 3] t) => (float loss, float[4, 3, 5, 5] c{more})
    <float[3] scale = {{1, 1, 1}}, float[3] bias = {{0, 0, 0}},
     float[3] b1_running_mean = {{0, 0, 0}}, float[3] b1_running_var = {{1, 1, 1}}>
    {{ c = Conv<pads = [1, 1, 1, 1]>(x, w)
      y{outs} = BatchNormalization<{mode}>(c, scale, bias, {mean}, b1_running_var)
      a = Relu(y) p = GlobalAveragePool(a) f = Flatten(p) d = Sub(f, t) e = Mul(d, d)
      {last} loss = ReduceMean<keepdims = 0>(e) }}"""
TRAINING = f"training_mode = 1, momentum = {MOMENTUM}"


def dotted(text: str) -> onnx.ModelProto:
    """The model with ``b1.running`` for ``b1_running``, which ONNX text cannot spell."""
    named = parse(text).SerializeToString().replace(b"b1_running", b"b1.running")
    return onnx.ModelProto.FromString(named)


def net(
    mode: str = TRAINING,
    outs: str = ", m, v",
    more: str = "",
    mean: str = "b1_running_mean",
    last: str = "",
) -> onnx.ModelProto:
    """A convolution, a batch normalization and a mean square."""
    model = dotted(NET.format(mode=mode, outs=outs, more=more, mean=mean, last=last))
    numbers = np.random.default_rng(1).normal(size=(3, 2, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(numbers, "w"))
    return model


def differentiated(tmp_path: Path, model: onnx.ModelProto, *wrt: str) -> TrainingGraph:
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    return grad(path, GradOptions(loss="loss", optimizer="sgd", wrt=wrt))


def train(found: TrainingGraph) -> tuple[dict[str, Any], list[Any]]:
    """The state after the steps, and the output of the convolution in each of them."""
    random = np.random.default_rng(0)
    target = random.normal(size=(4, 3)).astype(np.float32)
    state: dict[str, Any] = {}
    seen = []
    for _ in range(STEPS):
        batch = random.normal(loc=3, size=(4, 2, 5, 5)).astype(np.float32)
        feeds = {"x": batch, "t": target, "lr": np.array(0.05, np.float32), **state}
        result = runtime(found.model, feeds)
        state = {old: result[new] for new, old in found.new_values.items()}
        seen.append(result["c"])
    return state, seen


LISTED = [
    pytest.param(net(), id="not outputs of the graph"),
    pytest.param(net(outs=", m, v", more=", float[3] m, float[3] v"), id="outputs of another name"),
    pytest.param(
        net(outs=", b1_running_mean_new, v", more=", float[3] b1_running_mean_new"),
        id="one of them listed",
    ),
]


@pytest.mark.parametrize("model", LISTED)
def test_training_mode_renews_them_as_moving_averages(
    tmp_path: Path, model: onnx.ModelProto
) -> None:
    found = differentiated(tmp_path, model)
    assert set(found.wrt) == {"w", "scale", "bias"}
    assert dict(found.statistics.renewed) == {
        "b1.running_mean": "b1.running_mean_new",
        "b1.running_var": "b1.running_var_new",
    }
    state, seen = train(found)
    mean, var = np.zeros(3), np.ones(3)
    for c in seen:
        mean = MOMENTUM * mean + (1 - MOMENTUM) * c.mean(axis=(0, 2, 3), dtype=np.float64)
        var = MOMENTUM * var + (1 - MOMENTUM) * c.var(axis=(0, 2, 3), dtype=np.float64)
    np.testing.assert_allclose(state["b1.running_mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state["b1.running_var"], var, rtol=1e-4)
    assert not np.allclose(var, 1, rtol=0.1)


@pytest.mark.parametrize("copies", ["", "r = Identity(b1_running_mean)"], ids=["plain", "copied"])
def test_inference_mode_leaves_them_alone_and_says_so(tmp_path: Path, copies: str) -> None:
    model = net("epsilon = 0.001", "", mean="r" if copies else "b1_running_mean")
    if copies:
        model.graph.node.insert(
            0, onnx.helper.make_node("Identity", ["b1.running_mean"], ["r"], name="copy")
        )
    found = differentiated(tmp_path, model)
    assert set(found.wrt) == {"w", "scale", "bias"}
    assert "1 BatchNormalization node is in inference mode" in found.statistics.notes[0]
    state, _ = train(found)
    assert set(state) == {"w", "scale", "bias"}
    weight = onnx.numpy_helper.to_array(
        next(t for t in found.model.graph.initializer if t.name == "w")
    )
    assert not np.array_equal(state["w"], weight)


def test_new_statistics_count_as_state(tmp_path: Path) -> None:
    model = open_text(differentiated(tmp_path, net()).model)
    explainer = Explainer(simulate(model.graph, session_kind("tuned")), model.phases, model.modules)
    running = model.graph.tensor_named("b1.running_var")
    assert running is not None
    assert explainer.class_of(running) is TensorClass.OPTIMIZER_STATE


def test_statistics_written_out_are_known_by_name(tmp_path: Path) -> None:
    model = dotted("""
        g (float[4, 3] x) => (float loss)
        <float[3, 1] w = {1, 2, 3},
         float[3] b1_running_mean = {0, 0, 0}, float[3] b1_running_var = {1, 1, 1}>
        { h = MatMul(x, w) a = Sub(h, b1_running_mean) s = Sqrt(b1_running_var) y = Div(a, s)
          loss = ReduceMean<keepdims = 0>(y) }""")
    assert set(differentiated(tmp_path, model).wrt) == {"w"}


def test_a_layer_called_twice_renews_them_twice() -> None:
    model = parse(f"""
        g (float[4, 3] x) => (float[4, 3] z)
        <float[3] s = {{1, 1, 1}}, float[3] b = {{0, 0, 0}},
         float[3] m = {{0, 0, 0}}, float[3] v = {{1, 1, 1}}>
        {{ y = BatchNormalization<{TRAINING}>(x, s, b, m, v)
           z = BatchNormalization<{TRAINING}>(y, s, b, m, v) }}""")
    found = renew_statistics(model.graph)
    first, second = model.graph.node
    assert list(second.input[3:]) == list(first.output[1:])
    assert list(second.output[1:]) == ["m_new", "v_new"]
    assert dict(found.renewed) == {"m": "m_new", "v": "v_new"}
    assert "renewed by one after the other" in found.notes[0]
    onnx.checker.check_model(model, full_check=True)


def test_a_tensor_merged_with_a_weight_is_named() -> None:
    model = parse("""
        g (float[4, 3] x) => (float[4, 3] y) <float[3] s = {1, 1, 1}, float[3] zeros = {0, 0, 0}>
        { y = BatchNormalization(x, s, zeros, zeros, s) }""")
    found = renew_statistics(model.graph)
    assert found.names == {"s", "zeros"}
    assert any("'s' is read as a running statistic and as a weight" in n for n in found.notes)


def test_excluding_globs(tmp_path: Path) -> None:
    assert set(differentiated(tmp_path, net(), "!b*").wrt) == {"w", "scale"}
    assert set(differentiated(tmp_path, net(), "*", "!x", "!t").wrt) == {"w", "scale", "bias"}
    assert set(differentiated(tmp_path, net(), "!*running*").wrt) == {"w", "scale", "bias"}
    with pytest.raises(UsageError, match="'!nothing': no float"):
        differentiated(tmp_path, net(), "!nothing")
    with pytest.raises(UsageError, match="takes out everything"):
        differentiated(tmp_path, net(), "w", "!w")
    with pytest.raises(UsageError, match="is a running statistic"):
        differentiated(tmp_path, net(), "*running_mean")


def test_the_file_says_what_to_feed_back(tmp_path: Path) -> None:
    found = differentiated(tmp_path, net())
    assert get_metadata(found.model)["new_values"] == dict(found.new_values)
    assert set(found.new_values.values()) == {
        "w",
        "scale",
        "bias",
        "b1.running_mean",
        "b1.running_var",
    }


def test_statistics_of_a_normalization_that_no_gradient_reaches() -> None:
    """The runtime's kernel would write over the variance that a node beside it reads."""
    model = parse(
        """g (float[8, 3] x, float[3, 2] w) => (float loss, float[3] v_new, float[3] m_new)
        <float[3] s = {1, 1, 1}, float[3] b = {0, 0, 0}, float[3] m = {0, 0, 0},
         float[3] v = {1, 1, 1}, float eight = {8}, float seven = {7}> {
        y, m_new, r = BatchNormalization<training_mode = 1, momentum = 0.9>(x, s, b, m, v)
        share = Div(eight, seven) a = Mul(r, share) kept = Sub(v, r) v_new = Add(a, kept)
        h = MatMul(x, w) q = Mul(h, h) loss = ReduceMean<keepdims = 0>(q) }"""
    )
    made = grad(model, GradOptions(loss="loss", wrt=("w",))).model
    assert all(
        attribute.name != "training_mode" for n in made.graph.node for attribute in n.attribute
    )
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    found = runtime(made, {"x": x, "w": np.ones((3, 2), np.float32)})
    now = 0.9 + 0.1 * x.var(0)
    np.testing.assert_allclose(found["v_new"], now * 8 / 7 + 1 - now, rtol=1e-5)
