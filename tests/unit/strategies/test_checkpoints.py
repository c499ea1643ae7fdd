"""Checkpoints by kind, bottleneck, name and mark: hand-worked choices, and plans that hold."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers.graphs import graph_of, open_text, parse
from helpers.models import SAMPLES
from helpers.problems import Case, Op
from helpers.running import Memplan, runner
from helpers.steps import chain, check, problem_of, random_step
from helpers.training_steps import saved_step, with_dropout
from memplan.api.rewrite.run import RewriteOptions, rewrite
from memplan.api.validate.run import ValidateOptions, validate
from memplan.errors import UsageError
from memplan.ir.phases import differentiated, find_phases
from memplan.planning.labels import labels_of
from memplan.proto.marks import KEY, carry_marks, marked_names
from memplan.solver.problem import Labels, Problem
from memplan.solver.search import anytime as search
from memplan.strategies.bottlenecks import Flow, spaced
from memplan.strategies.builtin import list_strategies, parse_strategy
from memplan.strategies.checkpoints import Named
from memplan.strategies.keepset import step_of
from memplan.units import parse_size

SECONDS = 30.0
MODEL = SAMPLES / "mlp_adamw.onnx"
NAMES = ("speed", "memory", "list{names=addmm*}", "collection")


@pytest.fixture(scope="module", autouse=True)
def machine_code() -> None:
    """Compile before anything is timed."""
    search.warm_up()


@pytest.fixture
def inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Memplan:
    """Runs the program in this process."""
    return runner(tmp_path, monkeypatch, capfd)


def labelled(
    case: Case,
    problem: Problem,
    marked: str = "",
    unfit: str = "",
    aside: str = "",
    small: str = "",
) -> Problem:
    """The problem with labels: big tensors but the ``small``, nodes on the way but ``aside``."""
    names = tuple(case.tensors)
    assert problem.forward is not None
    ops = [op.name for op in case.ops]
    labels = Labels(
        names,
        np.isin(names, marked.split()),
        np.where(np.isin(names, small.split()), 5, 2000),
        np.isin(names, unfit.split()),
        problem.forward & ~np.isin(ops, aside.split()),
    )
    return replace(problem, labels=labels)


def plan(case: Case, problem: Problem, name: str) -> str:
    """The sequence, after the checks that every decision must pass."""
    decision = parse_strategy(name).solve(problem, SECONDS).decision
    check(problem, decision, case)
    return case.text(decision.sequence)


def bottlenecks(case: Case, problem: Problem) -> str:
    """Names of the bottlenecks among all tensors."""
    flow, names = Flow(step_of(problem), 1024), list(case.tensors)
    return " ".join(names[t] for t in flow.bottlenecks(flow.tensors))


def chosen(case: Case, problem: Problem) -> str:
    """Names of the checkpoints that ``memory`` chooses."""
    names = list(case.tensors)
    return " ".join(names[t] for t in Flow(step_of(problem), 1024).checkpoints())


# --- Speed -----------------------------------------------------------------------------------


def test_products_stay_and_the_rest_runs_again() -> None:
    # Before b4: f4 again, from f3. First runs that then serve nobody are left out.
    case = chain(4)
    problem = problem_of(case, 1, intensive="f1 f3")
    assert plan(case, problem, "speed") == "f1 f2 f3 f4 loss b4 b3 f2 b2 b1"


def test_products_beside_the_way_do_not_count() -> None:
    case = chain(4)
    problem = labelled(case, problem_of(case, 9, intensive="f1 b3"), aside="f1")
    with pytest.raises(UsageError, match="no convolution and no matrix product"):
        parse_strategy("speed").solve(problem, SECONDS)
    with pytest.raises(UsageError, match="no convolution and no matrix product"):
        parse_strategy("speed").solve(replace(problem, intensive=None), SECONDS)


# --- Memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "saved", "kept"),
    [
        # At most ceil(sqrt(saved)): all. Else every step-th from the step-th on.
        (3, 9, [0, 1, 2]),
        (3, 5, [0, 1, 2]),
        (4, 9, [2]),
        (9, 9, [3, 6]),
        (10, 9, [4, 8]),
        (16, 16, [4, 8, 12]),
        (2, 1, []),
    ],
)
def test_spacing_is_that_of_the_source(count: int, saved: int, kept: list[int]) -> None:
    assert spaced(list(range(count)), saved) == kept


def test_a_chain_keeps_every_third_of_nine() -> None:
    case = chain(9)
    problem = problem_of(case, 1)
    assert bottlenecks(case, problem) == "f1 f2 f3 f4 f5 f6 f7 f8 f9"
    assert chosen(case, problem) == "f4 f7"
    assert plan(case, problem, "memory") == (
        "f1 f2 f3 f4 f5 f6 f7 f8 f9 loss b9 b8 b7 f5 f6 b6 b5 b4 f1 f2 f3 b3 b2 b1"
    )


def test_what_a_skip_goes_around_is_no_bottleneck() -> None:
    case = Case(
        Op("f1", "x"),
        Op("f2", "f1"),
        Op("a", "f2 f1"),
        Op("f3", "a"),
        Op("d", "f3 a"),
        Op("loss", "d"),
        Op("g", "loss f1 f2 a f3 d", output=True),
        resident="x",
    )
    problem = problem_of(case, 9)
    assert bottlenecks(case, problem) == "f1 a d"
    # Five are saved: of three bottlenecks ceil(sqrt(5)) = 3 stay.
    assert chosen(case, problem) == "f1 a d"


def test_where_what_is_saved_has_too_few_bottlenecks_all_tensors_are_tried() -> None:
    case = Case(
        Op("r0", "x"),
        Op("g1", "r0"),
        Op("r1", "g1 r0"),
        Op("g2", "r1"),
        Op("r2", "g2 r1"),
        Op("g3", "r2"),
        Op("r3", "g3 r2"),
        Op("g4", "r3"),
        Op("r4", "g4 r3"),
        Op("loss", "r4"),
        Op("g", "loss g1 g2 g3 g4", output=True),
        resident="x",
    )
    problem = problem_of(case, 9)
    assert bottlenecks(case, problem) == "r0 r1 r2 r3 r4"
    assert chosen(case, problem) == "r3"  # five of them, sqrt(4) wanted: every third, from r3


def test_two_branches_have_no_bottleneck() -> None:
    case = Case(
        Op("a", "x"),
        Op("b", "x"),
        Op("c", "a"),
        Op("d", "b"),
        Op("loss", "c d"),
        Op("g", "loss a b c d", output=True),
        resident="x",
    )
    with pytest.raises(UsageError) as caught:
        parse_strategy("memory").solve(problem_of(case, 9), SECONDS)
    assert caught.value.message == (
        "the forward part has no bottleneck: of 4 tensors, each has a way around it (a skip) or "
        "beside it (a branch)"
    )
    assert "list{names=a+b}" in caught.value.hint


def test_one_saved_tensor_leaves_no_choice() -> None:
    case = Case(
        Op("f1", "x"),
        Op("f2", "f1"),
        Op("a", "f2 f1"),
        Op("loss", "a"),
        Op("g", "loss f2", output=True),
        resident="x",
    )
    with pytest.raises(UsageError, match="of 2 bottlenecks in the forward part none is chosen"):
        parse_strategy("memory").solve(problem_of(case, 9), SECONDS)


def test_small_and_unfit_tensors_and_those_beside_the_way_do_not_count() -> None:
    # mask comes from the inputs alone, and goes everywhere; s is a statistic for backward only.
    case = Case(
        Op("mask", "x"),
        Op("f1", "x mask"),
        Op("f2", "f1 mask", more=(("s", 1),)),
        Op("cast", "f2"),
        Op("tiny", "cast"),
        Op("f3", "tiny mask"),
        Op("loss", "f3 mask"),
        Op("g", "loss f1 f2 s cast f3", output=True),
        resident="x",
    )
    plain = problem_of(case, 9)
    assert bottlenecks(case, plain) == "mask"
    problem = labelled(case, plain, unfit="cast", aside="mask", small="tiny")
    flow, names = Flow(step_of(problem), 1024), list(case.tensors)
    assert [names[t] for t in flow.tensors] == ["f1", "f2", "f3"]
    assert bottlenecks(case, problem) == "f1 f2 f3"
    assert Flow(step_of(problem), 2000).tensors == []
    # What is beside the way stays: it does not run again.
    assert plan(case, problem, "memory").split().count("mask") == 1


def as_in_the_source(case: Case, problem: Problem) -> list[int]:
    """The loop of memory_saving_gradients.py over all tensors, on sets of operators."""
    assert problem.forward is not None
    order = [k for k in problem.order.tolist() if problem.forward[k]]
    reads = {k: {case.tensors[n] for n in case.ops[k].reads.split()} for k in order}
    writes = {k: {case.tensors[name] for name, _ in case._outputs(case.ops[k])} for k in order}
    every = set().union(*writes.values()) & set().union(*reads.values())

    def walk(start: int, forward: bool) -> set[int]:
        found, waiting = {start}, [start]
        while waiting:
            k = waiting.pop()
            for other in order:
                first, second = (k, other) if forward else (other, k)
                if other not in found and writes[first] & reads[second]:
                    found.add(other)
                    waiting.append(other)
        return found

    result = []
    for k in order:
        for t in sorted(writes[k] & every):
            b_inp = set().union(*(reads[j] for j in walk(k, False))) & every
            f_inp = set().union(*(reads[j] for j in walk(k, True) - {k})) & every
            if not b_inp & f_inp and len(b_inp) + len(f_inp) >= len(every):
                result.append(t)
    return result


def test_bottlenecks_of_random_steps_are_those_of_the_source() -> None:
    total = 0
    for seed in range(60):
        case, problem = random_step(seed, 12)
        flow = Flow(step_of(problem), 1024)
        wanted = as_in_the_source(case, problem)
        assert flow.bottlenecks(flow.tensors) == wanted
        total += len(wanted)
    assert total > 60


# --- Names and marks -------------------------------------------------------------------------


def test_named_tensors_stay() -> None:
    case = chain(4)
    problem = labelled(case, problem_of(case, 1))
    assert plan(case, problem, "list{names=f2+f4}") == "f1 f2 f3 f4 loss b4 f3 b3 b2 f1 b1"
    assert plan(case, problem, "list{names= f2 + f4 }") == plan(case, problem, "list{names=f[24]}")


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        ("", "strategy 'list' is told no names", "list{names=a+b}"),
        ("f2+f22", "the forward part makes no tensor 'f22'", "near matches: f2"),
        ("O", "the forward part makes no tensor 'O'", "near matches: loss"),
        ("what?", "the forward part makes no tensor 'what?'", "it makes, for example, f1, f2, f3"),
        ("b2", "'b2' is not made in the forward part", "never recomputed"),
        ("x", "'x' is not made in the forward part", "never recomputed"),
    ],
)
def test_wrong_names_are_explained(names: str, message: str, hint: str) -> None:
    case = chain(4)
    with pytest.raises(UsageError) as caught:
        Named(names).solve(labelled(case, problem_of(case, 9)), SECONDS)
    assert caught.value.message.startswith(message)
    assert hint in caught.value.hint


def test_marked_tensors_stay() -> None:
    case = chain(4)
    problem = labelled(case, problem_of(case, 1), marked="f2 f4 b3 x")
    assert plan(case, problem, "collection") == plan(case, problem, "list{names=f2+f4}")
    with pytest.raises(UsageError, match="no tensor of the forward part is marked") as caught:
        parse_strategy("collection").solve(labelled(case, problem, marked="b3"), SECONDS)
    assert "memplan.checkpoint = true" in caught.value.hint


@pytest.mark.parametrize("name", NAMES)
def test_they_need_to_know_the_forward_part(name: str) -> None:
    case = chain(4)
    unknown = replace(problem_of(case, 4), forward=None)
    with pytest.raises(UsageError, match="no forward nodes are known"):
        parse_strategy(name).solve(unknown, SECONDS)
    if name not in ("speed", "memory"):
        with pytest.raises(UsageError, match="no names and no marks"):
            parse_strategy(name).solve(problem_of(case, 4), SECONDS)


STEP = """
g (float[40, 40] x, float[40, 40] w, float[40, 40] v) => (float loss, float[40, 40] w_grad)
<float one = {1.0}, int64[2] axes = {0, 1}>
{
    [mask] m = Relu(x)
    [mul] a = MatMul(x, w)
    [drop] d, keep = Dropout(a)
    [norm] n, mean, dev = LayerNormalization(d, v)
    [cast] c = Cast<to = 1>(n)
    [masked] h = Mul(c, m)
    [sum] loss = ReduceSum<keepdims = 0>(h, axes)
    [back] hg = Mul(h, m)
    [end] w_grad = Mul(hg, a)
    [more] unused = Mul(mean, dev)
}"""


def test_kinds_of_a_graph() -> None:
    graph = graph_of(STEP)
    labels = labels_of(graph, frozenset({1, 2}))
    unfit = {labels.names[t] for t in np.flatnonzero(labels.unfit)}
    assert unfit == {"d", "keep", "mean", "dev", "c"}
    assert labels.elements[labels.names.index("a")] == 1600
    assert labels.elements[labels.names.index("loss")] == 1
    assert np.flatnonzero(labels.differentiated).tolist() == [1, 2]


def test_gradients_flow_from_the_parameters_to_the_loss() -> None:
    model = open_text(STEP)
    found = {model.graph.nodes[k].name for k in differentiated(model.graph, model.phases)}
    assert found == {"mul", "drop", "norm", "cast", "masked", "sum"}  # not the mask
    without = replace(find_phases(model.graph), parameters=frozenset(), loss=None)
    assert differentiated(model.graph, without) == without.forward


def test_marks_of_nodes_and_values() -> None:
    model = parse(STEP)
    (mul,) = [node for node in model.graph.node if node.name == "mul"]
    mul.metadata_props.add(key=KEY, value="True")
    (norm,) = [node for node in model.graph.node if node.name == "norm"]
    norm.metadata_props.add(key=KEY, value="false")
    value = onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [40, 40])
    value.metadata_props.add(key=KEY, value="1")
    model.graph.value_info.append(value)
    assert marked_names(model.graph) == ["a", "h"]
    graph = open_text(model).graph
    assert {graph.tensors[t].name for t in graph.checkpoints} == {"a", "h"}
    assert graph_of(STEP).checkpoints == frozenset()


def test_marks_survive_an_optimizer_that_drops_them() -> None:
    source, target = parse(STEP), parse(STEP)
    for node in source.graph.node:
        if node.name in ("mul", "norm", "cast"):
            node.metadata_props.add(key=KEY, value="1")
    value = onnx.helper.make_tensor_value_info("keep", onnx.TensorProto.BOOL, [40, 40])
    value.metadata_props.add(key=KEY, value="1")
    source.graph.value_info.append(value)
    (cast,) = [node for node in target.graph.node if node.name == "cast"]
    cast.output[0] = "fused"
    assert carry_marks(source.graph, target.graph) == ["c"]
    assert marked_names(target.graph) == ["a", "keep", "n", "mean", "dev"]


# --- All of them -----------------------------------------------------------------------------


def test_plans_of_random_steps_are_what_they_say() -> None:
    made = dict.fromkeys(("speed", "memory", "list{names=f3+f9+f15}", "collection"), 0)
    for seed in range(40):
        case, problem = random_step(seed)
        problem = labelled(case, problem, marked="f5 f10 f20")
        for name in made:
            try:
                decision = parse_strategy(name).solve(problem, SECONDS).decision
            except UsageError:
                assert name in ("memory", "speed")
                continue
            check(problem, decision, case)
            made[name] += decision.peak < case.peak(case.order)
    assert min(made.values()) > 5, made


def test_they_make_one_plan_for_every_budget() -> None:
    case = chain(9)
    told: list[tuple[int, float]] = []
    for name in ("speed", "memory"):
        low, high = (problem_of(case, budget, intensive="f4 f7") for budget in (1, 99))
        below = parse_strategy(name).solve(low, SECONDS).decision
        above = (
            parse_strategy(name)
            .solve(high, SECONDS, lambda peak, extra: told.append((peak, extra)))
            .decision
        )
        assert below.sequence.tolist() == above.sequence.tolist()
        assert (below.feasible, above.feasible) == (False, True)
        assert told.pop() == (above.peak, above.extra_cost / 19)
        assert not told
    listed = {item.name for item in list_strategies() if item.ignores_budget}
    assert listed == {"speed", "memory", "list", "collection", "mirror"}


def test_what_was_asked_for_stays() -> None:
    case = chain(8)
    start = "f1 f2 f3 f4 f5 f6 f7 f8 loss b8 b7 b6 b5 b4 b3 f2 b2 b1"
    problem = problem_of(case, 9, intensive="f4", start=start, protected="f2")
    for name in ("speed", "memory", "list{names=f2}"):
        assert plan(case, labelled(case, problem), name).split().count("f2") >= 2


def rewritten(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


Marked = Callable[[str], Path]


@pytest.fixture
def marked(tmp_path: Path) -> Marked:
    """The sample model with the outputs of an operator marked."""

    def make(op: str) -> Path:
        model = onnx.load(MODEL)
        for node in model.graph.node:
            if node.op_type == op:
                node.metadata_props.add(key=KEY, value="true")
        onnx.save(model, tmp_path / "marked.onnx")
        return tmp_path / "marked.onnx"

    return make


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("optimize", ["none", "extended"])
def test_a_model_rewritten_by_each(
    name: str, optimize: str, inside: Memplan, marked: Marked, tmp_path: Path
) -> None:
    found = rewritten(
        inside(
            "rewrite",
            marked("Gemm"),
            "--strategy",
            name,
            "--optimize",
            optimize,
            "-o",
            "fits.onnx",
            "--format",
            "json",
        )
    )
    assert found["strategy"] == name.partition("{")[0]
    assert found["optimize"] == optimize
    assert found["budget_bytes"] == found["baseline_peak_with_workspace_bytes"]
    assert found["predicted_peak_bytes"] < found["baseline_peak_bytes"]  # type: ignore[operator]
    assert (tmp_path / "fits.onnx").exists()


def test_names_and_marks_that_fusions_take_away(
    inside: Memplan, marked: Marked, tmp_path: Path
) -> None:
    # The fused Gemm of ONNX Runtime takes in the last Transpose, and with it the tensor t_6.
    path = marked("Transpose")
    for name in ("list{names=t_6+addmm*}", "collection"):
        found = rewritten(
            inside(
                "rewrite",
                path,
                "--strategy",
                name,
                "--budget",
                "200%",
                "--dry-run",
                "--format",
                "json",
            )
        )
        assert found["optimize"] == "none"
        assert any("planned without fusions: " in str(n) for n in found["assumptions"])  # type: ignore[attr-defined]
    done = inside("rewrite", path, "--strategy", "list{names=addmm_66}")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("hint: near matches: addmm_6")


def test_a_plan_over_budget_says_what_it_reaches(inside: Memplan) -> None:
    done = inside("rewrite", SAMPLES / "lstm.onnx", "--strategy", "speed", "--optimize", "none")
    assert done.returncode == 4
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: strategy 'speed' reaches a peak of ")
    assert ", above the budget of " in error
    assert hint.startswith("hint: it makes the same plan for every budget: give ")
    assert inside("rewrite", MODEL, "--strategy", "greedy").returncode == 2  # needs a budget


@pytest.mark.ort
@pytest.mark.parametrize("name", ["speed", "memory"])
def test_results_are_bitwise_equal(name: str, tmp_path: Path) -> None:
    source, output = saved_step(with_dropout, tmp_path), tmp_path / "fits.onnx"
    done = rewrite(source, RewriteOptions(parse_size("100%"), strategy=name), output)
    assert done.plan.clones > 0
    proof = validate(source, output, ValidateOptions(runs=1, plain=False))
    assert not proof.findings, proof.findings
    assert proof.equality == "bitwise"


def test_tensors_that_the_user_keeps_are_a_collection() -> None:
    def planned(strategy: str, *keep: str) -> RewriteOptions:
        return RewriteOptions(
            parse_size("100%"), strategy=strategy, optimize="none", keep=keep, passes="none"
        )

    named = rewrite(MODEL, planned("list{names=addmm*}"), dry_run=True)
    kept = rewrite(MODEL, planned("collection", "addmm*"), dry_run=True)
    assert named.plan.clones > 0
    assert kept.plan.sequence == named.plan.sequence
    with pytest.raises(UsageError, match="no tensor of the forward part is marked") as caught:
        rewrite(MODEL, planned("collection"), dry_run=True)
    assert "--keep GLOB" in caught.value.hint
