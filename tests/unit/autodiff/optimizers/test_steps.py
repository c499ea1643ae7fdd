"""Updates inside the training graph against the formulas of torch.optim, over several steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.gradients import Array, draw, reference
from helpers.graphs import open_text, parse
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions
from memplan.autodiff.optimizers.parse import parse_optimizer
from memplan.errors import UsageError
from memplan.ir.graph import Phase
from memplan.ir.pairs import pair_outputs

# loss = Σ (w·w·x), gradient 2·w·x.
MODEL = """
    g (float[4] x) => (float loss) <float[4] w = {0.5, -1, 2, 0.25}>
    { a = Mul(w, w) b = Mul(a, x) loss = ReduceSum<keepdims = 0>(b) }"""
Step = Callable[[Array, Array, dict[str, Array], int], Array]
RATE = np.float32(0.1)


def trained(tmp_path: Path, optimizer: str) -> onnx.ModelProto:
    onnx.save(parse(MODEL), tmp_path / "f.onnx")
    options = GradOptions(loss="loss", wrt=("w",), optimizer=optimizer)
    return grad(tmp_path / "f.onnx", options).model


def sgd(decay: float) -> Step:
    return lambda w, g, state, t: w - RATE * (g + decay * w)


def momentum(w: Array, g: Array, state: dict[str, Array], t: int) -> Array:
    state["momentum"] = 0.8 * state["momentum"] + g
    return w - RATE * state["momentum"]


def nesterov(w: Array, g: Array, state: dict[str, Array], t: int) -> Array:
    state["momentum"] = 0.8 * state["momentum"] + g
    return w - RATE * (g + 0.8 * state["momentum"])


def dampened(w: Array, g: Array, state: dict[str, Array], t: int) -> Array:
    state["momentum"] = 0.9 * state["momentum"] + (g if t == 1 else 0.25 * g)
    return w - RATE * state["momentum"]


def clipped(w: Array, g: Array, state: dict[str, Array], t: int) -> Array:
    norm = np.sqrt(np.square(g).sum())
    return w - RATE * g * np.minimum(1, 4 / (norm + 1e-6))


def amsgrad(w: Array, g: Array, state: dict[str, Array], t: int) -> Array:
    state["exp_avg"] = 0.9 * state["exp_avg"] + 0.1 * g
    state["exp_avg_sq"] = 0.25 * state["exp_avg_sq"] + 0.75 * g * g
    state["max_exp_avg_sq"] = np.maximum(state["max_exp_avg_sq"], state["exp_avg_sq"])
    root = np.sqrt(state["max_exp_avg_sq"] / (1 - 0.25**t))
    return w - RATE * state["exp_avg"] / (1 - 0.9**t) / (root + 1e-8)


def adam(decay: float, decoupled: bool) -> Step:
    def step(w: Array, g: Array, state: dict[str, Array], t: int) -> Array:
        if decoupled:
            w = w * (1 - RATE * decay)
        else:
            g = g + decay * w
        state["exp_avg"] = 0.9 * state["exp_avg"] + 0.1 * g
        state["exp_avg_sq"] = 0.999 * state["exp_avg_sq"] + 0.001 * g * g
        mean = state["exp_avg"] / (1 - 0.9**t)
        return w - RATE * mean / (np.sqrt(state["exp_avg_sq"] / (1 - 0.999**t)) + 1e-8)

    return step


CASES: list[tuple[str, Step, tuple[str, ...]]] = [
    ("sgd", sgd(0), ()),
    ("sgd{weight_decay=0.3}", sgd(0.3), ()),
    ("momentum{momentum=0.8}", momentum, ("momentum",)),
    ("momentum{momentum=0.8,nesterov=1}", nesterov, ("momentum",)),
    ("momentum{dampening=0.75}", dampened, ("momentum",)),
    ("sgd{clip_norm=4}", clipped, ()),
    ("sgd{clip_value=0.5}", lambda w, g, state, t: w - RATE * np.clip(g, -0.5, 0.5), ()),
    ("sgd{weight_decay=0.3,no_decay=w*}", sgd(0), ()),
    ("sgd{weight_decay=0.3,maximize=1}", lambda w, g, state, t: w - RATE * (0.3 * w - g), ()),
    ("adam", adam(0, False), ("exp_avg", "exp_avg_sq")),
    ("adam{amsgrad=1,beta2=0.25}", amsgrad, ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")),
    ("adam{weight_decay=0.2}", adam(0.2, False), ("exp_avg", "exp_avg_sq")),
    ("adamw{weight_decay=0.2}", adam(0.2, True), ("exp_avg", "exp_avg_sq")),
]


@pytest.mark.parametrize(("optimizer", "step", "states"), CASES)
def test_steps(tmp_path: Path, optimizer: str, step: Step, states: tuple[str, ...]) -> None:
    model = trained(tmp_path, optimizer)
    w = np.asarray([0.5, -1, 2, 0.25], dtype=np.float32)
    kept = {name: np.zeros(4, dtype=np.float32) for name in states}
    mine = {f"w.{name}": array for name, array in kept.items()}
    names = {value.name for value in model.graph.input}
    fed_by_default = {tensor.name for tensor in model.graph.initializer} & names
    given: Array = w
    for t in range(1, 4):
        x = draw((4,), t).astype(np.float32)
        feeds: dict[str, Any] = {"x": x, "w": given, "lr": RATE, **mine}
        if "step" in names:
            feeds["step"] = np.asarray(t, dtype=np.int64)
        assert feeds.keys() <= names
        assert names - feeds.keys() <= fed_by_default
        found = reference(model, feeds)
        w = step(w, 2 * w * x, kept, t).astype(np.float32)
        given = found["w_new"]
        mine = {name: found[f"{name}_new"] for name in mine}
        np.testing.assert_allclose(given, w, rtol=1e-5)


def test_phases_and_state(tmp_path: Path) -> None:
    """What memplan finds in the graph is what it put there."""
    opened = open_text(trained(tmp_path, "adam"))
    graph, phases = opened.graph, opened.phases
    for node in graph.nodes:
        update = node.name.startswith("w/update/")
        backward = "/grad/" in node.name
        wanted = (
            {Phase.UPDATE}
            if update
            else {Phase.BACKWARD}
            if backward
            else {Phase.FORWARD, Phase.LOSS}
        )
        assert phases.of[node.id] in wanted
    pairs = {
        graph.tensors[out].name: graph.tensors[at].name for out, at in pair_outputs(graph).items()
    }
    state = {"w.exp_avg", "w.exp_avg_sq", "step"}
    assert pairs == {f"{name}_new": name for name in ("w", *state)}
    assert {graph.tensors[t].name for t in phases.parameters} == {"w"}
    assert {graph.tensors[t].name for t in phases.state} == state


BAD = ["lamb", "sgd{momentum=0.9}", "adam{beta1=x}", "adam{eps}", "sgd{", "sgd{weight_decay=-1}"]


@pytest.mark.parametrize("text", BAD)
def test_bad_optimizers(text: str) -> None:
    with pytest.raises(UsageError, match="--optimizer"):
        parse_optimizer(text)


def test_options() -> None:
    found: Any = parse_optimizer("adamw{beta1=0.8, weight_decay=0.1}")
    assert (found.beta1, found.beta2, found.weight_decay) == (0.8, 0.999, 0.1)
    assert parse_optimizer("none") is None
