"""Sweeps without workers: questions answered by a formula, and small models with a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import joblib
import onnx

from helpers.training_steps import long_skips
from memplan.api.sweep.fit import Fit, FitRequest, search_fit
from memplan.api.sweep.point import Answer, Failure, Footprint, ModelFile, Planned, Task
from memplan.api.sweep.request import DEFAULT_PLAN, SweepOptions, given_budget
from memplan.api.sweep.sweep_result import Sweep
from memplan.api.sweep.sweeping import sweep
from memplan.errors import EXIT_INFEASIBLE

QUICK = {"strategy": "greedy", "passes": "none", "optimize": "none"}
"""Options of plans that take no time and depend on nothing."""
NO_PLAN = Failure("no plan found", "more", EXIT_INFEASIBLE)


SWEEP_FIELDS = ("fit_dim", "fit_step", "resume", "jobs", "backend", "address")


def batched(folder: Path, name: str = "model.onnx") -> Path:
    """A small training step whose batch is the dimension N."""
    model = long_skips()
    for value in (*model.graph.input, *model.graph.value_info):
        shape = value.type.tensor_type.shape.dim
        if len(shape) == 2 and shape[0].dim_value == 512:
            shape[0].Clear()
            shape[0].dim_param = "N"
    del model.graph.value_info[:]
    path = folder / name
    onnx.save(model, path)
    return path


def swept(models: Path | Sequence[Path], *budgets: str | int, **options: object) -> Sweep:
    """A sweep in this process; ``options`` of the function, and ``SweepOptions``."""
    taken = {
        k: options.pop(k)
        for k in ("dims", "fit", "sessions", "providers", "progress")
        if k in options
    }
    own = {k: options.pop(k) for k in SWEEP_FIELDS if k in options}
    plan = replace(DEFAULT_PLAN, **{**QUICK, **options})  # type: ignore[arg-type]
    asked = SweepOptions(plan, **{"backend": "joblib", **own})  # type: ignore[arg-type]
    with joblib.parallel_config("sequential"):
        return sweep(models, budgets, options=asked, **taken)  # type: ignore[arg-type]


def footprint(peak: int, floor: int = 0) -> Footprint:
    return Footprint(peak, peak, floor, floor, exact=True)


def planned(peak: int, extra: float = 0.1, nodes: int = 1) -> Planned:
    return Planned(peak, peak, peak, extra, extra / 2, "order-free", nodes, 0)


def task(value: int, plan: bool = False, dim: str = "N") -> Task:
    options = SweepOptions(replace(DEFAULT_PLAN, strategy="greedy")).plan_for(
        given_budget("1GB"), "tuned", "cpu"
    )
    file = ModelFile(Path("m.onnx"), "digest")
    return Task(file, ((dim, value),), "tuned", "cpu", None, "now", options if plan else None)


def search(
    limit: int,
    peak: Callable[[int], Answer],
    plan: Callable[[int], Answer],
    step: int = 1,
) -> tuple[Fit, list[tuple[int, bool]]]:
    """The fit that is found where questions are answered by ``peak`` and ``plan``, and what was
    asked: values, and whether for a plan."""
    request = FitRequest(
        "N", step, given_budget(str(limit)), limit, lambda v, budget: task(v, budget is not None)
    )
    asked: list[tuple[int, bool]] = []
    running = search_fit(request)
    tasks = next(running)
    while True:
        answers: Mapping[Task, Answer] = {}
        for each in tasks:
            value, planning = dict(each.dims)["N"], each.plan is not None
            asked.append((value, planning))
            answers = {**answers, each: plan(value) if planning else peak(value)}
        try:
            tasks = running.send(answers)
        except StopIteration as end:
            found: Fit = end.value
            return found, asked
