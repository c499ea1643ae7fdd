"""Steps of shapes on which the published systems stumbled: every strategy, plan and results."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import memplan
from helpers.graphs import parse
from helpers.plans import AUTO, NAMED, TUNED, Task, outputs_of, task_of
from memplan.planning.apply import apply_plan
from memplan.planning.plan import Plan
from memplan.planning.verify import ensure
from memplan.runtime.inputs import synthesize
from memplan.solver.search.warm_up import warm_up

pytestmark = pytest.mark.ort

SIZE, BATCH = "float[32, 32]", "float[512, 32]"


def chain(first: str, names: str) -> str:
    """Two operators per name, one of which every gradient reads."""
    lines, last = [], first
    for name in names:
        lines.append(f"{name}0 = MatMul({last}, w{name})  {name} = Tanh({name}0)")
        last = name
    return "  ".join(lines)


def weights(names: str) -> str:
    return ", ".join(f"{SIZE} w{name}" for name in names)


def step(inputs: str, outputs: str, body: str, ys: list[str], xs: list[str]) -> onnx.ModelProto:
    text = f"g ({inputs}) => ({outputs}) {{ {body} }}"
    return memplan.gradients(parse(text), ys, xs)


def long_skips() -> onnx.ModelProto:
    """Early tensors are read again at the end, as in a U-Net: few bottlenecks."""
    body = (
        chain("x", "abcd")
        + """
      e0 = Add(d, c)  e1 = MatMul(e0, we)  e = Tanh(e1)
      f0 = Mul(e, b)  f1 = MatMul(f0, wf)  f = Tanh(f1)
      h0 = Add(f, a)  h1 = MatMul(h0, wh)  h = Tanh(h1)
      loss = ReduceSum <keepdims = 0> (h)"""
    )
    names = "abcdefh"
    return step(
        f"{BATCH} x, {weights(names)}", "float loss", body, ["loss"], [f"w{n}" for n in names]
    )


def no_bottleneck() -> onnx.ModelProto:
    """Two streams that mix at every layer: no tensor that all gradients pass through."""
    lines, left, right = [], "x", "z"
    for k in range(5):
        lines.append(
            f"p{k} = MatMul({left}, wa)  q{k} = MatMul({right}, wb)  l{k} = Tanh(p{k})  "
            f"m{k} = Tanh(q{k})  u{k} = Add(l{k}, {right})  v{k} = Mul(m{k}, {left})"
        )
        left, right = f"u{k}", f"v{k}"
    lines.append(f"s = Add({left}, {right})  loss = ReduceSum <keepdims = 0> (s)")
    return step(
        f"{BATCH} x, {BATCH} z, {SIZE} wa, {SIZE} wb",
        "float loss",
        "  ".join(lines),
        ["loss"],
        ["wa", "wb"],
    )


def with_dropout() -> onnx.ModelProto:
    """Random masks, which must not be drawn twice."""
    body = "  ".join(
        f"{name}0 = MatMul({last}, w{name})  {name}1 = Tanh({name}0)  "
        f"{name}, {name}m = Dropout <seed = 7> ({name}1, ratio, training)"
        for last, name in zip("xabcd", "abcde", strict=True)
    )
    model = f"""g ({BATCH} x, {weights("abcde")}) => (float loss)
      <float ratio = {{0.25}}, bool training = {{1}}>
      {{ {body}  loss = ReduceSum <keepdims = 0> (e) }}"""
    return memplan.gradients(parse(model), "loss", [f"w{name}" for name in "abcde"])


def several_losses() -> onnx.ModelProto:
    """Two heads on one trunk; gradients of both are added."""
    body = (
        chain("x", "abcd")
        + """
      r = Exp(b)  one = ReduceSum <keepdims = 0> (r)
      t = Sin(d)  two = ReduceSum <keepdims = 0> (t)"""
    )
    return step(
        f"{BATCH} x, {weights('abcd')}",
        "float one, float two",
        body,
        ["one", "two"],
        [f"w{n}" for n in "abcd"],
    )


def shared_weights() -> onnx.ModelProto:
    """One weight in every layer: its gradients are summed over the whole backward part."""
    body = "  ".join(
        f"{name}0 = MatMul({last}, w)  {name} = Tanh({name}0)"
        for last, name in zip("xabcde", "abcdef", strict=True)
    )
    return step(
        f"{BATCH} x, {SIZE} w",
        "float loss",
        f"{body}  loss = ReduceSum <keepdims = 0> (f)",
        ["loss"],
        ["w"],
    )


def stashes_that_are_outputs() -> onnx.ModelProto:
    """Activations that the caller wants too: they are held anyway."""
    body = chain("x", "abcde") + "  loss = ReduceSum <keepdims = 0> (e)"
    return step(
        f"{BATCH} x, {weights('abcde')}",
        f"float loss, {BATCH} b, {BATCH} d0",
        body,
        ["loss"],
        [f"w{n}" for n in "abcde"],
    )


STEPS = (
    long_skips,
    no_bottleneck,
    with_dropout,
    several_losses,
    shared_weights,
    stashes_that_are_outputs,
)


@pytest.fixture(scope="module", autouse=True)
def machine_code() -> None:
    """Compile before any time limit runs."""
    warm_up()


def lowest_plan(graph: Task) -> tuple[int, Plan]:
    """The tightest of some budgets for which there is a plan, and the plan."""
    for share in (0.4, 0.6, 0.8, 0.95):
        budget = int(graph.floor + share * (graph.peak - graph.floor))
        plan = graph.plan(AUTO, budget)
        if plan is not None:
            return budget, plan
    raise AssertionError("no plan for any budget below the peak")


@pytest.mark.parametrize("make", STEPS, ids=lambda make: make.__name__)
def test_every_strategy(make: object, tmp_path: Path) -> None:
    assert callable(make)
    path = tmp_path / "step.onnx"
    onnx.save(make(), path)
    graph = task_of(path)
    model = graph.model
    feeds = synthesize(model.graph)
    reference, _ = outputs_of(model.prepared.proto, feeds, {})
    budget, auto = lowest_plan(graph)
    for strategy in (AUTO, *NAMED):
        # Two runs of a search that the clock stops differ: auto is planned once.
        fitting = auto if strategy == AUTO else graph.plan(strategy, budget)
        if fitting is not None:
            assert auto.extra_cost_fraction <= fitting.extra_cost_fraction + 1e-9, strategy
        plan = fitting or graph.plan(strategy, 2 * graph.peak)
        if plan is None:
            continue
        rewritten = apply_plan(model.prepared.proto, plan, {})
        timeline = ensure(model.prepared.proto, rewritten, plan, model.prepared.types, TUNED)
        outputs, measured = outputs_of(rewritten, feeds, {})
        assert measured.dynamic_bytes == timeline.dynamic_peak_bytes, strategy
        for before, after in zip(reference, outputs, strict=True):
            assert before.tobytes() == after.tobytes(), strategy
