"""``memplan.sweep``: the grid, its figures, what fails, and what goes on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

import memplan
from helpers.chunking import layered
from helpers.sweeps import batched, swept
from helpers.training_steps import long_skips
from memplan.api.sweep import solve, sweeping
from memplan.api.sweep.fit import in_words
from memplan.api.sweep.point import Answer, Failure, Planned, Task
from memplan.api.sweep.sweep_result import Status
from memplan.errors import (
    EXIT_BUG,
    EXIT_ENVIRONMENT,
    EXIT_INFEASIBLE,
    EXIT_MODEL,
    EXIT_USAGE,
    UsageError,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return batched(tmp_path)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Task]]:
    """The questions that were really answered."""
    asked: list[Task] = []

    def noted(task: Task) -> Answer:
        asked.append(task)
        return solve.solve(task)

    monkeypatch.setattr(sweeping, "solve", noted)
    return asked


def test_points_are_what_analyze_and_rewrite_say(model: Path) -> None:
    found = swept(model, "60%", 200_000, dims={"N": [256, 512]})
    assert [(p.dims["N"], p.budget.text) for p in found.points if p.budget] == [
        (256, "60%"),
        (256, "200000"),
        (512, "60%"),
        (512, "200000"),
    ]
    for point in found.points:
        analysis = memplan.analyze(model, point.dims)
        assert point.footprint.peak_bytes == analysis.timeline.peak_bytes
        assert point.footprint.floor_with_workspace_bytes == analysis.floor_with_workspace_bytes
        if point.planned is None:
            assert point.status is Status.INFEASIBLE
            continue
        assert point.budget is not None
        options = memplan.RewriteOptions(
            point.budget, strategy="greedy", passes="none", optimize="none"
        )
        rewritten = memplan.rewrite(model, options, dims=point.dims, dry_run=True)
        assert point.planned.extra_cost_fraction == rewritten.plan.extra_cost_fraction
        assert point.planned.predicted_peak_bytes == rewritten.timeline.peak_bytes
        assert point.planned.recomputed_nodes == rewritten.plan.clones
        assert point.budget_bytes == point.planned.budget_bytes == rewritten.budget_bytes
    assert found.error is None


def test_a_larger_budget_never_costs_more_than_a_smaller_one(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the search happens to find less for more."""
    costs = {"50%": 0.2, "60%": 0.3, "70%": None, "80%": 0.1, "90%": 0.1}

    def answered(task: Task) -> Answer:
        if task.plan is None:
            return solve.solve(task)
        cost = costs[task.plan.budget.text]
        if cost is None:
            return Failure("no plan found", "", EXIT_INFEASIBLE)
        share = int(task.plan.budget.text[:-1]) / 100
        peak = int(share * memplan.analyze(model, {"N": 256}).timeline.peak_with_workspace_bytes)
        return Planned(peak, peak, peak, cost, cost / 2, "order-free", 3, 0)

    monkeypatch.setattr(sweeping, "solve", answered)
    for budgets in (list(costs), list(reversed(costs))):
        points = swept(model, *budgets, dims={"N": 256}).points
        found = {p.budget.text: p.planned for p in points if p.budget and p.planned}
        assert {t: (p.extra_cost_fraction, p.bound_fraction) for t, p in found.items()} == {
            "50%": (0.2, 0.1),
            "60%": (0.2, 0.15),
            "70%": (0.2, 0.0),
            "80%": (0.1, 0.05),
            "90%": (0.1, 0.05),
        }
        note = f"the plan for {found['50%'].budget_bytes:,} B is the best that was found for more"
        assert {t for t, p in found.items() if note in p.assumptions} == {"60%", "70%"}
        assert all(p.planned and p.planned.budget_bytes == p.budget_bytes for p in points)


def test_every_question_is_asked_once_and_without_budgets_nothing_is_planned(
    model: Path, counted: list[Task]
) -> None:
    found = swept(model, dims={"N": (8, 16, 8)}, sessions=("tuned", "default"))
    assert [(p.dims["N"], p.session) for p in found.points] == [
        (size, session) for session in ("tuned", "default") for size in (8, 16)
    ]
    assert {p.status for p in found.points} == {Status.ANALYZED}
    assert all(task.plan is None for task in counted)
    counted.clear()
    swept(model, "60%", "60%", dims={"N": [256, 256]}, fit="300kB")
    assert len(counted) == len(set(counted))


def test_a_point_that_fails_is_a_row(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "static.onnx"
    onnx.save(long_skips(), other)
    found = swept([model, tmp_path / "missing.onnx", other], "60%", dims={"N": 256})
    assert [p.status for p in found.points] == [Status.PLANNED, Status.FAILED, Status.FAILED]
    codes = [p.failure.exit_code for p in found.points if p.failure]
    assert codes == [EXIT_MODEL, EXIT_USAGE]
    assert found.error is None
    assert found.models == (model, tmp_path / "missing.onnx", other)


def test_the_worst_failure_is_the_error_where_nothing_has_an_answer(
    model: Path, tmp_path: Path
) -> None:
    found = swept([tmp_path / "a.onnx", tmp_path / "b.onnx"], dims={"N": 8})
    assert found.error.exit_code == EXIT_MODEL
    none = swept(model, "1kB", dims={"N": [8, 16]})
    assert none.error.exit_code == EXIT_INFEASIBLE
    assert [p.status for p in none.points] == [Status.INFEASIBLE] * 2


def test_a_bug_is_told_though_others_have_answers(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Failure("ValueError: oops", "", EXIT_BUG)
    bad = {16: broken}
    monkeypatch.setattr(sweeping, "solve", lambda t: bad.get(dict(t.dims)["N"]) or solve.solve(t))
    found = swept(model, dims={"N": [8, 16]})
    assert found.counts == {Status.ANALYZED: 1, Status.FAILED: 1}
    assert found.error.exit_code == EXIT_BUG


def test_a_lost_process_is_a_row(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def losing(work: Any, items: Any, jobs: int) -> Iterator[tuple[int, object]]:
        yield from ((k, None if k else work(item)) for k, item in enumerate(items))

    monkeypatch.setattr(sweeping, "answers", losing)
    found = memplan.sweep(model, dims={"N": [8, 16]})
    assert [p.status for p in found.points] == [Status.ANALYZED, Status.FAILED]
    failure = found.points[1].failure
    assert failure.exit_code == EXIT_ENVIRONMENT
    assert "ended by the system" in failure.message


def test_progress_counts_finished_questions(model: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    swept(model, "60%", dims={"N": [256, 512]}, progress=lambda *now: seen.append(now))
    assert [done for done, _, _ in seen] == [1, 2, 3, 4]
    assert [total for _, total, _ in seen] == [2, 2, 4, 4]
    assert seen[-1][2] == "model.onnx N=512 60%"


def test_a_model_in_memory(model: Path) -> None:
    found = swept(onnx.load(model), "60%", dims={"N": 256})  # type: ignore[arg-type]
    assert found.models == (Path("model.onnx"),)
    assert found.counts == {Status.PLANNED: 1}


# --- The largest that fits


def test_fit_is_the_largest_that_fits(model: Path) -> None:
    budget = 400_000
    found = swept(model, fit=budget)
    (fit,) = found.fits
    assert (fit.dim, fit.budget_bytes) == ("N", budget)

    def peak(size: int) -> int:
        return memplan.analyze(model, {"N": size}).timeline.peak_with_workspace_bytes

    assert peak(fit.as_it_is) <= budget < peak(fit.as_it_is + 1)
    assert fit.largest > fit.as_it_is
    assert fit.how == "recomputed"
    assert fit.plan.predicted_peak_with_workspace_bytes <= budget
    options = memplan.RewriteOptions(
        memplan.parse_size(str(budget)), strategy="greedy", passes="none", optimize="none"
    )
    memplan.rewrite(model, options, dims={"N": fit.largest}, dry_run=True)
    with pytest.raises(memplan.MemplanError, match=r"no plan found|below the floor"):
        memplan.rewrite(model, options, dims={"N": fit.largest + 1}, dry_run=True)
    # The plans that it made are rows, in order, with their own peaks and floors.
    sizes = [p.dims["N"] for p in found.points]
    assert sizes == sorted(sizes)
    assert fit.largest in sizes
    assert all(p.footprint for p in found.points)
    assert f"N up to {fit.largest:,} fits" in in_words(fit)


def test_fit_beside_a_grid_of_the_same_dimension_and_with_a_reserve(model: Path) -> None:
    found = swept(model, fit="300kB", fit_step=64, dims={"N": [8, 2000]})
    assert found.fits[0].dim == "N"
    rows = {p.dims["N"]: p.status for p in found.points}
    assert (rows[8], rows[2000]) == (Status.PLANNED, Status.INFEASIBLE)
    less = swept(model, fit="400kB", reserve=memplan.parse_size("100kB"), fit_step=64).fits[0]
    assert (less.budget_bytes, less.largest) == (300_000, found.fits[0].largest)
    with pytest.raises(UsageError, match="leaves nothing"):
        swept(model, fit="400kB", reserve=memplan.parse_size("400kB"))


def test_a_fit_that_cannot_be_looked_for_says_why(model: Path, tmp_path: Path) -> None:
    static = tmp_path / "static.onnx"
    onnx.save(long_skips(), static)
    found = swept([static, model], fit="400kB", fit_step=64)
    assert [fit.how for fit in found.fits] == ["failed", "recomputed"]
    assert found.error is None
    alone = swept(static, fit="400kB")
    assert alone.error.exit_code == EXIT_USAGE
    assert "all input shapes are static" in alone.error.message
    other = swept(model, fit="400kB", fit_dim="M")
    assert other.error.message == "no input has a dimension 'M'"


def test_points_fit_in_chunks_that_do_not_without(tmp_path: Path) -> None:
    dims = {"R": (1024, 2048)}
    model = layered(depth=2)
    for value in model.graph.input:
        first = value.type.tensor_type.shape.dim[0]
        if first.dim_value == 2048:
            first.Clear()
            first.dim_param = "R"
    del model.graph.value_info[:]
    path = tmp_path / "layers.onnx"
    onnx.save(model, path)
    without = swept(path, "35%", dims=dims)
    chunks = swept(path, "35%", dims=dims, chunk="layers")
    assert not [point for point in without.points if point.planned]
    for point in chunks.points:
        assert point.planned
        assert point.planned.extra_cost_fraction > 0


# --- Wrong use, before any work


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dims": {"N": []}}, "needs whole numbers"),
        ({"dims": {"N": [1.5]}}, "needs whole numbers"),
        ({"dims": {"N": True}}, "needs whole numbers"),
        ({"dims": {"N": 0}}, "cannot be 0"),
        ({"sessions": ("tune",)}, "unknown session 'tune'"),
        ({"providers": ("gpu",)}, "unknown provider 'gpu'"),
        ({"fit": "60%"}, "expected a size, got 60%"),
        ({"fit": "4G"}, "ambiguous"),
        ({"strategy": "magic"}, "unknown strategy 'magic'"),
        ({"fit_step": 0}, "fit_step is 0"),
        ({"jobs": -1}, "jobs is -1"),
    ],
)
def test_wrong_use(
    arguments: dict[str, Any], message: str, model: Path, counted: list[Task]
) -> None:
    with pytest.raises(UsageError) as caught:
        swept(model, "60%", **arguments)
    assert message in f"{caught.value.message} {caught.value.hint}"
    assert not counted


def test_no_model_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="no model"):
        memplan.sweep([])


# --- What a worker answers


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), EXIT_ENVIRONMENT),
        (OSError(28, "No space left on device"), EXIT_ENVIRONMENT),
        (OSError(2, "No such file"), EXIT_BUG),
        (ValueError("two\nlines"), EXIT_BUG),
    ],
)
def test_whatever_is_raised_is_an_answer(
    error: Exception, code: int, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    task = Task(model, model, (("N", 8),), "tuned", "cpu")
    assert not isinstance(solve.solve(task), Failure)
    monkeypatch.setattr(solve, "analyze", fail)
    found = solve.solve(task)
    assert isinstance(found, Failure)
    assert found.exit_code == code
    assert "\n" not in found.message
