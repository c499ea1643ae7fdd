"""Plans keep every reader of an old value before what writes over it."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers.graphs import open_text
from helpers.plans import checked
from helpers.state_graphs import state_step
from memplan import RewriteOptions, analyze, rewrite
from memplan.api.state_modes import confirmed, settled
from memplan.equivalence.in_place import unsafe_pairs
from memplan.errors import InfeasibleError
from memplan.ops.cost import device_for
from memplan.ops.memory import semantics
from memplan.planning.apply import apply_plan
from memplan.planning.costs import NodeCosts
from memplan.planning.late_views import late_views
from memplan.planning.plan import Rejected
from memplan.planning.planner import make_plan, plan_request, prepare
from memplan.shapes.prepare import prepare as prepare_model
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.session import session_kind
from memplan.solver.evaluate import IMPOSSIBLE, evaluate
from memplan.solver.strategies.builtin import parse_strategy
from memplan.units import parse_size

TUNED = session_kind("tuned")
COSTS = NodeCosts("estimate", device_for("cpu"), "cpu")


def _bound(seed: int) -> OpenModel:
    model = opened(prepare_model(state_step(seed, layers=9), Path("m.onnx"), {}))
    return settled(model, TUNED, ("in-place",))


def _pairs(model: OpenModel) -> dict[str, str]:
    state, tensors = model.graph.state, model.graph.tensors
    assert state is not None
    return {tensors[o].name: tensors[i].name for o, i in state.in_place.items()}


def test_what_another_order_may_put_in_place_is_asked_about_too() -> None:
    """Here ``y`` reads the old value last, so ``w_new`` is apart; its shape is not stated."""
    model = open_text(
        "g (float[4] x, float[4] w) => (float[4] y, float[4] w_new)"
        " { w_new = Sub(w, x) y = Mul(w_new, w) }"
    )
    model.prepared.proto.graph.output[1].type.tensor_type.ClearField("shape")
    held = confirmed(settled(model, TUNED, ("in-place",))).graph.state
    assert held is not None
    assert "not stated" in held.refused["w_new"]


def test_a_view_that_reads_an_old_value_as_its_shape_stays_before_the_update() -> None:
    model = open_text(
        "g (float[4] x, int64[1] n, int64[1] one) => (float[4] y, int64[1] n_new) <float[4] v>"
        " { v = Reshape(x, n) n_new = Add(n, one) y = Exp(v) }"
    )
    graph = settled(model, TUNED, ("in-place",)).graph
    assert graph.state is not None
    assert graph.state.before
    assert late_views(graph, [0, 1, 2], semantics("cpu")) == [0, 1, 2]


def test_a_sequence_that_reads_what_is_written_over_is_impossible() -> None:
    model = _bound(0)
    state = model.graph.state
    assert state is not None
    arrays = prepare(plan_request(model, TUNED, COSTS)).problem.arrays
    order = np.arange(len(model.graph.nodes))
    assert evaluate(arrays, order).total.max() < IMPOSSIBLE
    maker, before = next((m, b) for m, b in state.before.items() if b)
    late = np.append(order, min(before))  # a recomputation from the old value, behind its update
    assert maker in order
    assert evaluate(arrays, late).total.max() >= IMPOSSIBLE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "strategy"), list(enumerate(("auto", "greedy", "segments", "min-cut", "mirror")))
)
def test_no_strategy_reads_what_is_written_over(seed: int, strategy: str) -> None:
    model = _bound(seed)
    found = analyze(model.prepared.proto)
    peak, floor = found.timeline.peak_with_workspace_bytes, found.floor_with_workspace_bytes
    options = RewriteOptions(
        parse_size(str((peak + floor) // 2)),
        strategy=strategy,
        optimize="none",
        time_limit=0.5,
        passes="none",
    )
    try:
        result = rewrite(model.prepared.proto, options)
    except InfeasibleError:
        return
    graph = result.timeline.graph
    assert graph.state is not None
    in_place = {
        graph.tensors[o].name: graph.tensors[i].name for o, i in graph.state.in_place.items()
    }
    assert in_place.keys() >= _pairs(model).keys()
    assert unsafe_pairs(result.model, in_place) == {}


@pytest.mark.rejects
def test_a_file_that_reads_an_old_value_too_late_is_not_written() -> None:
    model = _bound(0)
    prepared = prepare(plan_request(model, TUNED, COSTS, 1 << 40))
    plan = make_plan(prepared, parse_strategy("greedy"), 1.0)
    result = apply_plan(model.prepared.proto, plan, {})
    state = model.graph.state
    assert state is not None
    maker, before = next((m, b) for m, b in state.before.items() if b)
    nodes = {node.name: node for node in result.graph.node}
    reader = onnx.NodeProto()
    reader.CopyFrom(nodes[model.graph.nodes[min(before)].name])
    reader.name = "late"
    for slot, name in enumerate(reader.output):
        reader.output[slot] = f"{name}/late"
    result.graph.node.append(reader)
    assert maker >= 0
    with pytest.raises(Rejected, match="in place"):
        checked(model.prepared, result, plan)
