"""What a file says of its inputs and outputs is believed, where it fits the graph."""

from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.graphs import open_text, parse
from memplan.ir.contract import find_contract
from memplan.ir.reach import trained_outputs
from memplan.ir.roles import Role
from memplan.ir.stated import read_stated
from memplan.proto.metadata import get_metadata, set_metadata
from memplan.simulate.opened import OpenModel

# Names say nothing, and by their shapes the gradients would be paired the wrong way round.
STEP = """
    g (float[4,4] x, float[4,4] w1, float[4,4] w2, float[4] mean)
        => (float first, float second, float[4,4] o2, float[4,4] o1, float[4] o3) {
        axis = Constant <value_ints = [0]> ()
        now = ReduceMean <keepdims = 0> (x, axis)
        o3 = Add(mean, now)
        c = Sub(x, mean)
        a = MatMul(c, w1)
        b = MatMul(a, w2)
        first = ReduceMax <keepdims = 0> (b)
        second = ReduceMean <keepdims = 0> (b)
        g = Shape(b)
        f = Expand(second, g)
        o2 = Gemm <transA = 1> (a, f)
        o1 = Gemm <transA = 1> (c, f)
    }"""
SAID: dict[str, object] = {
    "roles": {"second": "loss", "mean": "running-statistic", "w1": "parameter", "w2": "parameter"},
    "new_values": {"o3": "mean"},
    "gradients": {"o1": "w1", "o2": "w2"},
}


def step(said: dict[str, object]) -> OpenModel:
    model = parse(STEP)
    set_metadata(model, said)
    return open_text(model)


def by_name(model: OpenModel) -> dict[str, str]:
    tensors = model.graph.tensors
    return {tensors[o].name: tensors[i].name for o, i in model.phases.pairs.items()}


def test_pairs_loss_and_parameters_are_those_that_the_file_states() -> None:
    model = step(SAID)
    tensors = model.graph.tensors
    assert by_name(model) == {"o1": "w1", "o2": "w2", "o3": "mean"}
    assert model.phases.loss is not None
    assert tensors[model.phases.loss].name == "second"
    assert {tensors[t].name for t in model.phases.parameters} == {"w1", "w2"}
    assert {tensors[t].name for t in model.phases.state} == {"mean"}
    owners = trained_outputs(model.graph, model.phases)
    names = {tensors[o].name: {tensors[t].name for t in found} for o, found in owners.items()}
    assert names == {"o1": {"w1"}, "o2": {"w2"}}
    unsaid = step({})
    assert by_name(unsaid) != by_name(model)
    assert unsaid.graph.tensors[unsaid.phases.loss or 0].name == "first"


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ({"roles": 3, "new_values": [], "gradients": "w1"}, 0),
        ({"new_values": {"o3": "w1", "o1": "o2", "x": "w1", "none": "w1"}}, 1),
        ({"new_values": {"o3": "mean", "o2": 3}}, 0),
        ({"gradients": {"o1": "mean", "none": "w1", "w1": "w1", "o2": "none"}}, 2),
        ({"roles": {"none": "loss", "second": ["loss"]}}, 0),
        ({"roles": {"w1": "loss", "second": "batch", "o1": "none", "mean": "step-counter"}}, 0),
        ({"gradients": {"first": "w1"}, "new_values": {"o3": "o3"}}, 1),
    ],
)
def test_what_does_not_fit_is_not_believed(said: dict[str, Any], refused: int) -> None:
    model = step(said)
    found = read_stated(model.graph, get_metadata(model.prepared.proto))
    assert len(found.refused) == refused
    assert not found.roles
    assert not found.pairs
    assert by_name(model) == by_name(step({}))


def test_of_two_outputs_for_one_input_the_first_is_taken_and_the_other_refused() -> None:
    model = step({"new_values": {"o1": "w1", "o2": "w1"}, "gradients": {"o1": "w2", "o2": "w2"}})
    found = read_stated(model.graph, get_metadata(model.prepared.proto))
    assert dict(found.pairs) == {"o2": "w1"}
    assert "'o2' and 'o1'" in found.refused[0]


def test_a_graph_of_updates_has_no_loss_and_takes_gradients() -> None:
    forward = parse(
        """g (float[4,8] x) => (float loss)
        { a = MatMul(x, w)  loss = ReduceSum <keepdims = 0> (a) }"""
    )
    forward.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 2), np.float32), "w"))
    options = memplan.GradOptions("loss", wrt=("w",), optimizer="adamw", own_update=True)
    made = memplan.grad(forward, options).update
    model = open_text(made.model)
    tensors = model.graph.tensors
    assert model.phases.loss is None
    assert {tensors[t].name for t in model.phases.parameters} == {"w"}
    state = {"w.exp_avg", "w.exp_avg_sq", "step"}
    assert {tensors[t].name for t in model.phases.state} == state
    found = find_contract(model.graph, model.phases, get_metadata(made.model))
    assert found.gradients == {"w_grad": "w"}
    assert found.named(Role.GRADIENT) == ("w_grad",)
    assert found.roles == made.contract.roles
    assert found.new_values == made.contract.new_values
