"""What ``sweep`` says: the answers of fits, then a row per point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.api.sweep.fit import caveats, in_words
from memplan.api.sweep.sweep_result import Status, planned_by
from memplan.report.parts import (
    Column,
    Line,
    Notes,
    Part,
    Report,
    Spelled,
    Table,
)
from memplan.report.tell.state import AS_TRAINED
from memplan.units import counted

if TYPE_CHECKING:
    from memplan.api.sweep.sweep_result import Sweep, SweepPoint

_FAILURES_SHOWN = 5


def headline(sweep: Sweep) -> str:
    """The answer in one line."""
    return in_words(sweep.fits[0]) if len(sweep.fits) == 1 else sweep.summary


def tell_sweep(sweep: Sweep, details: bool = False) -> Report:
    """Fits, table, what failed, assumptions; ``details`` names every failure."""
    differs = varying(sweep)
    parts: list[Part] = []
    for fit in sweep.fits:
        task = fit.task
        where = differs.named(task.model, fit.others, task.session, task.provider)
        parts.append(Line(f"{where}{in_words(fit)}"))
        parts += [f"- {note}" for note in caveats(fit)]
    if not sweep.fits:
        parts.append(Line(sweep.summary))
    parts += _facts(sweep, differs)
    parts.append(_table(sweep, differs))
    parts += _failures(sweep, differs, details)
    parts.append(Notes(assumed(sweep)))
    names = ", ".join(path.name for path in sweep.models)
    return Report(parts, f"sweep of {names}")


@dataclass(frozen=True, slots=True)
class Varying:
    """What differs between the points of a sweep; the rest is said once.

    ``texts``: of model, session and provider those that differ; ``dims``: dimensions that do.
    ``fixed``: what does not, in words. ``names`` shortens models' paths.
    """

    texts: tuple[str, ...]
    dims: tuple[str, ...]
    fixed: tuple[str, ...]
    names: Mapping[Path, str]

    def values(self, model: Path, session: str, provider: str) -> list[str]:
        """Those of ``texts``."""
        every = {"model": self.names[model], "session": session, "provider": provider}
        return [every[name] for name in self.texts]

    def named(self, model: Path, dims: Mapping[str, int], session: str, provider: str) -> str:
        """What a line is about, with a colon: no more than tells it from others; may be empty."""
        parts = self.values(model, session, provider)
        parts += [f"{name}={size}" for name, size in dims.items()]
        return f"{', '.join(parts)}: " if parts else ""


def varying(sweep: Sweep) -> Varying:
    """What differs between the points of a sweep, and what does not."""
    kinds = [(p.session, p.provider) for p in sweep.points]
    kinds += [(f.task.session, f.task.provider) for f in sweep.fits]
    sessions, providers = ({kind[k] for kind in kinds} for k in (0, 1))
    texts = ["model"] if len(sweep.models) > 1 else []
    texts += ["session"] if len(sessions) > 1 else []
    texts += ["provider"] if len(providers) > 1 else []
    dims = sweep.dims
    found = {name for name, sizes in dims.items() if len(sizes) > 1 or len(sweep.points) == 1} | {
        fit.dim for fit in sweep.fits if fit.dim in dims
    }
    fixed = [f"{next(iter(sessions))} session"] if len(sessions) == 1 else []
    fixed += [f"on {next(iter(providers))}"] if len(providers) == 1 else []
    fixed += [f"{name}={sizes[0]}" for name, sizes in dims.items() if name not in found]
    return Varying(
        tuple(texts), tuple(n for n in dims if n in found), tuple(fixed), _names(sweep.models)
    )


def _names(models: tuple[Path, ...]) -> dict[Path, str]:
    """File names where they tell the models apart, else paths."""
    short = {model: model.name for model in models}
    return short if len(set(short.values())) == len(models) else {m: str(m) for m in models}


def assumed(sweep: Sweep) -> list[str]:
    """The assumptions, each once; of those that not all points rest on, how many do."""
    whole, found = len(sweep.points), []
    for note in sweep.assumptions:
        count = sweep.shared_by(note)
        found.append(note if count == whole else f"{note} ({count} of {whole} points)")
    return found


def _facts(sweep: Sweep, differs: Varying) -> list[str]:
    """What all points have in common."""
    models = sweep.models
    what = str(models[0]) if len(models) == 1 else counted(len(models), "model")
    facts = [", ".join([what, *differs.fixed])]
    if any(p.budget for p in sweep.points):
        facts.append(f"planned by {planned_by(sweep.options)}")
    bound = {p.model for p in sweep.points if p.footprint and p.footprint.state_in_place}
    if bound:
        where = "" if len(bound) == len(models) else f" in {counted(len(bound), 'model')}"
        facts.append(f"state in place{where}, {AS_TRAINED}")
    return facts


def _table(sweep: Sweep, differs: Varying) -> Table:
    planned = any(point.budget is not None for point in sweep.points)
    failed = any(point.failure is not None for point in sweep.points)
    columns = [Column(name, "name") for name in differs.texts]
    columns += [Column(name, "count") for name in differs.dims]
    columns += [Column("budget", "number")] if planned else []
    columns += [Column("peak", "bytes"), Column("floor", "bytes")]
    if planned:
        columns += [
            Column("planned", "bytes"),
            Column("extra time", "percent"),
            Column("bound", "percent"),
            Column("clones", "count"),
        ]
    columns += [Column("why not", "phrase", wide=True)] if failed else []
    rows = []
    for point in sweep.points:
        shape = point.footprint
        row: list[object] = [*differs.values(point.model, point.session, point.provider)]
        row += [point.dims.get(name) for name in differs.dims]
        budget = point.budget and Spelled(point.budget.text, point.budget_bytes or 0)
        row += [budget] if planned else []
        row.append(shape.peak_with_workspace_bytes if shape else "failed")
        row.append(shape and shape.floor_with_workspace_bytes)
        row += _plan_cells(point) if planned else []
        row += [point.failure and point.failure.message] if failed else []
        rows.append(row)
    estimated = "; extra time is estimated" if planned else ""
    return Table(f"Peaks with kernel workspace{estimated}", columns, rows)


def _plan_cells(point: SweepPoint) -> list[object]:
    plan = point.planned
    if plan is not None:
        return [
            plan.predicted_peak_with_workspace_bytes,
            plan.extra_cost_fraction,
            plan.bound_fraction,
            plan.recomputed_nodes,
        ]
    if point.footprint is None or point.budget is None:
        return [None, None, None, None]
    if point.status is Status.FAILED:
        return ["failed", None, None, None]
    room, floor = point.budget_bytes or 0, point.footprint.floor_with_workspace_bytes
    return ["no plan", "below floor" if room < floor else None, None, None]


def _failures(sweep: Sweep, differs: Varying, details: bool) -> Iterator[Part]:
    """Why there is no answer; that there is no plan is in the table."""
    failed = [p for p in sweep.points if p.failure is not None]
    if not details:
        failed = [p for p in failed if p.status is Status.FAILED]
    shown = failed if details else failed[:_FAILURES_SHOWN]
    if shown:
        yield from ("", Line("Without an answer"))
    for point in shown:
        assert point.failure is not None
        where = differs.named(point.model, point.dims, point.session, point.provider)
        budget = f"{point.budget.text}: " if point.budget else ""
        hint = f" ({point.failure.hint})" if point.failure.hint else ""
        yield f"- {where}{budget}{point.failure.message}{hint}"
    if len(failed) > len(shown):
        yield f"- {len(failed) - len(shown)} more (-v shows them)"
