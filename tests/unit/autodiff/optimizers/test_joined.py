"""Small vectors are updated as one: the same bits, fewer nodes, every value in place."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.gradients import draw, runtime
from helpers.graphs import open_text, parse
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions, TrainingGraph
from memplan.autodiff.optimizers import updates
from memplan.autodiff.optimizers.formulas import KINDS
from memplan.autodiff.optimizers.optimizer import Member
from memplan.equivalence.in_place import unsafe_pairs
from memplan.ir.contract import find_contract
from memplan.ir.graph import Phase
from memplan.proto.metadata import get_metadata
from memplan.shapes.tensor_type import TensorType

# Five vectors of three lengths, and a matrix.
FORWARD = """
    g (float[6,8] x) => (float loss)
    { n = LayerNormalization(x, scale, bias) h = MatMul(n, w) i = Add(h, b1) j = Tanh(i)
      k = Mul(j, gain) p = Sum(k, b2) q = Mul(p, p) loss = ReduceSum<keepdims = 0>(q) }"""
_OF_LAYER = {"scale": (8,), "bias": (8,), "w": (8, 5), "b1": (5,), "gain": (5,), "b2": (1,)}
SHAPES = {f"h.0.{name}": shape for name, shape in _OF_LAYER.items()}
STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum", "square_avg", "grad_avg")
VECTORS = tuple(name for name, shape in SHAPES.items() if len(shape) == 1)


def trained(optimizer: str, **options: Any) -> TrainingGraph:
    model = parse(FORWARD)
    for node in model.graph.node:
        node.input[:] = [f"h.0.{name}" if name in _OF_LAYER else name for name in node.input]
    for k, (name, shape) in enumerate(SHAPES.items()):
        tensor = onnx.numpy_helper.from_array(draw(shape, k).astype(np.float32), name)
        model.graph.initializer.append(tensor)
    return grad(model, GradOptions("loss", wrt=tuple(SHAPES), optimizer=optimizer, **options))


def fed(model: onnx.ModelProto) -> dict[str, Any]:
    """A batch, values and states of a second step."""
    feeds: dict[str, Any] = {"x": draw((6, 8), 9).astype(np.float32)}
    there = {value.name for value in model.graph.input}
    if "step" in there:
        feeds["step"] = np.asarray(2, np.int64)
    for k, (name, shape) in enumerate(SHAPES.items()):
        feeds[name] = draw(shape, k).astype(np.float32)
        for kind in STATES:
            if f"{name}.{kind}" in there:
                feeds[f"{name}.{kind}"] = np.abs(draw(shape, k + 50)).astype(np.float32)
    return feeds


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node if "/update/" in node.name)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("adamw", {}),
        ("adam{weight_decay=0.1,amsgrad=1,maximize=1}", {}),
        ("adamw{clip_norm=0.1}", {}),
        ("adamw{clip_value=0.01}", {}),
        ("adamw", {"loss_scale": "dynamic"}),
        ("sgd{weight_decay=0.1}", {}),
        ("momentum{dampening=0.5,weight_decay=0.1}", {}),
        ("lion{weight_decay=0.1,clip_norm=1}", {}),
        ("rmsprop{centered=1,momentum=0.5}", {}),
    ],
)
def test_joined_updates_give_the_same_bits(
    optimizer: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = trained(optimizer, **options)
    monkeypatch.setattr(updates, "_FEWEST", 100)
    alone = trained(optimizer, **options)
    found, wanted = (runtime(graph.model, fed(graph.model)) for graph in (together, alone))
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].tobytes() == value.tobytes(), name
    assert kinds(together.model)["Mul"] < kinds(alone.model)["Mul"]
    assert bool(kinds(together.model)["Split"]) > bool(kinds(alone.model)["Split"])


def test_only_what_is_small_and_alike_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """No group for the vector that does not decay, nor for other optimizers."""
    assert kinds(trained("adamw").model)["Sqrt"] == 3  # the matrix, the vectors, the correction
    assert kinds(trained("adamw{no_decay=h.0.b2}").model)["Sqrt"] == 4
    assert (
        kinds(trained("adamw{no_decay=h.0.b*}").model)["Split"] == 0
    )  # two groups, of two and three
    assert kinds(trained("radam").model)["Split"] == 0
    assert kinds(trained("nadam").model)["Split"] == 0
    monkeypatch.setattr(updates, "_MOST_ELEMENTS", 7)
    assert kinds(trained("adamw").model)["Split"] == 0


def test_layers_do_not_wait_for_each_other() -> None:
    """A new value that is asked for alone needs the backward pass of its layer alone."""
    kinds = ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias")
    names = [f"stages.{s}.blocks.{b}.{kind}" for s in "01" for b in "01" for kind in kinds]
    names += ["stages.0.down.weight", "norm.weight", "norm.bias", "head.bias", "cls"]
    member = Member(KINDS["adamw"]())
    types = dict.fromkeys(names, TensorType(onnx.TensorProto.FLOAT, (8,)))
    found = updates.joined_names(dict.fromkeys(names, member), types)
    groups = set(found.values())
    assert groups == {tuple(names[k : k + 4]) for k in range(0, 16, 4)}


@pytest.mark.parametrize("options", [{}, {"own_update": True}, {"loss_scale": "dynamic"}])
def test_every_new_value_may_be_written_over_the_old_one(options: dict[str, Any]) -> None:
    found = trained("adamw", **options)
    model = found.model if found.update is None else found.update.model
    opened = open_text(model)
    contract = find_contract(opened.graph, opened.phases, get_metadata(model))
    pairs = dict(contract.new_values)
    assert {f"{name}{kind}_new" for name in VECTORS for kind in ("", ".exp_avg")} <= pairs.keys()
    assert unsafe_pairs(model, pairs) == {}
    graph = opened.graph
    assert {opened.phases.of[n.id] for n in graph.nodes if n.op == "Split"} == {Phase.UPDATE}
