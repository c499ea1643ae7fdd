"""Optimizer models folded into the step: steps of training against formulas and PyTorch."""

from typing import Any

import numpy as np
import onnx
import pytest

from helpers import ort_artifacts as made
from helpers.gradients import runtime
from helpers.lowering import lowered, node
from memplan.api.lower import LoweredGraph
from memplan.autodiff.lowering.optimizer_model import optimizer_text, read_optimizer
from memplan.errors import ModelError
from memplan.ir.graph import Phase
from memplan.ir.roles import Role
from memplan.proto.metadata import PHASE_KEY, node_metadata

STEPS = 4
Array = Any


def step_of(
    op: str = "AdamWOptimizer", clip: float | None = None, **attributes: Any
) -> LoweredGraph:
    optimizer = read_optimizer(made.optimizer_model(op, clip, **attributes), "optimizer_model.onnx")
    return lowered(made.training_model(), optimizer=optimizer)


def trained(found: LoweredGraph, rate: float | None = None) -> list[dict[str, Array]]:
    """The parameters after each step; state begins at zero, and the counter by its default."""
    state = {n: v for n, v in made.feeds().items() if n in made.SIZES}
    roles = found.contract.roles
    for name in found.contract.named(Role.OPTIMIZER_STATE):
        state[name] = np.zeros(made.SIZES[name.rpartition(".")[0]], np.float32)
    history = []
    for k in range(STEPS):
        batch = {n: v for n, v in made.feeds(seed=k).items() if n in ("x", "labels")}
        if rate is not None:
            batch["lr"] = np.asarray(rate, np.float32)
        values = runtime(found.model, {**state, **batch})
        state |= {old: values[new] for new, old in found.contract.new_values.items()}
        history.append({n: state[n] for n in made.TRAINED})
        if "step" in roles:
            assert int(state["step"]) == k + 2
    return history


def gradients(state: dict[str, Array], k: int) -> dict[str, Array]:
    model = lowered(made.training_model()).model
    batch = {n: v for n, v in made.feeds(seed=k).items() if n in ("x", "labels")}
    return runtime(model, {**state, **batch})


def by_formula(rate: float, mode: int, decay: float, eps: float) -> list[dict[str, Array]]:
    """AdamW as onnxruntime-training's kernels have it (orttraining/training_ops/cpu/optimizer)."""
    state = {n: v.astype(np.float64) for n, v in made.feeds().items() if n in made.SIZES}
    first = {n: np.zeros(made.SIZES[n]) for n in made.TRAINED}
    second = {n: np.zeros(made.SIZES[n]) for n in made.TRAINED}
    history = []
    for k in range(STEPS):
        found = gradients({n: v.astype(np.float32) for n, v in state.items()}, k)
        for name in made.TRAINED:
            g, w = found[f"{name}_grad"].astype(np.float64), state[name]
            m = first[name] = 0.9 * first[name] + 0.1 * g
            v = second[name] = 0.999 * second[name] + 0.001 * g * g
            c1, c2 = 1 - 0.9 ** (k + 1), 1 - 0.999 ** (k + 1)
            if mode == 0:
                w = w - w * rate * decay
                state[name] = w - rate * m / (c1 * (np.sqrt(v) / np.sqrt(c2) + eps))
            else:
                w = w - rate * np.sqrt(c2) / c1 * m / (np.sqrt(v) + eps)
                state[name] = w - rate * decay * w
        history.append({n: state[n].copy() for n in made.TRAINED})
    return history


def compare(found: list[dict[str, Array]], wanted: list[dict[str, Array]]) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        for name in made.TRAINED:
            np.testing.assert_allclose(mine[name], theirs[name], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adamw(mode: int, decay: float) -> None:
    found = step_of(adam_mode=mode, weight_decay=decay, epsilon=1e-3)
    compare(trained(found, 0.01), by_formula(0.01, mode, decay, 1e-3))


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("op", ["AdamWOptimizer", "SGDOptimizerV2"])
def test_against_pytorch(op: str, clip: float | None) -> None:
    torch: Any = pytest.importorskip("torch")
    start = {n: torch.tensor(v) for n, v in made.feeds().items() if n in made.SIZES}
    weights = [start[n].requires_grad_() for n in made.TRAINED]
    adam = op == "AdamWOptimizer"
    optimizer = torch.optim.AdamW(weights, lr=0.01) if adam else torch.optim.SGD(weights, lr=0.01)
    history = []
    for k in range(STEPS):
        batch = made.feeds(seed=k)
        hidden = torch.nn.functional.linear(
            torch.tensor(batch["x"]), start["fc1.weight"], start["fc1.bias"]
        )
        scores = torch.nn.functional.linear(
            torch.relu(hidden * start["fc1.gate"]), start["fc2.weight"], start["fc2.bias"]
        )
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(scores, torch.tensor(batch["labels"])).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(weights, clip)
        optimizer.step()
        history.append({n: start[n].detach().numpy().copy() for n in made.TRAINED})
    compare(trained(step_of(op, clip), 0.01), history)


def test_what_the_file_says() -> None:
    found = step_of(clip=1.0)
    graph, contract = found.model.graph, found.contract
    names = [value.name for value in graph.output]
    assert not [name for name in names if name.endswith("_grad")]
    assert not contract.gradients
    assert contract.new_values["fc1.weight_new"] == "fc1.weight"
    assert contract.new_values["fc1.weight.exp_avg_new"] == "fc1.weight.exp_avg"
    assert contract.new_values["step_new"] == "step"
    assert contract.roles["step"] is Role.STEP_COUNTER
    assert contract.roles["lr"] is Role.HYPERPARAMETER
    assert contract.roles["fc1.gate"] is Role.PARAMETER  # frozen: nothing renews it
    assert "fc1.gate" not in contract.new_values.values()
    defaults = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    assert (defaults["lr"].item(), defaults["step"].item()) == (np.float32(1e-3), 1)
    assert not {name for name in defaults if ".exp_avg" in name}
    told = [node_metadata(item).get(PHASE_KEY) for item in graph.node]
    assert told.count(Phase.UPDATE) > 20
    onnx.checker.check_model(found.model, full_check=True)


def test_a_gradient_of_what_the_graph_computes() -> None:
    """It is an output without an optimizer, and updates nothing with one."""
    model = made.training_model()
    model.graph.output.append(onnx.helper.make_tensor_value_info("h_grad", 1, ["N", 6]))
    plain = lowered(model)
    assert "h_grad" in runtime(plain.model, made.feeds())
    assert "h_grad" not in plain.contract.gradients
    optimizer = read_optimizer(made.optimizer_model(), "optimizer_model.onnx")
    renewed = lowered(model, optimizer=optimizer).contract.new_values
    assert set(made.TRAINED) < set(renewed.values())
    assert "h" not in renewed.values()


def places(found: LoweredGraph) -> dict[str, tuple[int, int, int]]:
    """For each parameter: its last reader, its first and its last node of the update."""
    order = found.model.graph.node
    own = {n: f"{n}/update" for n in made.TRAINED}
    readers = {
        n: [k for k, item in enumerate(order) if n in item.input and not item.name.startswith(p)]
        for n, p in own.items()
    }
    steps = {n: [k for k, i in enumerate(order) if i.name.startswith(p)] for n, p in own.items()}
    return {n: (readers[n][-1], steps[n][0], steps[n][-1]) for n in own}


def test_updates_stand_behind_what_reads_their_parameters() -> None:
    """So that a session may write the new value over the old one; and as early as that allows."""
    found = step_of()
    told = [node_metadata(item).get(PHASE_KEY) for item in found.model.graph.node]
    last = max(k for k, phase in enumerate(told) if phase == Phase.BACKWARD)
    for reader, first, _ in places(found).values():
        assert reader < first
    assert places(found)["fc2.weight"][2] < last
    assert places(found)["fc2.bias"][2] < last


def test_clipping_waits_for_all_gradients() -> None:
    found = step_of(clip=1.0)
    told = [node_metadata(item).get(PHASE_KEY) for item in found.model.graph.node]
    last = max(k for k, phase in enumerate(told) if phase == Phase.BACKWARD)
    assert all(end > last for _, _, end in places(found).values())


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("adamw", {}),
        ("adamw{weight_decay=0, eps=1e-06}", {"epsilon": 1e-6, "weight_decay": 0.0}),
        ("adamw{late=1}", {"adam_mode": 1}),
        ("adamw{clip_norm=0.5}", {"clip": 0.5}),
        ("sgd{clip_norm=0.5}", {"op": "SGDOptimizerV2", "clip": 0.5}),
    ],
)
def test_what_is_said_of_it(text: str, attributes: dict[str, Any]) -> None:
    assert optimizer_text(read_optimizer(made.optimizer_model(**attributes), "o")) == text


def test_other_models_are_no_optimizers() -> None:
    with pytest.raises(ModelError, match="no update is known for Gemm"):
        read_optimizer(made.training_model(), "t.onnx")
    lamb = made.optimizer_model()
    lamb.graph.node[0].op_type = "LambOptimizer"
    with pytest.raises(ModelError, match="no update is known for LambOptimizer"):
        read_optimizer(lamb, "o.onnx")
    with pytest.raises(ModelError, match=r"o\.onnx: .* AdamWOptimizer with correct_bias=0"):
        read_optimizer(made.optimizer_model(correct_bias=0), "o.onnx")
    two = made.optimizer_model()
    two.graph.node.append(node("SGDOptimizerV2", "learning_rate params gradients", "done"))
    with pytest.raises(ModelError, match="2 optimizers"):
        read_optimizer(two, "o.onnx")


def test_a_graph_without_gradients_has_nothing_to_update() -> None:
    model = made.training_model()
    kept = [copy for copy in model.graph.node if copy.op_type != "InPlaceAccumulatorV2"]
    nodes = [onnx.NodeProto.FromString(item.SerializeToString()) for item in kept]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    outputs = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in model.graph.output]
    del model.graph.output[:]
    model.graph.output.extend(outputs[:2])
    optimizer = read_optimizer(made.optimizer_model(), "o")
    with pytest.raises(ModelError, match="nothing to update"):
        lowered(model, optimizer=optimizer)
