"""The largest value of a dimension that fits a size, and at what cost.

The same bisection three times: the largest that fits as it is and the largest whose floor fits need
no plan; between them, plans are made. It assumes that what fits at one value fits at every smaller
one; whatever is seen to contradict that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from memplan.api.summary import attributes_json, fields_json
from memplan.api.sweep.point import PLAN, Answer, Failure, Footprint, Planned, Task, known_json
from memplan.units import SizeSpec, format_bytes

LARGEST = 2**40
"""Where the search ends: no dimension is larger."""

Ask = Callable[[Sequence[Task], SizeSpec | None], Sequence[Answer]]
"""Answers questions: without a budget what the model takes as it is, with one what a plan for it
comes to."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest value of ``dim`` that fits, in multiples of ``step``; 0: none does.

    ``task`` is a question for its model, session, provider and other dimensions. ``budget_bytes``
    is less the reserve. ``as_it_is`` needs no plan; ``largest`` may need one, ``plan``.
    ``floor_allows`` is the largest value whose floor fits. ``refused`` is the smallest value above
    ``largest`` that does not fit (None: there is none), ``why`` what the planner said of it. The
    search assumes that what fits at one value fits at every smaller one. ``falling`` are two
    values, of which the larger has the lower peak as it is; ``missed`` are values below ``largest``
    for which no plan was found. ``failure`` ended the search.
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
        return {
            "model": str(self.task.model),
            "dims": self.others,
            **attributes_json(self.task, "session", "provider"),
            **attributes_json(self, "dim", "step"),
            "budget": self.budget.text,
            "budget_bytes": self.budget_bytes,
            "how": self.how.replace(" ", "-"),
            **attributes_json(self, "largest", "as_it_is", "floor_allows"),
            **known_json(self.plan, *PLAN),
            **attributes_json(self, "refused", "why", "monotone", "falling", "missed"),
            "error": None if self.failure is None else fields_json(self.failure),
        }


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def find_fit(wanted: Fit, ask: Ask) -> Fit:
    """Look for what ``wanted`` leaves open; see :class:`Fit`."""
    found, step, limit = wanted, wanted.step, wanted.budget_bytes
    shapes, plans = _Asked(ask, wanted, None), _Asked(ask, wanted, wanted.budget)
    try:
        as_it_is, _ = shapes.bisect(lambda shape: shape.peak_with_workspace_bytes <= limit)
        found = replace(found, as_it_is=as_it_is * step)
        floor_allows, _ = shapes.bisect(lambda shape: shape.floor_with_workspace_bytes <= limit)
        found = replace(found, floor_allows=floor_allows * step)
        if as_it_is < LARGEST:
            # What the floor forbids is looked at, too: fusions may lower it. The plan of what fits
            # as it is costs nothing: it is where the cost begins.
            wall = min(max(floor_allows, as_it_is), LARGEST - 1) + 1
            first = (as_it_is, *next_numbers(as_it_is, wall), wall)
            plans.ask([number for number in first if number])
        low, high = plans.bisect(lambda plan: isinstance(plan, Planned), as_it_is)
    except _Failed as failed:
        return replace(found, failure=failed.failure)
    last, refusal = plans.answers.get(low), None if high is None else plans.answers[high]
    return replace(
        found,
        largest=low * step,
        plan=last if isinstance(last, Planned) else None,
        refused=None if high is None else high * step,
        why=refusal.message if isinstance(refusal, Failure) else "",
        falling=_falling({n * step: shape for n, shape in shapes.answers.items()}),
        missed=tuple(
            number * step
            for number, answer in sorted(plans.answers.items())
            if number < low and isinstance(answer, Failure)
        ),
    )


class _Asked:
    """Answers by number, in multiples of the step."""

    def __init__(self, ask: Ask, wanted: Fit, budget: SizeSpec | None) -> None:
        self._ask, self._wanted, self._budget = ask, wanted, budget
        self.answers: dict[int, Any] = {}

    def ask(self, numbers: Sequence[int]) -> None:
        """Find the answers for ``numbers``.

        Raises:
            _Failed: one could not be answered.
        """
        task, dim, step = self._wanted.task, self._wanted.dim, self._wanted.step
        sizes = [{**dict(task.dims), dim: number * step} for number in numbers]
        tasks = [replace(task, dims=tuple(each.items())) for each in sizes]
        for number, answer in zip(numbers, self._ask(tasks, self._budget), strict=True):
            if isinstance(answer, Failure) and not (self._budget and answer.infeasible):
                raise _Failed(answer)
            self.answers[number] = answer

    def bisect(self, fits: Callable[[Any], bool], low: int = 0) -> tuple[int, int | None]:
        """The largest number that fits (``low`` does), and the smallest above it that does not."""
        while True:
            fitting = {number: fits(answer) for number, answer in self.answers.items()}
            low = max([low, *(number for number, fit in fitting.items() if fit)])
            above = [number for number, fit in fitting.items() if not fit and number > low]
            high = min(above, default=None)
            numbers = next_numbers(low, high)
            if not numbers:
                return low, high
            self.ask(numbers)


def next_numbers(low: int, high: int | None) -> tuple[int, ...]:
    """What to look at where ``low`` fits and ``high`` does not (None: none is known that does not);
    nothing where the answer is known.

    Up to three, whatever the number of cores, so that the same are looked at everywhere.
    """
    if high is None:
        least = 2 * low or 1
        wanted = {min(number, LARGEST) for number in (least, 2 * least, 4 * least)}
    else:
        wanted = {low + part * (high - low) // 4 for part in (1, 2, 3)}
    return tuple(sorted(wanted - {low}))


def _falling(shapes: Mapping[int, Footprint]) -> tuple[int, int] | None:
    """The first two neighbours of which the larger value has the lower peak."""
    peaks = sorted((value, shape.peak_with_workspace_bytes) for value, shape in shapes.items())
    for (small, peak), (large, then) in pairwise(peaks):
        if then < peak:
            return small, large
    return None


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
