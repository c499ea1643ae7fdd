"""``sweep``: every point of a grid, and the largest value of a dimension that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import product
from os import PathLike
from pathlib import Path

import onnx

from memplan.api.source import Model, as_file, shown_path
from memplan.api.sweep.fit import Fit, FitRequest, Search, search_fit
from memplan.api.sweep.point import Answer, Failure, Footprint, ModelFile, Planned, Task, versions
from memplan.api.sweep.request import (
    DEFAULT_PLAN,
    Dims,
    Sizes,
    SweepOptions,
    check_options,
    fit_budget,
    given_budget,
    given_sizes,
    grid,
)
from memplan.api.sweep.solve import file_digest, solve
from memplan.api.sweep.store import Store
from memplan.api.sweep.sweep_result import Sweep, SweepPoint
from memplan.errors import EXIT_ENVIRONMENT, MemplanError, UsageError
from memplan.processes.parallel import Lost, Workers, workers_for
from memplan.proto.read import read_model
from memplan.shapes.dims import symbolic_dims
from memplan.simulate.session import session_kind
from memplan.units import SizeSpec

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

    A point that cannot be answered says why, and the others go on. With ``resume`` among the
    options, what its file has is not computed again.

    Args:
        models: one or several ONNX training graphs: paths or ``ModelProto``s.
        budgets: sizes such as ``4GB`` or ``60%`` (of the point's own peak), or numbers of bytes;
            none: what the models take as they are.
        dims: sizes of symbolic dimensions: one or a list.
        sessions: kinds of session, ``tuned`` or ``default``.
        providers: ``cpu`` or ``cuda``.
        fit: a size: the largest value of a dimension (``options.fit_dim``; where it is left out,
            the one that ``dims`` leaves open) that fits it, and at what cost.
        options: how to plan, and where to run.
        progress: called with every answer.

    Raises:
        UsageError: an argument or option cannot be used.
        RuntimeUnavailableError: the cluster does not answer.
    """
    options = options or SweepOptions()
    check_options(options)
    sizes = given_sizes(dims or {})
    sizing = None if fit is None else fit_budget(fit)
    given = (budgets,) if isinstance(budgets, str | int | SizeSpec) else tuple(budgets)
    asked = tuple(dict.fromkeys(map(given_budget, given)))
    kinds = tuple(product(dict.fromkeys(sessions), dict.fromkeys(providers)))
    for session, provider in kinds:
        session_kind(session, provider)
        options.plan_for(DEFAULT_PLAN.budget, session, provider)
    alone = isinstance(models, str | PathLike | onnx.ModelProto)
    every: tuple[Model, ...] = (models,) if alone else tuple(models)  # type: ignore[arg-type,assignment]
    if not every:
        raise UsageError("no model to sweep")
    asking = _Asking(
        workers_for(options.backend, options.address, options.jobs), Store(options.resume), progress
    )
    with ExitStack() as stack:
        paths = {stack.enter_context(as_file(m)).absolute(): shown_path(m) for m in every}
        files = [ModelFile(path, file_digest(path)) for path in paths]
        table = _Table(asking, options, kinds, files)
        fits = table.fits(sizes, sizing) if sizing else ()
        points = table.points(sizes, asked or ((sizing,) if sizing else ()), fits)
    return Sweep(
        points=tuple(replace(point, model=paths[point.model]) for point in points),
        fits=tuple(_named(found, paths) for found in fits),
        options=options,
        providers=tuple(dict.fromkeys(providers)),
    )


def _named(fit: Fit, paths: Mapping[Path, Path]) -> Fit:
    """The fit with its model's path as it was given."""
    file = replace(fit.task.file, path=paths[fit.task.file.path])
    return replace(fit, task=replace(fit.task, file=file))


class _Asking:
    """Questions are answered once: from the store, or by the workers."""

    def __init__(self, workers: Workers, store: Store, progress: Progress | None) -> None:
        self.workers, self.store, self.progress = workers, store, progress
        self.answers: dict[Task, Answer] = {}
        self.asked = 0

    def ask(self, tasks: Iterable[Task]) -> None:
        """Find the answers to ``tasks`` that are not known yet."""
        new = [task for task in dict.fromkeys(tasks) if task not in self.answers]
        self.asked += len(new)
        todo = []
        for task in new:
            kept = self.store.get(task)
            if kept is None:
                todo.append(task)
            else:
                self._take(task, kept)
        if not todo:
            return
        with closing(self.workers.answers(solve, todo)) as found:
            for index, answer in found:
                if isinstance(answer, Lost):
                    hint = "fewer at a time need less memory: --jobs 1"
                    answer = Failure(answer.reason, hint, EXIT_ENVIRONMENT)
                self.store.put(todo[index], answer)
                self._take(todo[index], answer)

    def _take(self, task: Task, answer: Answer) -> None:
        self.answers[task] = answer
        if self.progress is not None:
            self.progress(len(self.answers), self.asked, _described(task))


def _described(task: Task) -> str:
    dims = "".join(f" {name}={size}" for name, size in task.dims)
    budget = f" {task.plan.budget.text}" if task.plan is not None else ""
    return f"{task.file.path.name}{dims}{budget}"


@dataclass(frozen=True, slots=True)
class _Table:
    """The questions of a sweep, and how their answers are put together."""

    asking: _Asking
    options: SweepOptions
    kinds: tuple[tuple[str, str], ...]
    files: Sequence[ModelFile]

    def task(
        self, file: ModelFile, kind: tuple[str, str], dims: Dims, budget: SizeSpec | None
    ) -> Task:
        """The question for one point; without a budget what the model takes as it is."""
        session, provider = kind
        plan = None if budget is None else self.options.plan_for(budget, session, provider)
        told = self.options.plan
        return Task(file, dims, session, provider, told.loss, versions(), plan, told.state)

    def fits(self, sizes: Mapping[str, Sequence[int]], budget: SizeSpec) -> tuple[Fit, ...]:
        """One answer per model, kind of session and combination of the other dimensions.

        The searches go on side by side, a round of each at a time.
        """
        found: dict[int, Fit] = {}
        searches: dict[int, Search] = {}
        wanted: dict[int, tuple[Task, ...]] = {}
        for file, kind in product(self.files, self.kinds):
            try:
                dim = self._fit_dim(file, sizes)
            except MemplanError as error:
                failure = Failure(error.message, error.hint, error.exit_code)
                name = self.options.fit_dim or "?"
                task = self.task(file, kind, (), None)
                found[len(found) + len(searches)] = Fit(
                    task, name, 1, budget, budget.resolve(0), failure=failure
                )
                continue
            others = {name: given for name, given in sizes.items() if name != dim}
            for chosen in grid(others):
                index = len(found) + len(searches)
                open_dims = {**dict.fromkeys(sizes, 0), **dict(chosen), dim: 0}
                searches[index] = search_fit(self._fit_request(file, kind, open_dims, dim, budget))
                wanted[index] = next(searches[index])
        while wanted:
            self.asking.ask(task for tasks in wanted.values() for task in tasks)
            for index, tasks in list(wanted.items()):
                try:
                    answers = {task: self.asking.answers[task] for task in tasks}
                    wanted[index] = searches[index].send(answers)
                except StopIteration as end:
                    found[index] = end.value
                    del wanted[index]
        return tuple(found[index] for index in sorted(found))

    def _fit_request(
        self,
        file: ModelFile,
        kind: tuple[str, str],
        dims: Mapping[str, int],
        dim: str,
        budget: SizeSpec,
    ) -> FitRequest:
        """What one search is asked; ``dims`` in the order of the grid's, the one of ``dim`` open.

        Raises:
            UsageError: the reserve leaves nothing.
        """

        def ask(value: int, asked: SizeSpec | None) -> Task:
            return self.task(file, kind, tuple({**dims, dim: value}.items()), asked)

        room = budget.resolve(0) - self._reserve(0)
        if room <= 0:
            raise UsageError(
                f"a size of {budget.text} less a reserve of {self.options.plan.reserve.text} "
                "leaves nothing"
            )
        return FitRequest(dim, self.options.fit_step, budget, room, ask)

    def _fit_dim(self, file: ModelFile, sizes: Mapping[str, Sequence[int]]) -> str:
        """The dimension whose largest value is asked for.

        Raises:
            ModelError: the model cannot be read.
            UsageError: the model has no such dimension, or it is not clear which.
        """
        known = symbolic_dims(read_model(file.path))
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
        places = list(product(self.files, self.kinds, self._grid(sizes, fits)))
        self.asking.ask(self.task(*place, None) for place in places)
        tasks = {
            self.task(*place, budget): None
            for place in places
            if isinstance(self.asking.answers[self.task(*place, None)], Footprint)
            for budget in budgets
        }
        self.asking.ask(tasks)
        rows = [(place, budget) for place in places for budget in (budgets or (None,))]
        tried = [task for task in self.asking.answers if task.plan and task not in tasks]
        self.asking.ask(replace(task, plan=None) for task in tried)
        rows += [
            ((task.file, (task.session, task.provider), task.dims), task.plan.budget)
            for task in tried
            if task.plan is not None
        ]
        ranked = sorted(rows, key=lambda row: self._rank(*row[0]))
        return tuple(self._point(*place, budget) for place, budget in ranked)

    def _grid(self, sizes: Mapping[str, Sequence[int]], fits: Sequence[Fit]) -> list[Dims]:
        open_dims = {fit.dim for fit in fits if fit.dim not in sizes}
        return [] if open_dims else list(grid(sizes))

    def _rank(self, file: ModelFile, kind: tuple[str, str], dims: Dims) -> tuple[object, ...]:
        return self.files.index(file), self.kinds.index(kind), [size for _, size in dims]

    def _point(
        self, file: ModelFile, kind: tuple[str, str], dims: Dims, budget: SizeSpec | None
    ) -> SweepPoint:
        session, provider = kind
        shape = self.asking.answers.get(self.task(file, kind, dims, None))
        answer = self.asking.answers.get(self.task(file, kind, dims, budget))
        footprint = shape if isinstance(shape, Footprint) else None
        failures = [a for a in (shape, answer) if isinstance(a, Failure)]
        room = None
        if budget is not None and footprint is not None:
            whole = footprint.peak_with_workspace_bytes
            room = budget.resolve(whole) - self._reserve(whole)
        return SweepPoint(
            model=file.path,
            dims=dict(dims),
            session=session,
            provider=provider,
            budget=budget,
            budget_bytes=room,
            footprint=footprint,
            planned=answer if isinstance(answer, Planned) else None,
            failure=failures[0] if failures else None,
        )

    def _reserve(self, whole: int) -> int:
        return self.options.plan.reserve.resolve(whole)
