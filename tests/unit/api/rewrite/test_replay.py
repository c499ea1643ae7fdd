"""A plan file applied again: the same bytes without a search, or refused with the reason."""

import dataclasses
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.chunking import head
from helpers.effort import tries
from helpers.graphs import parse
from helpers.offloading import linked
from helpers.schemas import faults
from helpers.training_steps import ALL_STEPS, saved_step
from memplan.api.rewrite import finish, rewriting
from memplan.api.rewrite.goal import RewriteOptions
from memplan.api.rewrite.rewriting import Rewrite, replay, rewrite
from memplan.errors import (
    EXIT_BUG,
    EXIT_MODEL,
    InfeasibleError,
    MemplanError,
    PlanError,
    ProviderMissingError,
)
from memplan.planning import plan_file
from memplan.planning.plan_file import PassDecision, PlanFile, parse_plan, read_plan
from memplan.runtime import optimize
from memplan.simulate.opened import open_model
from memplan.units import parse_budget

SAMPLES = Path(__file__).parents[4] / "sample_models"
CHAIN = """
g (float[256] x) => (float y)
{
    [a] a = Exp(x) [b] b = Exp(a) [c] c = Sqrt(b) [d] d = Sin(c) [e] e = Cos(d)
    [f] f = Mul(e, d) [g] g = Mul(f, c) [h] h = Mul(g, b) [i] i = Mul(h, a)
    [y] y = ReduceSum<keepdims = 0>(i)
}"""
Edit = Callable[[dict[str, Any]], object]


def options(budget: str, **more: Any) -> RewriteOptions:
    """By rounds, so that a test takes no longer than it must."""
    return RewriteOptions(parse_budget(budget), effort=1, **more)


def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search from here on is a failure."""

    def searched(*_: Any) -> None:
        raise AssertionError("a replay looked for a plan")

    monkeypatch.setattr(finish, "find_plan", searched)
    monkeypatch.setattr(rewriting, "_warm_up", searched)


def same_again(
    model: Path,
    folder: Path,
    asked: RewriteOptions,
    monkeypatch: pytest.MonkeyPatch,
    dims: Mapping[str, int] | None = None,
) -> Rewrite:
    """What a replay of the plan from its file gives, byte by byte that of the search."""
    first = rewrite(model, asked, folder / "first.onnx", dims=dims)
    first.record.save(folder / "plan.json")
    with monkeypatch.context() as patched:
        no_search(patched)
        again = replay(model, folder / "plan.json", folder / "again.onnx")
    assert (folder / "again.onnx").read_bytes() == (folder / "first.onnx").read_bytes()
    assert again.record == first.record
    return again


@pytest.mark.parametrize("step", ALL_STEPS)
def test_a_replay_gives_the_same_bytes(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved_step(ALL_STEPS[step], tmp_path)
    found = same_again(model, tmp_path, options("min"), monkeypatch)
    assert faults(json.loads(found.record.text())) == []


def test_a_replay_of_a_sample_with_a_size_of_its_own_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_again(SAMPLES / "gpt_dynamic.onnx", tmp_path, options("60%"), monkeypatch, {"N": 4})


@pytest.mark.parametrize("name", ["predicted_peak_bytes", "predicted_peak_with_workspace_bytes"])
def test_the_simulator_is_held_against_the_peak_that_the_evaluator_found(
    chain: tuple[Path, PlanFile], name: str
) -> None:
    """The file has the evaluator's figure, which a replay does not ask for again."""
    model, plan = chain
    edited = dataclasses.replace(plan, **{name: getattr(plan, name) - 4})
    with pytest.raises(PlanError, match=rf"the plan's {name}: .* and simulation finds"):
        replay(model, edited, dry_run=True)


@pytest.mark.parametrize(
    ("model", "budget", "more"),
    [
        ("mlp_adamw", "80%", {"session": "default"}),
        ("gpt_dropout", "35%", {"provider": "cuda", "offload": True}),
        ("cnn_bn", "60%", {"optimize": "none"}),
        ("gpt_dropout", "100%", {"strategy": "segments"}),
        ("mlp_adamw", "100%", {}),
    ],
)
def test_forms_fences_and_strategies_are_replayed(
    model: str,
    budget: str,
    more: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = options(budget, **more)
    with linked(1e12):
        again = same_again(SAMPLES / f"{model}.onnx", tmp_path, asked, monkeypatch)
    if "offload" in more:
        assert again.offload is not None


def test_chunks_are_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "head.onnx"
    onnx.save(parse(head(rows=1024, width=16, classes=300)), model)
    assert same_again(model, tmp_path, options("60%", chunk="regions"), monkeypatch).chunked


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PlanFile]:
    """A small graph and the plan for it."""
    path = tmp_path_factory.mktemp("chain") / "chain.onnx"
    onnx.save(parse(CHAIN), path)
    plan = rewrite(path, options("80%", optimize="none"), dry_run=True).record
    assert sum(row.times for row in plan.tensors)
    return path, plan


def test_tensors_of_fused_nodes_keep_the_modules_of_the_file(tmp_path: Path) -> None:
    """The runtime's optimizer puts in nodes that name none, and names that lead astray."""
    model = open_model(SAMPLES / "gpt_dropout.onnx")
    named = {
        model.graph.tensors[t].name: model.modules[node.id]
        for node in model.graph.nodes
        for t in node.writes
    }
    plan = rewrite(SAMPLES / "gpt_dropout.onnx", options("70%"), dry_run=True).record
    told = [row for row in plan.tensors if row.tensor in named]
    assert len(told) > 100
    assert [row for row in told if row.module != named[row.tensor]] == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "[e] e = Cos(d)",
            "[e] e = Sin(d)",
            r"another graph: fingerprint \w{8}, 10 nodes; the",
        ),
        ("[f] f = Mul(e, d)", "[e2] e2 = Neg(e) [f] f = Mul(e2, d)", "model's .*, 11 nodes"),
        ("float[256] x", "float[128] x", "for another graph"),
        ("[c] c = Sqrt(b)", "[root] c = Sqrt(b)", "the graph has no node 'c'"),
    ],
)
def test_a_plan_for_another_graph_is_refused(
    chain: tuple[Path, PlanFile], tmp_path: Path, old: str, new: str, says: str
) -> None:
    model, output = tmp_path / "changed.onnx", tmp_path / "out.onnx"
    onnx.save(parse(CHAIN.replace(old, new)), model)
    with pytest.raises(PlanError, match=says) as caught:
        replay(model, chain[1], output)
    assert caught.value.exit_code == EXIT_MODEL
    assert "plan anew: memplan rewrite MODEL --budget" in caught.value.hint
    assert not output.exists()


def test_a_plan_of_another_version_is_refused(
    chain: tuple[Path, PlanFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, plan = chain
    other = dataclasses.replace(plan.model, planned="0" * 32)
    with pytest.raises(PlanError, match="do not make the graph of its sequence"):
        replay(model, dataclasses.replace(plan, model=other), dry_run=True)
    other = dataclasses.replace(other, runtime="onnxruntime 1.0.0")
    with pytest.raises(PlanError, match=r"made with onnxruntime 1\.0\.0 and memplan .*; onnxrun"):
        replay(model, dataclasses.replace(plan, model=other), dry_run=True)
    ordered = dataclasses.replace(plan, order=("z",), passes=(PassDecision("order", True),))
    with pytest.raises(PlanError, match=r"made with onnxruntime 1\.0\.0"):
        replay(model, dataclasses.replace(ordered, model=other), dry_run=True)

    def missing(*_: Any) -> None:
        raise ProviderMissingError("no such provider")

    monkeypatch.setattr(optimize, "optimize_offline", missing)
    with pytest.raises(PlanError, match=r"optimizes \(extended\), .* no such provider"):
        replay(model, dataclasses.replace(plan, optimize="extended"), dry_run=True)


def test_a_result_over_the_budget_is_refused(chain: tuple[Path, PlanFile]) -> None:
    with pytest.raises(InfeasibleError, match="the plan takes"):
        replay(chain[0], chain[1], budget="50%", dry_run=True)


def sealed(data: dict[str, Any]) -> PlanFile:
    """The plan in an edited JSON object, under a digest of its own."""
    data.pop("digest", None)
    return parse_plan({**data, "digest": plan_file._digest(data)})


EDITS: list[tuple[Edit, str]] = [
    (lambda plan: plan["sequence"].reverse(), "the plan does not hold"),
    (lambda plan: plan["sequence"].pop(), "the plan does not hold"),
    (lambda plan: plan["sequence"].append("y"), "the plan does not hold"),
    (lambda plan: plan["sequence"].append("z"), "the graph has no node 'z', which the plan runs"),
    (lambda plan: plan.update(session="fast"), "session"),
    (lambda plan: plan.update(provider="tpu"), "provider"),
    (lambda plan: plan.update(optimize="most"), "optimize"),
    (lambda plan: plan.update(strategy="luck"), "strategy"),
    (lambda plan: plan["settings"].update(device="abacus"), "device profile"),
    (
        lambda plan: plan["passes"].append({"name": "magic", "changed": True}),
        r"passes\[\d+\]: unknown pass 'magic'",
    ),
    (lambda plan: plan.update(budget_bytes=1000), "over the budget"),
    (lambda plan: plan.update(accounting=99), "was written by a newer memplan: its accounting"),
    (lambda plan: plan.update(accounting=0), "by an older memplan: its accounting is 0"),
    (lambda plan: plan.update(order=["a"], passes=[ORDERED]), "order: the graph has other nodes"),
    (
        lambda plan: plan.update(order=backwards(plan), passes=[ORDERED]),
        "comes before what it reads",
    ),
]
ORDERED = {"name": "order", "changed": True}


def backwards(plan: dict[str, Any]) -> list[str]:
    """The nodes, the last one first."""
    return list(dict.fromkeys(plan["sequence"]))[::-1]


@pytest.mark.rejects
@pytest.mark.parametrize(("edit", "says"), EDITS)
def test_what_a_plan_promises_is_not_believed(
    chain: tuple[Path, PlanFile], edit: Edit, says: str
) -> None:
    """Whoever edits a file and makes up a digest is told what does not hold, in one line."""
    data = json.loads(chain[1].text())
    edit(data)
    with pytest.raises(MemplanError, match=says) as caught:
        replay(chain[0], sealed(data), dry_run=True)
    assert caught.value.exit_code != EXIT_BUG


def test_extra_time_is_counted_again_and_a_bound_is_told_as_recorded(
    chain: tuple[Path, PlanFile],
) -> None:
    """What the file says of its own worth is never said in our name."""
    model, plan = chain
    honest = replay(model, plan, dry_run=True)
    assert honest.replay.same_seconds
    assert "as recorded in it, not certified again: " in honest.replay.line
    dear = dataclasses.replace(plan, extra_cost_fraction=0.5, bound_fraction=0.5)
    found = replay(model, dear, dry_run=True)
    assert found.extra_cost_fraction == pytest.approx(plan.extra_cost_fraction)
    assert found.as_json()["bound_fraction"] == 0
    assert found.replay.line.endswith("recorded as +50.00% time")


@pytest.mark.rejects
def test_state_that_a_plan_was_not_made_for_is_no_bug_of_ours(tmp_path: Path) -> None:
    """The sequence renews weights before their last reader: fine apart, and not in place."""
    model = SAMPLES / "mlp_adamw.onnx"
    asked = options("85%", state=("apart",))
    data = json.loads(rewrite(model, asked, dry_run=True).record.text())
    data["settings"]["state"] = ["in-place"]
    with pytest.raises(PlanError):
        replay(model, sealed(data), dry_run=True)


def test_pins_for_other_tensors_are_refused() -> None:
    model = SAMPLES / "mlp_adamw.onnx"
    data = json.loads(rewrite(model, options("80%", session="default"), dry_run=True).record.text())
    data["plain"]["pins"][0] = "nowhere"
    with pytest.raises(PlanError, match="fences and pins are for other tensors"):
        replay(model, sealed(data), dry_run=True)


@pytest.mark.rejects
def test_forms_in_a_wrong_order_are_found() -> None:
    model = SAMPLES / "gpt_dropout.onnx"
    data = json.loads(rewrite(model, options("60%"), dry_run=True).record.text())
    assert any(isinstance(step, dict) for step in data["sequence"])
    random.Random(1).shuffle(data["sequence"])
    with pytest.raises(PlanError, match="the plan does not hold"):
        replay(model, sealed(data), dry_run=True)


@pytest.mark.rejects
@settings(max_examples=tries(40))
@given(st.data())
def test_no_edit_gives_a_file_that_was_not_proved(
    chain: tuple[Path, PlanFile], data: st.DataObject
) -> None:
    """Whatever order and repetition a file asks for: an error, or a file that computes the same
    with the peak that it states."""
    plan = json.loads(chain[1].text())
    steps = plan["sequence"]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(steps) - 1))
        steps.insert(data.draw(st.integers(0, len(steps))), steps[place])
        if data.draw(st.booleans()):
            steps.pop(data.draw(st.integers(0, len(steps) - 1)))
    try:
        found = replay(chain[0], sealed(plan), budget="100%", dry_run=True)
    except MemplanError:
        return
    assert found.equivalence.reason is None
    assert len(found.model.graph.node) == len(steps)


def test_a_file_is_read_once_and_never_written_over(
    chain: tuple[Path, PlanFile], tmp_path: Path
) -> None:
    chain[1].save(tmp_path / "plan.json")
    before = (tmp_path / "plan.json").read_bytes()
    with pytest.raises(MemplanError, match="input"):
        replay(chain[0], tmp_path / "plan.json", tmp_path / "plan.json", force=True)
    assert (tmp_path / "plan.json").read_bytes() == before
    assert read_plan(tmp_path / "plan.json") == chain[1]
