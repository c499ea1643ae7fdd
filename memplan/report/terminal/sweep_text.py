"""``memplan sweep`` as text: the answers of fits, then one row per point, 80 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from memplan.api.sweep.fit import caveats, in_words
from memplan.api.sweep.sweep_result import Status, planned_by
from memplan.report.sweep_columns import assumed, named, varying
from memplan.report.terminal.state_text import AS_TRAINED
from memplan.report.terminal.tables import Table, group, line, notes, section
from memplan.units import counted, format_bytes

if TYPE_CHECKING:
    from memplan.api.sweep.sweep_result import Sweep, SweepPoint

_FAILURES_SHOWN = 5


def headline(sweep: Sweep) -> str:
    """The answer in one line."""
    return in_words(sweep.fits[0]) if len(sweep.fits) == 1 else sweep.summary


def render(sweep: Sweep, *, details: bool = False) -> Group:
    """Fits, table, what failed, assumptions."""
    parts: list[RenderableType] = []
    for fit in sweep.fits:
        where = named(fit.task.model, fit.others, fit.task.session, fit.task.provider, sweep)
        parts.append(line(f"{where}{in_words(fit)}", "bold"))
        parts += [line(f"- {note}") for note in caveats(fit)]
    if not sweep.fits:
        parts.append(line(sweep.summary, "bold"))
    parts += [line(text) for text in _facts(sweep)]
    if sweep.points:
        parts += section(_table(sweep))
    failed = [p for p in sweep.points if p.failure is not None]
    if not details:
        failed = [p for p in failed if p.status is Status.FAILED]
    shown = failed if details else failed[:_FAILURES_SHOWN]
    if shown:
        parts += section(line("Without an answer", "bold"))
        parts += [line(f"- {_failure(point, sweep)}") for point in shown]
    if len(failed) > len(shown):
        parts.append(line(f"- {len(failed) - len(shown)} more (-v shows them)"))
    return group([*parts, *notes(assumed(sweep), details)])


def _facts(sweep: Sweep) -> list[str]:
    """What all points have in common."""
    fixed = varying(sweep).fixed
    models = sweep.models
    what = str(models[0]) if len(models) == 1 else counted(len(models), "model")
    facts = [", ".join([what, *fixed]), f"planned by {planned_by(sweep.options)}"]
    if not any(p.budget for p in sweep.points):
        del facts[1]
    bound = {p.model for p in sweep.points if p.footprint and p.footprint.state_in_place}
    if bound:
        where = "" if len(bound) == len(models) else f" in {counted(len(bound), 'model')}"
        facts.append(f"state in place{where}, {AS_TRAINED}")
    return facts


def _table(sweep: Sweep) -> Table:
    columns = varying(sweep)
    planned = any(point.budget is not None for point in sweep.points)
    heads = [(name, "name") for name in columns.texts] + [(name, "number") for name in columns.dims]
    heads += [("budget", "number")] if planned else []
    heads += [("peak", "number"), ("floor", "number")]
    more = ("planned", "extra time", "bound", "clones")
    heads += [(name, "number") for name in more] if planned else []
    estimated = "; extra time is estimated" if planned else ""
    table = Table(f"Peaks with kernel workspace{estimated}", *heads)
    for point in sweep.points:
        cells = [columns.text(point, name) for name in columns.texts]
        cells += [_size(point.dims.get(name)) for name in columns.dims]
        cells += [point.budget.text if point.budget else ""] if planned else []
        cells += _footprint_cells(point)
        cells += _plan_cells(point) if planned else []
        table.row(*cells)
    return table


def _size(size: int | None) -> str:
    return "" if size is None else f"{size:,}"


def _footprint_cells(point: SweepPoint) -> list[str]:
    found = point.footprint
    if found is None:
        return ["failed", ""]
    return [
        format_bytes(found.peak_with_workspace_bytes),
        format_bytes(found.floor_with_workspace_bytes),
    ]


def _plan_cells(point: SweepPoint) -> list[str]:
    plan = point.planned
    if plan is not None:
        return [
            format_bytes(plan.predicted_peak_with_workspace_bytes),
            f"{100 * plan.extra_cost_fraction:.2f}%",
            f"{100 * plan.bound_fraction:.2f}%",
            f"{plan.recomputed_nodes:,}",
        ]
    if point.footprint is None or point.budget is None:
        return ["", "", "", ""]
    if point.status is Status.FAILED:
        return ["failed", "", "", ""]
    room, floor = point.budget_bytes or 0, point.footprint.floor_with_workspace_bytes
    return ["no plan", "below floor" if room < floor else "", "", ""]


def _failure(point: SweepPoint, sweep: Sweep) -> str:
    assert point.failure is not None
    where = named(point.model, point.dims, point.session, point.provider, sweep)
    budget = f"{point.budget.text}: " if point.budget else ""
    hint = f" ({point.failure.hint})" if point.failure.hint else ""
    return f"{where}{budget}{point.failure.message}{hint}"
