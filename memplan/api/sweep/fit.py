"""The largest value of a dimension that fits a size, and at what cost.

Three searches, one inside the other: the largest that fits as it is and the largest whose floor
fits need no plan; between them, plans are made. All of them assume that what fits at one value
fits at every smaller one; whatever is seen to contradict that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace

from memplan.api.sweep.bisect import LARGEST, bracket, falls, next_numbers, straight_guess
from memplan.api.sweep.point import Answer, Failure, Footprint, Planned, Task
from memplan.units import SizeSpec, format_bytes

Search = Generator[tuple[Task, ...], Mapping[Task, Answer], "Fit"]
"""Yields questions, is sent their answers, and returns what was found."""


@dataclass(frozen=True, slots=True)
class FitRequest:
    """What to look for.

    ``ask(value, budget)`` makes the question for a value of ``dim``: without a budget what the
    model takes as it is, with one what a plan for it comes to. ``budget_bytes`` is less the
    reserve. Values are multiples of ``step``.
    """

    dim: str
    step: int
    budget: SizeSpec
    budget_bytes: int
    ask: Callable[[int, SizeSpec | None], Task]


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest value of ``dim`` that fits, in multiples of ``step``; 0: none does.

    ``task`` is a question of the search, for its model, session and provider. ``as_it_is`` needs
    no plan; ``largest`` may need one, ``plan``. ``floor_allows`` is the largest value whose floor
    fits. ``refused`` is the smallest value above ``largest`` that does not fit (None: there is
    none), ``why`` what the planner said of it. The search assumes that what fits at one value fits
    at every smaller one. ``falling`` are two values, of which the larger has the lower peak as it
    is; ``missed`` are values below ``largest`` for which no plan was found. ``failure`` ended the
    search.
    """

    task: Task
    dim: str
    step: int
    budget: SizeSpec
    budget_bytes: int
    as_it_is: int = 0
    largest: int = 0
    plan: Planned | None = None
    floor_allows: int = 0
    refused: int | None = None
    why: str = ""
    falling: tuple[int, int] | None = None
    missed: tuple[int, ...] = ()
    failure: Failure | None = None

    @property
    def how(self) -> str:
        """``as it is``, ``free`` (rewritten, nothing recomputed), ``recomputed``, ``none`` (not
        even the smallest value fits) or ``failed``."""
        if self.failure is not None:
            return "failed"
        if not self.largest:
            return "none"
        if self.plan is None or self.largest == self.as_it_is:
            return "as it is"
        return "recomputed" if self.plan.recomputes else "free"

    @property
    def monotone(self) -> bool:
        """Whether all that was seen grows with the dimension, as the search assumes."""
        return self.falling is None and not self.missed

    @property
    def others(self) -> dict[str, int]:
        """The other dimensions."""
        return {name: size for name, size in self.task.dims if name != self.dim}

    def as_json(self) -> dict[str, object]:
        """All fields, by name."""
        plan = self.plan
        return {
            "model": str(self.task.file.path),
            "dims": self.others,
            "session": self.task.session,
            "provider": self.task.provider,
            "dim": self.dim,
            "step": self.step,
            "budget": self.budget.text,
            "budget_bytes": self.budget_bytes,
            "how": self.how.replace(" ", "-"),
            "largest": self.largest,
            "as_it_is": self.as_it_is,
            "floor_allows": self.floor_allows,
            "predicted_peak_with_workspace_bytes": (
                plan.predicted_peak_with_workspace_bytes if plan else None
            ),
            "extra_cost_fraction": plan.extra_cost_fraction if plan else None,
            "bound_fraction": plan.bound_fraction if plan else None,
            "bound_kind": plan.bound_kind if plan else None,
            "recomputed_nodes": plan.recomputed_nodes if plan else None,
            "refused": self.refused,
            "why": self.why,
            "monotone": self.monotone,
            "falling": list(self.falling) if self.falling else None,
            "missed": list(self.missed),
            "error": failure_json(self.failure),
        }


def failure_json(failure: Failure | None) -> dict[str, object] | None:
    """A failure as reports state it."""
    if failure is None:
        return None
    return {
        "message": failure.message,
        "hint": failure.hint,
        "exit_code": failure.exit_code,
    }


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def search_fit(request: FitRequest) -> Search:
    """Look for the largest value; see :class:`Fit`."""
    first = request.ask(request.step, None)
    step, limit = request.step, request.budget_bytes
    footprints: dict[int, Footprint] = {}
    base = Fit(first, request.dim, step, request.budget, limit)
    try:
        as_it_is = yield from _within(request, footprints, "peak_with_workspace_bytes")
        base = replace(base, as_it_is=as_it_is * step)
        floor_allows = yield from _within(request, footprints, "floor_with_workspace_bytes")
        base = replace(base, floor_allows=floor_allows * step)
        plans = yield from _plans(request, as_it_is, floor_allows)
    except _Failed as failed:
        return replace(base, failure=failed.failure)
    fits = {number: isinstance(answer, Planned) for number, answer in plans.items()}
    low, high = bracket({**fits, as_it_is: True})
    last, refusal = plans.get(low), None if high is None else plans.get(high)
    falling = falls({n: f.peak_with_workspace_bytes for n, f in footprints.items()})
    return replace(
        base,
        largest=low * step,
        plan=last if isinstance(last, Planned) else None,
        refused=None if high is None else high * step,
        why=refusal.message if isinstance(refusal, Failure) else "",
        falling=None if falling is None else (falling[0] * step, falling[1] * step),
        missed=tuple(sorted(n * step for n, fit in fits.items() if n < low and not fit)),
    )


def _within(
    request: FitRequest, footprints: dict[int, Footprint], field: str
) -> Generator[tuple[Task, ...], Mapping[Task, Answer], int]:
    """The largest multiple of which ``field`` of the footprint is within the budget.

    ``footprints`` has what is known, and gets what is asked.
    """
    while True:
        amounts = {number: int(getattr(f, field)) for number, f in footprints.items()}
        fits = {number: nbytes <= request.budget_bytes for number, nbytes in amounts.items()}
        numbers = next_numbers(fits, straight_guess(amounts, request.budget_bytes))
        if not numbers:
            return bracket(fits)[0]
        answers = yield from _asked(request, numbers, None)
        for number, answer in answers.items():
            if not isinstance(answer, Footprint):
                assert isinstance(answer, Failure)
                raise _Failed(answer)
            footprints[number] = answer


def _plans(
    request: FitRequest, as_it_is: int, floor_allows: int
) -> Generator[tuple[Task, ...], Mapping[Task, Answer], dict[int, Answer]]:
    """Plans between what fits as it is and what the floor forbids, whose end is looked at, too:
    fusions may lower the floor."""
    plans: dict[int, Answer] = {}
    if as_it_is >= LARGEST:
        return plans
    wall = min(max(floor_allows, as_it_is), LARGEST - 1) + 1
    # That of what fits as it is costs nothing: it is where the cost begins.
    numbers = tuple(filter(None, (as_it_is, *next_numbers({as_it_is: True, wall: False}), wall)))
    while numbers:
        answers = yield from _asked(request, numbers, request.budget)
        for number, answer in answers.items():
            if isinstance(answer, Failure) and not answer.infeasible:
                raise _Failed(answer)
            plans[number] = answer
        fits = {number: isinstance(answer, Planned) for number, answer in plans.items()}
        numbers = next_numbers({**fits, as_it_is: True})
    return plans


def _asked(
    request: FitRequest, numbers: tuple[int, ...], budget: SizeSpec | None
) -> Generator[tuple[Task, ...], Mapping[Task, Answer], dict[int, Answer]]:
    tasks = {request.ask(number * request.step, budget): number for number in numbers}
    answers = yield tuple(tasks)
    return {number: answers[task] for task, number in tasks.items()}


def in_words(fit: Fit) -> str:
    """The answer in one line."""
    where = f"{fit.budget.text} ({format_bytes(fit.budget_bytes)})"
    if fit.failure is not None:
        known = f"; {fit.dim}={fit.as_it_is:,} fits as it is" if fit.as_it_is else ""
        return f"what fits {where} is not known: {fit.failure.message}{known}"
    if not fit.largest:
        return f"nothing fits {where}: not even {fit.dim}={fit.step} with recomputation"
    text = f"{fit.dim} up to {fit.largest:,} fits {where}"
    if fit.how == "as it is":
        return f"{text} as it is; rewriting does not reach further"
    unaided = f"{fit.as_it_is:,} as it is" if fit.as_it_is else "nothing as it is"
    assert fit.plan is not None
    if fit.how == "free":
        return f"{text} by what is free, without recomputation; {unaided}"
    return (
        f"{text} with recomputation, {100 * fit.plan.extra_cost_fraction:.2f}% more time "
        f"(bound {100 * fit.plan.bound_fraction:.2f}%); {unaided}"
    )


def caveats(fit: Fit) -> tuple[str, ...]:
    """What to know of the answer: what contradicts the search's assumption, and what is open."""
    notes = []
    if fit.falling is not None:
        small, large = fit.falling
        notes.append(
            f"the peak is not monotone in {fit.dim}: it is lower at {large:,} than at {small:,}; a "
            f"{fit.dim} beyond {fit.largest:,} may fit"
        )
    if fit.missed:
        values = ", ".join(f"{value:,}" for value in fit.missed)
        notes.append(
            f"no plan was found for {fit.dim}={values}, though one was for {fit.largest:,}: more "
            "effort may find larger ones, too"
        )
    if fit.refused is not None and fit.why:
        reach = f"; the floor fits up to {fit.floor_allows:,}" if fit.floor_allows else ""
        notes.append(f"{fit.dim}={fit.refused:,}: {fit.why}{reach}")
    return tuple(notes)
