"""Random graphs of which anything may be offloaded: written, simulated anew, proved."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.graphs import open_text
from helpers.offloading import CUDA
from helpers.plans import checked
from helpers.random_graphs import models as random_models
from memplan.equivalence.prove import Side, prove, reference_side
from memplan.errors import InfeasibleError
from memplan.ir.build_graph import build_graph
from memplan.ops.cost import DEVICES, node_costs
from memplan.planning.apply import apply_plan, rewritten_types
from memplan.planning.encode_problem import encode
from memplan.planning.forms.extend_graph import extend
from memplan.planning.forms.on_host import ON_HOST, offloadable
from memplan.planning.plan import Plan
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.simulate.floor import structural_floor
from memplan.simulate.opened import OpenModel, on_devices
from memplan.simulate.timeline import simulate
from memplan.solver.evaluate import evaluate
from memplan.solver.forms import with_forms
from memplan.solver.strategies.builtin import parse_strategy

QUIET = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def proved(model: OpenModel, file: onnx.ModelProto) -> None:
    reference = reference_side(model.prepared, file)
    assert prove(reference, Side(file, Path()), "cuda").proved


@pytest.mark.slow
@settings(QUIET, max_examples=tries(60))
@given(random_models(longest=20), st.randoms(use_true_random=False))
def test_any_reads_back_written_and_simulated_are_as_evaluated(
    proto: onnx.ModelProto, draw: Random
) -> None:
    model = open_text(proto)
    stashes = offloadable(model.graph, CUDA, None, frozenset())
    assume(stashes)
    extended = extend(model.graph, {}, "cuda", offload=stashes)
    timeline = simulate(model.graph, CUDA)
    costs = [1.0] * len(extended.graph.nodes)
    encoded = encode(extended, timeline, costs)
    sequence = with_forms(encoded, encoded.order).tolist()
    for copy in extended.forms:
        (out,) = copy.encode
        for _ in range(draw.randrange(3)):
            sequence.insert(draw.randrange(sequence.index(out) + 1, len(sequence) + 1), copy.decode)
    eager = encoded.arrays.eager
    makers = {*encoded.arrays.maker.tolist(), *encoded.arrays.others.tolist()}
    assume(not any(eager[b] and a in makers for a, b in pairwise(sequence)))
    profile = evaluate(encoded.arrays, np.asarray(sequence, np.int64))
    plan = Plan(
        extended=extended,
        sequence=tuple(sequence),
        budget_bytes=int(profile.total.max()),
        predicted_peak_bytes=int(profile.dynamic.max()),
        predicted_peak_with_workspace_bytes=int(profile.total.max()),
        extra_cost_fraction=0.0,
        bound_fraction=0.0,
        bound_kind="",
        strategy="random",
        recomputed={},
        refusals={},
        floor=structural_floor(model.graph, timeline),
        resident_bytes=0,
        planning_seconds=0.0,
    )
    file = apply_plan(model.prepared.proto, plan, {})
    after = simulate(build_graph(file, rewritten_types(file, plan, model.prepared.types)), CUDA)
    assume(list(after.order) == list(range(len(sequence))))
    assert after.dynamic.tolist() == profile.dynamic.tolist()
    assert after.workspace.tolist() == (profile.total - profile.dynamic).tolist()
    proved(model, file)
    placed = on_devices(open_text(file), CUDA)
    assert placed.devices is not None
    if not placed.devices.host_nodes:
        assert not placed.devices.copies
        assert (
            simulate(placed.graph, CUDA, placed.devices).dynamic_peak_bytes
            == after.dynamic_peak_bytes
        )


@pytest.mark.slow
@settings(QUIET, max_examples=20)
@given(random_models(longest=20), st.floats(0.5, 0.99), st.sampled_from([1e9, 1e12, 1e15]))
def test_plans_keep_their_budget_and_are_no_worse_than_without(
    proto: onnx.ModelProto, share: float, rate: float
) -> None:
    model = open_text(proto)
    whole = simulate(model.graph, CUDA).peak_with_workspace_bytes
    device = replace(DEVICES["h200"], host_bytes_per_second=rate, kernel_seconds=0.0)
    plans = []
    for offload in (False, True):
        request = PlanRequest(
            model.graph,
            CUDA,
            int(share * whole),
            lambda graph: node_costs(graph, device, "cuda"),
            forms=frozenset({ON_HOST} if offload else ()),
        )
        try:
            plans.append(make_plan(prepare(request), parse_strategy("greedy"), 5.0))
        except InfeasibleError:
            plans.append(None)
    without, found = plans
    if without is not None:
        assert found.extra_cost_fraction <= without.extra_cost_fraction + 1e-12
    if found is None:
        return
    prepared = model.prepared
    file = apply_plan(prepared.proto, found, {})
    timeline = checked(prepared, file, found, CUDA)
    assert timeline.peak_with_workspace_bytes <= int(share * whole)
    proved(model, file)
