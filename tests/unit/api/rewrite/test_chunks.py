"""``rewrite --chunk``: the file, the report, and what is refused."""

from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

from helpers.chunking import head, layered
from helpers.graphs import parse
from helpers.problems import Clock
from memplan import deadline
from memplan.api.rewrite.cheapest import LATE
from memplan.api.rewrite.rewriting import Rewrite, RewriteOptions, rewrite
from memplan.passes.chunk.choose_chunks import Chunks
from memplan.proto.metadata import CHUNKED, get_metadata
from memplan.report.tell.rewrite import equivalence_line
from memplan.solver.strategies.portfolio import _Portfolio
from memplan.units import parse_budget, parse_size


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A loss head whose logits are most of it."""
    path = tmp_path_factory.mktemp("model") / "head.onnx"
    onnx.save(parse(head(rows=1024, width=8, classes=256)), path)
    return path


KINDS = ("regions", "layers")


def rewritten(model: Path, chunk: str, budget: str = "50%", **more: str) -> Rewrite:
    options = RewriteOptions(
        parse_size(budget),
        chunk=chunk,
        optimize="none",
        strategy="greedy",
        **more,  # type: ignore[arg-type]
    )
    return rewrite(model, options, dry_run=True)


def test_chunks_fit_what_recomputation_cannot(model: Path) -> None:
    result = rewritten(model, "auto")
    step = next(step for step in result.passes if step.name == Chunks.name)
    assert step.changed
    assert result.timeline.peak_with_workspace_bytes <= result.budget_bytes
    assert result.plan.clones == 0
    assert get_metadata(result.model)[CHUNKED] is True
    assert result.as_json()["chunk"] == "auto"


def test_the_report_does_not_claim_the_same_bits(model: Path) -> None:
    result = rewritten(model, "auto")
    assert result.equivalence.reason is None
    assert result.equivalence.rounded
    assert "equivalent" not in equivalence_line(result.equivalence)
    assert "up to rounding" in equivalence_line(result.equivalence)
    assert any("may differ in the last bits" in note for note in result.assumptions)
    assert any("more time (estimated)" in note for note in result.assumptions)


def test_by_default_there_are_none(model: Path) -> None:
    result = rewritten(model, "none", "100%")
    assert not [step for step in result.passes if step.name == Chunks.name]
    assert result.equivalence.proved
    assert CHUNKED not in get_metadata(result.model)


def test_the_report_says_why_there_are_none(model: Path) -> None:
    notes = rewritten(model, "auto", "100%").assumptions
    assert "no chunks: not needed: the budget holds" in notes
    assert "no chunks: no region saves anything" in rewritten(model, "3", "99%").assumptions


def test_the_number_is_that_which_was_asked_for(model: Path) -> None:
    result = rewritten(model, "16", "60%")
    step = next(step for step in result.passes if step.name == Chunks.name)
    assert step.note.endswith("in 16 chunks")


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers whose stash is most of it."""
    path = tmp_path_factory.mktemp("model") / "layers.onnx"
    onnx.save(layered(), path)
    return path


def test_the_least_extra_time_is_taken_of_what_chunks_there_may_be(layers: Path) -> None:
    result = rewritten(layers, "auto", "40%")
    note = next(note for note in result.assumptions if "the best of 5" in note)
    costs = {kind: rewritten(layers, kind, "40%").extra_cost_fraction for kind in KINDS}
    assert result.extra_cost_fraction <= min(costs.values())
    assert "without: no plan" in note or result.extra_cost_fraction > 0
    assert result.as_json()["chunk_cost_fraction"] == result.chunk_cost > 0


def test_a_plan_without_chunks_is_taken_where_it_is_cheaper(layers: Path) -> None:
    options = RewriteOptions(parse_size("99%"), chunk="auto", optimize="none", effort=5)
    result = rewrite(layers, options, dry_run=True)
    assert not result.chunked
    assert result.chunk_cost == 0
    assert result.equivalence.proved
    assert any(note.startswith("no chunks: tried without:") for note in result.assumptions)


def test_without_time_the_first_kind_of_chunks_that_fits_is_taken(layers: Path) -> None:
    options = RewriteOptions(parse_size("40%"), chunk="auto", optimize="none", time_limit=0.01)
    notes = rewrite(layers, options, dry_run=True).assumptions
    (note,) = (note for note in notes if "the best of 5" in note)
    tried = dict(each.split(": ") for each in note.partition("(")[2].rstrip(")").split("; "))
    assert LATE in tried.values()
    assert "more time" in next(what for what in tried.values() if what != "no plan")


@pytest.mark.parametrize("budget", ["min", "45%"])
@pytest.mark.parametrize("name", ["model", "layers"])
def test_a_longer_limit_never_gives_a_worse_plan(
    name: str, budget: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that every look at it moves on, in one thread: what is made, how long it is looked
    at, and what comes of it, for four limits."""
    monkeypatch.setattr(_Portfolio, "_side_by_side", lambda self, threads: self._work())
    path: Path = request.getfixturevalue(name)
    found = []
    for limit in (0.3, 1.0, 2.5, 6.0):
        monkeypatch.setattr(deadline, "time", SimpleNamespace(perf_counter=Clock(0.01)))
        options = RewriteOptions(
            parse_budget(budget), chunk="auto", optimize="none", time_limit=limit
        )
        result = rewrite(path, options, dry_run=True)
        peak = result.timeline.peak_with_workspace_bytes
        found.append(peak if budget == "min" else result.extra_cost_fraction)
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0] or budget != "min"
