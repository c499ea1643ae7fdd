"""``sweep``: every point of a grid, and the largest value of a dimension that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import product
from os import PathLike

import onnx

from memplan.api.source import Model, as_file, shown_path
from memplan.api.sweep.fit import Fit, find_fit
from memplan.api.sweep.point import Answer, Failure, Footprint, Planned, Task
from memplan.api.sweep.request import (
    Sizes,
    fit_budget,
    given_budget,
    given_sizes,
    grid,
    plan_for,
)
from memplan.api.sweep.solve import solve
from memplan.api.sweep.sweep_result import Sweep, SweepPoint
from memplan.errors import EXIT_ENVIRONMENT, MemplanError, UsageError
from memplan.options import SweepOptions
from memplan.processes.parallel import answers
from memplan.proto.read import read_model
from memplan.shapes.dims import symbolic_dims
from memplan.simulate.session import session_kind
from memplan.units import SizeSpec

_LOST = Failure(
    "its process was ended by the system (out of memory?)",
    "fewer at a time need less memory: --jobs 1",
    EXIT_ENVIRONMENT,
)
Progress = Callable[[int, int, str], None]
"""Called with the number of finished questions, the number of all so far, and the last one."""


def sweep(
    models: Model | Sequence[Model],
    budgets: str | int | Sequence[str | int] = (),
    *,
    dims: Mapping[str, Sizes] | None = None,
    sessions: Sequence[str] = ("tuned",),
    providers: Sequence[str] = ("cpu",),
    fit: str | int | None = None,
    options: SweepOptions | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Peak, floor, extra time and bound for every combination of what is given.

    A point that cannot be answered says why, and the others go on. They are computed by processes
    on this machine; inside ``joblib.parallel_config(backend="dask")`` by those of a Dask cluster.

    Args:
        models: one or several ONNX training graphs: paths or ``ModelProto``s.
        budgets: sizes such as ``4GB`` or ``60%`` (of the point's own peak), or numbers of bytes;
            none: what the models take as they are.
        dims: sizes of symbolic dimensions: one or a list.
        sessions: kinds of session, ``tuned`` or ``default``.
        providers: ``cpu`` or ``cuda``.
        fit: a size: the largest value of a dimension (``options.fit_dim``; where it is left out,
            the one that ``dims`` leaves open) that fits it, and at what cost.
        options: how to plan, and how much at once.
        progress: called with every answer.

    Raises:
        UsageError: an argument or option cannot be used.
    """
    options = options or SweepOptions()
    sizes = given_sizes(dims or {})
    sizing = None if fit is None else fit_budget(fit)
    given = (budgets,) if isinstance(budgets, str | int | SizeSpec) else tuple(budgets)
    asked = tuple(dict.fromkeys(map(given_budget, given)))
    kinds = tuple(product(dict.fromkeys(sessions), dict.fromkeys(providers)))
    for session, provider in kinds:  # what cannot be is refused before any work
        session_kind(session, provider)
        plan_for(options.plan, options.plan.budget, session, provider)
    alone = isinstance(models, str | PathLike | onnx.ModelProto)
    every: tuple[Model, ...] = (models,) if alone else tuple(models)  # type: ignore[arg-type,assignment]
    if not every:
        raise UsageError("no model to sweep")
    with ExitStack() as stack:
        paths = {stack.enter_context(as_file(m)).absolute(): shown_path(m) for m in every}
        places = [
            Task(path, shown, (), session, provider, options.plan.loss, options.plan.state)
            for (path, shown), (session, provider) in product(paths.items(), kinds)
        ]
        table = _Table(options, places, _Answers(options.jobs, progress))
        fits = table.fits(sizes, sizing) if sizing else ()
        points = table.points(sizes, asked or ((sizing,) if sizing else ()), fits)
    return Sweep(points, fits, options, tuple(dict.fromkeys(providers)))


class _Answers:
    """Questions are answered once."""

    def __init__(self, jobs: int, progress: Progress | None) -> None:
        self._jobs, self._progress = jobs, progress
        self.known: dict[Task, Answer] = {}

    def ask(self, tasks: Sequence[Task]) -> list[Answer]:
        """The answers to ``tasks``."""
        new = [task for task in dict.fromkeys(tasks) if task not in self.known]
        total = len(self.known) + len(new)
        with closing(answers(solve, new, self._jobs)) as found:
            for index, answer in found:
                self.known[new[index]] = _LOST if answer is None else answer
                if self._progress is not None:
                    self._progress(len(self.known), total, _described(new[index]))
        return [self.known[task] for task in tasks]


def _described(task: Task) -> str:
    dims = "".join(f" {name}={size}" for name, size in task.dims)
    budget = f" {task.plan.budget.text}" if task.plan is not None else ""
    return f"{task.path.name}{dims}{budget}"


@dataclass(frozen=True, slots=True)
class _Table:
    """The questions of a sweep, and how their answers are put together.

    ``places`` are questions without dimensions, one per model, session and provider.
    """

    options: SweepOptions
    places: Sequence[Task]
    answers: _Answers

    def _planning(self, task: Task, budget: SizeSpec | None) -> Task:
        """The question for a plan; without a budget the one for what the model takes as it is."""
        if budget is None:
            return task
        return replace(task, plan=plan_for(self.options.plan, budget, task.session, task.provider))

    def _ask(self, tasks: Sequence[Task], budget: SizeSpec | None) -> list[Answer]:
        return self.answers.ask([self._planning(task, budget) for task in tasks])

    def fits(self, sizes: Mapping[str, Sequence[int]], budget: SizeSpec) -> tuple[Fit, ...]:
        """One answer per model, kind of session and combination of the other dimensions.

        Raises:
            UsageError: the reserve leaves nothing.
        """
        room = budget.resolve(0) - self._reserve(0)
        if room <= 0:
            raise UsageError(
                f"a size of {budget.text} less a reserve of {self.options.plan.reserve.text} "
                "leaves nothing"
            )
        found = []
        for place in self.places:
            try:
                dim = self._fit_dim(place, sizes)
            except MemplanError as error:
                failure = Failure(error.message, error.hint, error.exit_code)
                name = self.options.fit_dim or "?"
                found.append(Fit(place, name, 1, budget, budget.resolve(0), failure=failure))
                continue
            others = {name: given for name, given in sizes.items() if name != dim}
            for chosen in grid(others):
                # In the order of the grid's.
                dims = {**dict.fromkeys(sizes, 0), **dict(chosen), dim: 0}
                task = replace(place, dims=tuple(dims.items()))
                wanted = Fit(task, dim, self.options.fit_step, budget, room)
                found.append(find_fit(wanted, self._ask))
        return tuple(found)

    def _fit_dim(self, place: Task, sizes: Mapping[str, Sequence[int]]) -> str:
        """The dimension whose largest value is asked for.

        Raises:
            ModelError: the model cannot be read.
            UsageError: the model has no such dimension, or it is not clear which.
        """
        known = symbolic_dims(read_model(place.path))
        wanted = self.options.fit_dim
        offered = ", ".join(sorted(known)) or "none: all input shapes are static"
        if wanted is not None:
            if wanted not in known:
                raise UsageError(
                    f"no input has a dimension '{wanted}'",
                    f"symbolic dimensions of this model: {offered}",
                )
            return wanted
        if not known:
            raise UsageError(
                "all input shapes are static, so no dimension can grow",
                "export the model with a symbolic batch dimension",
            )
        left = [name for name in known if name not in sizes]
        if not left:
            left = [name for name in known if len(sizes[name]) > 1] or list(known)
        if len(left) != 1:
            raise UsageError(
                "several dimensions could grow",
                f"choose one with --fit-dim; symbolic dimensions of this model: {offered}",
            )
        return left[0]

    def points(
        self,
        sizes: Mapping[str, Sequence[int]],
        budgets: Sequence[SizeSpec],
        fits: Sequence[Fit],
    ) -> tuple[SweepPoint, ...]:
        """The grid, and between its rows the plans that the fits made.

        A dimension that only a fit is to find has no rows but those.
        """
        only_found = any(fit.dim not in sizes for fit in fits)
        shapes = [
            replace(place, dims=dims)
            for place in self.places
            for dims in ([] if only_found else grid(sizes))
        ]
        found = zip(shapes, self.answers.ask(shapes), strict=True)
        measured = [shape for shape, answer in found if isinstance(answer, Footprint)]
        planned = {self._planning(shape, budget): 0 for shape in measured for budget in budgets}
        self.answers.ask(tuple(planned))
        tried = [task for task in self.answers.known if task.plan and task not in planned]
        self.answers.ask([replace(task, plan=None) for task in tried])
        rows = [self._planning(shape, budget) for shape in shapes for budget in budgets or (None,)]
        return tuple(self._point(task) for task in sorted([*rows, *tried], key=self._rank))

    def _rank(self, task: Task) -> tuple[object, ...]:
        place = replace(task, dims=(), plan=None)
        return self.places.index(place), [size for _, size in task.dims]

    def _point(self, task: Task) -> SweepPoint:
        shape = self.answers.known[replace(task, plan=None)]
        footprint = shape if isinstance(shape, Footprint) else None
        budget = None if task.plan is None else task.plan.budget
        room = None
        if budget is not None and footprint is not None:
            whole = footprint.peak_with_workspace_bytes
            room = budget.resolve(whole) - self._reserve(whole)
        answer = self._answer(task, room)
        failures = [a for a in (shape, answer) if isinstance(a, Failure)]
        return SweepPoint(
            model=task.model,
            dims=dict(task.dims),
            session=task.session,
            provider=task.provider,
            budget=budget,
            budget_bytes=room,
            footprint=footprint,
            planned=answer if isinstance(answer, Planned) else None,
            failure=failures[0] if failures else None,
        )

    def _answer(self, task: Task, room: int | None) -> Answer | None:
        """What was found for a task. A plan for less keeps ``room`` bytes, too, so it stands in
        where it is cheaper: a larger budget never costs more than a smaller one of this sweep."""
        own, shape = self.answers.known.get(task), replace(task, plan=None)
        if room is None or (isinstance(own, Failure) and not own.infeasible):
            return own
        for other, found in self.answers.known.items():
            if not isinstance(found, Planned) or replace(other, plan=None) != shape:
                continue
            planned = own if isinstance(own, Planned) else None
            cheaper = planned is None or found.extra_cost_fraction < planned.extra_cost_fraction
            if found.budget_bytes < room and cheaper:
                # What no plan for less can undercut, a plan for more may.
                bound = (
                    (planned.bound_fraction, planned.bound_kind) if planned else (0.0, "trivial")
                )
                note = f"the plan for {found.budget_bytes:,} B is the best that was found for more"
                own = replace(
                    found,
                    budget_bytes=room,
                    bound_fraction=bound[0],
                    bound_kind=bound[1],
                    assumptions=tuple(dict.fromkeys((*found.assumptions, note))),
                )
        return own

    def _reserve(self, whole: int) -> int:
        return self.options.plan.reserve.resolve(whole)
