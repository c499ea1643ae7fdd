"""Sweeps in this process: questions answered by a formula, and small models with a batch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import joblib
import onnx

from helpers.training_steps import long_skips
from memplan.api.sweep.fit import Fit, find_fit
from memplan.api.sweep.point import Answer, Failure, Footprint, Planned, Task
from memplan.api.sweep.sweep_result import Sweep, SweepPoint
from memplan.api.sweep.sweeping import sweep
from memplan.errors import EXIT_INFEASIBLE
from memplan.options import DEFAULT_PLAN, SweepOptions
from memplan.units import SizeSpec, parse_size

QUICK = {"strategy": "greedy", "passes": "none", "optimize": "none"}
"""Options of plans that take no time and depend on nothing."""
GIB = 2**30
NO_PLAN = Failure("no plan found", "more", EXIT_INFEASIBLE)


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
    own = {k: options.pop(k) for k in ("fit_dim", "fit_step", "jobs") if k in options}
    plan = replace(DEFAULT_PLAN, **{**QUICK, **options})  # type: ignore[arg-type]
    asked = SweepOptions(plan, **own)  # type: ignore[arg-type]
    with joblib.parallel_config("sequential"):
        return sweep(models, budgets, options=asked, **taken)  # type: ignore[arg-type]


def footprint(peak: int, floor: int = 0) -> Footprint:
    return Footprint(peak, peak, floor, floor, exact=True)


def planned(peak: int, extra: float = 0.1, nodes: int = 1) -> Planned:
    return Planned(peak, peak, peak, extra, extra / 2, "order-free", nodes, 0)


def search(
    limit: int,
    peak: Callable[[int], Answer],
    plan: Callable[[int], Answer],
    step: int = 1,
) -> tuple[Fit, list[tuple[int, bool]]]:
    """The fit that is found where questions are answered by ``peak`` and ``plan``, and what was
    asked: values, and whether for a plan."""
    asked: list[tuple[int, bool]] = []

    def ask(tasks: Sequence[Task], budget: SizeSpec | None) -> list[Answer]:
        values = [dict(task.dims)["N"] for task in tasks]
        asked.extend((value, budget is not None) for value in values)
        return [peak(value) if budget is None else plan(value) for value in values]

    model = Path("m.onnx")
    task = Task(model, model, (("N", 0),), "tuned", "cpu")
    return find_fit(Fit(task, "N", step, parse_size(str(limit)), limit), ask), asked


def point(
    size: int,
    budget: str | None = None,
    answer: Answer | None = None,
    model: str = "model.onnx",
    **more: object,
) -> SweepPoint:
    """A point of ``size`` GiB, and what was answered for it."""
    found = SweepPoint(
        Path(model),
        {"N": size},
        "tuned",
        "cpu",
        parse_size(budget) if budget else None,
        8 * GIB if budget else None,
        footprint(size * GIB, size * GIB // 4),
    )
    place = "planned" if answer and not isinstance(answer, Failure) else "failure"
    return replace(found, **{place: answer}, **more)  # type: ignore[arg-type]


def a_sweep(*points: SweepPoint, fits: tuple[object, ...] = ()) -> Sweep:
    """A sweep of these points."""
    return Sweep(points, fits, SweepOptions(), ("cpu",))  # type: ignore[arg-type]
