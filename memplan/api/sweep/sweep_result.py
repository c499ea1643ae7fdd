"""What ``sweep`` answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.summary import Summary, attributes_json, fields_json
from memplan.api.sweep.fit import Fit
from memplan.api.sweep.point import FOOTPRINT, PLAN, Failure, Footprint, Planned, known_json
from memplan.api.versions import runtime_json
from memplan.errors import EXIT_BUG, InfeasibleError, MemplanError
from memplan.options import SweepOptions
from memplan.units import SizeSpec, counted

SCHEMA = "memplan.sweep/1"


class Status(StrEnum):
    """What became of a point."""

    ANALYZED = "analyzed"
    PLANNED = "planned"
    INFEASIBLE = "infeasible"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """A row of the table: what was asked, and what came of it.

    ``footprint`` is there wherever the model could be analyzed, ``planned`` where a budget was
    given and is kept, ``failure`` where there is no plan, or no answer at all. ``budget_bytes``
    is less the reserve.
    """

    model: Path
    dims: Mapping[str, int]
    session: str
    provider: str
    budget: SizeSpec | None
    budget_bytes: int | None
    footprint: Footprint | None
    planned: Planned | None = None
    failure: Failure | None = None

    @property
    def status(self) -> Status:
        """What became of it."""
        if self.failure is not None:
            return Status.INFEASIBLE if self.failure.infeasible else Status.FAILED
        return Status.ANALYZED if self.planned is None else Status.PLANNED

    def as_json(self) -> dict[str, object]:
        """All fields, by name; null where there is nothing to say."""
        return {
            **attributes_json(self, "model", "dims", "session", "provider"),
            "budget": self.budget.text if self.budget else None,
            "budget_bytes": self.budget_bytes,
            "status": str(self.status),
            **known_json(self.footprint, *FOOTPRINT),
            **known_json(self.planned, "predicted_peak_bytes", *PLAN),
            "error": None if self.failure is None else fields_json(self.failure),
        }


@dataclass(frozen=True, slots=True, repr=False)
class Sweep(Summary):
    """The answer of ``sweep``.

    ``points`` are those that were asked for, in the order of models, sessions, providers,
    dimensions and budgets; plans that the search for ``fits`` made are among them.
    """

    points: tuple[SweepPoint, ...]
    fits: tuple[Fit, ...]
    options: SweepOptions
    providers: tuple[str, ...]

    @property
    def models(self) -> tuple[Path, ...]:
        """The models, each once."""
        found = [p.model for p in self.points] + [f.task.model for f in self.fits]
        return tuple(dict.fromkeys(found))

    @property
    def dims(self) -> dict[str, tuple[int, ...]]:
        """Every dimension with its sizes."""
        found: dict[str, dict[int, None]] = {}
        for point in self.points:
            for name, size in point.dims.items():
                found.setdefault(name, {})[size] = None
        return {name: tuple(sizes) for name, sizes in found.items()}

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Those of all points, each once."""
        answers = [a for p in self.points for a in (p.footprint, p.planned) if a is not None]
        return tuple(dict.fromkeys(note for a in answers for note in a.assumptions))

    def shared_by(self, note: str) -> int:
        """How many points rest on an assumption."""
        return sum(
            any(note in answer.assumptions for answer in (p.footprint, p.planned) if answer)
            for p in self.points
        )

    @property
    def counts(self) -> dict[Status, int]:
        """How many points came to what; what none came to is left out."""
        every = [point.status for point in self.points]
        return {status: every.count(status) for status in Status if status in every}

    @property
    def summary(self) -> str:
        """The points in one line."""
        counts = ", ".join(f"{number} {status}" for status, number in self.counts.items())
        return f"{counted(len(self.points), 'point')}: {counts}" if self.points else "no points"

    @property
    def error(self) -> MemplanError | None:
        """Why the question has no answer at all, for the exit code; None if it has one.

        With fits, they are the question; else the points. A bug is told in any case.
        """
        failures = [p.failure for p in self.points if p.failure is not None]
        failures += [f.failure for f in self.fits if f.failure is not None]
        bugs = [failure for failure in failures if failure.exit_code == EXIT_BUG]
        if bugs:
            return _error(bugs[0])
        if self.fits:
            answered = any(fit.largest for fit in self.fits)
        else:
            answered = any(p.failure is None for p in self.points)
        if answered:
            return None
        nothing = any(fit.how == "none" for fit in self.fits)
        if nothing or any(failure.infeasible for failure in failures):
            what = "nothing fits" if self.fits else "no point keeps its budget"
            return InfeasibleError(what, "the table shows the floors: no budget below them works")
        return _error(max(failures, key=lambda failure: failure.exit_code)) if failures else None

    @property
    def title(self) -> str:
        """What ``repr`` heads it with."""
        return self.summary

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        options = self.options.plan
        return {
            "schema": SCHEMA,
            "strategy": options.strategy,
            "optimize": options.optimize,
            "effort": options.effort or None,
            "time_limit_seconds": None if options.effort else options.time_limit,
            "reserve": options.reserve.text,
            "accounting_version": ACCOUNTING_VERSION,
            **attributes_json(self, "points", "fits", "assumptions"),
            "runtime": {provider: runtime_json(provider) for provider in self.providers},
        }


def planned_by(options: SweepOptions) -> str:
    """Strategy and effort, in words."""
    plan = options.plan
    if not plan.effort:
        return f"{plan.strategy}, {plan.time_limit:g} s a plan (by the clock)"
    return f"{plan.strategy}, effort {plan.effort}"


def _error(failure: Failure) -> MemplanError:
    error = MemplanError(failure.message, failure.hint)
    error.exit_code = failure.exit_code
    return error
