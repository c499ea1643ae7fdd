"""The planner's evaluator against the simulator, and the search against itself, at random."""

from dataclasses import replace
from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.graphs import TUNED, open_text, random_order
from helpers.problems import Case, Clock, Op
from helpers.random_graphs import models as random_models
from memplan.deadline import Deadline
from memplan.ir.build_graph import build_graph
from memplan.ir.graph import Graph
from memplan.planning.apply import apply_plan, rewritten_types
from memplan.planning.encode_problem import encode
from memplan.planning.forms.extend_graph import Extended, extend
from memplan.planning.plan import Plan
from memplan.simulate.floor import Floor, structural_floor
from memplan.simulate.opened import OpenModel
from memplan.simulate.run_order import execution_order
from memplan.simulate.timeline import simulate
from memplan.solver.evaluate import MemoryProfile, evaluate
from memplan.solver.problem import NONE, Decision, Ints, Problem
from memplan.solver.search.anytime import solve
from memplan.solver.search.params import SearchOptions

QUIET = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def encoded_model(proto: onnx.ModelProto) -> tuple[OpenModel, Extended, Problem]:
    """A model with its graph, extended and encoded; every node costs a second."""
    model = open_text(proto)
    extended = extend(model.graph, {}, "cpu")
    timeline = simulate(model.graph, TUNED)
    return model, extended, encode(extended, timeline, [1.0] * len(extended.graph.nodes))


def without_unread_statistics(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without optional outputs that nobody reads, as every rewritten file is."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    read = {name for node in result.graph.node for name in node.input}
    read |= {value.name for value in result.graph.output}
    for node in result.graph.node:
        if node.op_type == "LayerNormalization":
            for slot in (1, 2):
                if slot < len(node.output) and node.output[slot] not in read:
                    node.output[slot] = ""
    return result


@settings(QUIET, max_examples=tries(200))
@given(random_models())
def test_the_evaluator_is_the_simulator_in_the_original_order(proto: onnx.ModelProto) -> None:
    model, _, encoded = encoded_model(without_unread_statistics(proto))
    timeline = simulate(model.graph, TUNED)
    order = np.asarray(execution_order(model.graph, TUNED), np.int64)
    profile = evaluate(encoded.arrays, order)
    assert profile.dynamic.tolist() == timeline.dynamic.tolist()
    assert (profile.total - profile.dynamic).tolist() == timeline.workspace.tolist()


@settings(QUIET, max_examples=tries(100))
@given(random_models())
def test_views_made_late_change_no_peak(proto: onnx.ModelProto) -> None:
    model, _, encoded = encoded_model(proto)
    order = np.asarray(execution_order(model.graph, TUNED), np.int64)
    late = encoded.order
    assert sorted(late) == sorted(order)
    for field in ("dynamic", "total"):
        plain, moved = (getattr(evaluate(encoded.arrays, o), field).max() for o in (order, late))
        assert plain == moved


def random_sequence(graph: Graph, encoded: Problem, draw: Random) -> Ints:
    """A random order with up to eight nodes run again, at any place that the runtime respects."""
    sequence = random_order(graph, draw)
    eager = encoded.arrays.eager
    makers = sorted({int(node) for node in encoded.arrays.maker if node != NONE})
    for _ in range(draw.randrange(9)):
        node = draw.choice(makers)
        places = [
            place
            for place in range(sequence.index(node) + 1, len(sequence) + 1)
            if place == len(sequence) or not eager[sequence[place]]
        ]
        if places:
            sequence.insert(draw.choice(places), node)
    return np.asarray(sequence, np.int64)


def plan_of(extended: Extended, sequence: Ints, profile: MemoryProfile, floor: Floor) -> Plan:
    """A plan for any sequence, whatever it needs."""
    peak, loaded = int(profile.dynamic.max()), int(profile.total.max())
    return Plan(
        extended=extended,
        sequence=tuple(int(node) for node in sequence),
        budget_bytes=loaded,
        predicted_peak_bytes=peak,
        predicted_peak_with_workspace_bytes=loaded,
        extra_cost_fraction=0.0,
        bound_fraction=0.0,
        bound_kind="",
        strategy="random",
        recomputed={},
        refusals={},
        floor=floor,
        resident_bytes=0,
        planning_seconds=0.0,
    )


@pytest.mark.slow
@settings(QUIET, max_examples=tries(300))
@given(random_models(longest=30), st.randoms(use_true_random=False))
def test_a_random_sequence_written_and_simulated_is_as_evaluated(
    proto: onnx.ModelProto, draw: Random
) -> None:
    model, extended, encoded = encoded_model(proto)
    sequence = random_sequence(model.graph, encoded, draw)
    profile = evaluate(encoded.arrays, sequence)
    floor = structural_floor(model.graph, simulate(model.graph, TUNED))
    plan = plan_of(extended, sequence, profile, floor)
    rewritten = apply_plan(model.prepared.proto, plan, {})
    graph = build_graph(rewritten, rewritten_types(rewritten, plan, model.prepared.types))
    timeline = simulate(graph, TUNED)
    assert list(timeline.order) == list(range(len(sequence)))
    assert timeline.dynamic.tolist() == profile.dynamic.tolist()
    assert timeline.workspace.tolist() == (profile.total - profile.dynamic).tolist()
    # No schedule goes below the floor, recomputation or not.
    assert floor.nbytes <= profile.dynamic.max()
    assert floor.with_workspace <= profile.total.max()
    onnx.checker.check_model(rewritten)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A chain with skips, views, in-place nodes, workspace, nodes that must not run again, and
    rebuild rules for some of those."""
    ops = [Op("n0", "x", draw(st.integers(1, 8)), 1.0)]
    for k in range(1, draw(st.integers(6, 24))):
        reads = f"n{k - 1}"
        if draw(st.integers(0, 2)):
            reads += f" n{draw(st.integers(0, k - 1))}"
        like = draw(st.sampled_from(("", "", "", "view", "inplace")))
        ops.append(
            Op(
                f"n{k}",
                reads,
                0 if like == "view" else draw(st.integers(1, 8)),
                0.0 if like == "view" else float(draw(st.integers(1, 9))),
                like,
                workspace=draw(st.sampled_from((0, 0, 0, 4))),
                again=draw(st.integers(0, 5)) > 0,
                output=draw(st.integers(0, 9)) == 0,
            )
        )
    for op in [op for op in ops if not op.again and not op.like]:
        if draw(st.booleans()):
            source = draw(st.sampled_from(["x", *(f"n{k}" for k in range(int(op.name[1:])))]))
            part = f"{op.name}part"
            ops.append(Op(part, source, op.nbytes, 1.0, rebuilds=part, behind=op.name))
            ops.append(Op(f"{op.name}again", part, op.nbytes, 1.0, rebuilds=op.name))
    return Case(*ops)


def solved(case: Case, budget: int, options: SearchOptions, seconds: float = 1e6) -> Decision:
    """Solve by a clock of its own, so that the answer does not depend on the machine."""
    return solve(case.problem(budget), Deadline(seconds, Clock()), options)


@pytest.mark.slow
@settings(QUIET, max_examples=tries(150))
@given(cases(), st.data())
def test_a_tighter_budget_is_never_cheaper(case: Case, data: st.DataObject) -> None:
    peak = case.peak(case.order)
    greedy = SearchOptions(order=False)
    reached = [b for b in range(peak * 3 // 5, peak) if solved(case, b, greedy, 0.0).feasible]
    assume(len(reached) > 1)
    tight, loose = sorted(data.draw(st.sampled_from(reached)) for _ in range(2))
    options = SearchOptions(order=False, iterations=60)
    first, second = solved(case, loose, options), solved(case, tight, options)
    assert first.feasible
    assert second.feasible
    assert first.extra_cost <= second.extra_cost + 1e-9


@pytest.mark.slow
@settings(QUIET, max_examples=tries(150))
@given(cases(), st.data(), st.booleans())
def test_a_decision_is_what_it_says(case: Case, data: st.DataObject, order: bool) -> None:
    peak = case.peak(case.order)
    budget = data.draw(st.integers(peak // 2, peak), "budget")
    decision = solved(case, budget, SearchOptions(order=order, iterations=20), 60.0)
    assert decision.peak == case.peak(decision.sequence)
    assert decision.feasible == (decision.peak <= budget)
    cost = case.arrays.cost[decision.sequence].sum() - case.arrays.cost[case.order].sum()
    assert abs(decision.extra_cost - cost) < 1e-9
    again = {int(node) for node in case.arrays.maker if node != NONE}
    runs = np.bincount(decision.sequence, minlength=len(case.ops))
    assert runs[case.order].min() >= 1
    assert set(np.flatnonzero(runs[: len(case.order)] > 1).tolist()) <= again
    made = set(range(case.resident))
    for node in decision.sequence:
        op = case.ops[node]
        assert {case.tensors[name] for name in op.reads.split()} <= made
        made.add(case.tensors[op.rebuilds or op.name])


def test_a_plan_can_be_rewritten_twice() -> None:
    """Applying a plan leaves the model that it was made from alone."""
    proto = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[4] x) => (float[4] y) { [a] a = Exp(x) [b] b = Neg(a) [y] y = Add(a, b) }
    """)
    model, extended, encoded = encoded_model(proto)
    sequence = np.asarray([0, 1, 0, 2], np.int64)
    floor = structural_floor(model.graph, simulate(model.graph, TUNED))
    plan = plan_of(extended, sequence, evaluate(encoded.arrays, sequence), floor)
    before = model.prepared.proto.SerializeToString()
    first = apply_plan(model.prepared.proto, plan, {})
    assert model.prepared.proto.SerializeToString() == before
    second = apply_plan(model.prepared.proto, replace(plan), {})
    assert first.SerializeToString() == second.SerializeToString()
