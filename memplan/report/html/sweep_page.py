"""A sweep as one offline HTML file: what fits, the curves, and the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf

from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.sweep.fit import caveats, in_words
from memplan.api.sweep.sweep_result import Sweep, SweepPoint, planned_by
from memplan.report.html.chart import size_ticks
from memplan.report.html.curves import Curve, Figure, Mark, figure_svg
from memplan.report.html.document import document, scroll, sortable_heads
from memplan.report.html.short_names import escape
from memplan.report.sweep_columns import Columns, assumed, named, varying
from memplan.units import counted, format_bytes

_COLORS = ("activation", "gradient", "output", "workspace", "optimizer_state", "inputs")
_MOST_FAMILIES = 24
_HEADROOM = 1.08
_LAST = 1e18
"""What has no number stands behind all that do, however the table is sorted."""


def sweep_html(sweep: Sweep) -> str:
    """The sweep as a self-contained page."""
    names = ", ".join(path.name for path in sweep.models)
    body = [
        _header(sweep),
        *_fits_section(sweep),
        *_curve_sections(sweep),
        _table_section(sweep),
        _notes_section(sweep),
        f"<footer>memplan · accounting version {ACCOUNTING_VERSION} · predicted; no step was run"
        "</footer>",
    ]
    return document(f"sweep of {names}", body)


def _header(sweep: Sweep) -> str:
    facts = {"models": ", ".join(map(str, sweep.models)), "planned by": planned_by(sweep.options)}
    fixed = varying(sweep).fixed
    if fixed:
        facts["all points"] = ", ".join(fixed)
    items = "".join(f"<span>{key} <b>{escape(value)}</b></span>" for key, value in facts.items())
    title = in_words(sweep.fits[0]) if len(sweep.fits) == 1 else sweep.summary
    return (
        '<header><div class="brand">memplan · a sweep</div>'
        f'<h1>{escape(title)}</h1><div class="facts">{items}</div></header>'
    )


def _fits_section(sweep: Sweep) -> Iterator[str]:
    """Every answer and what to know of it; an only answer is the headline already."""
    items = ""
    for fit in sweep.fits:
        where = named(fit.task.model, fit.others, fit.task.session, fit.task.provider, sweep)
        told = [] if len(sweep.fits) == 1 else [f"<b>{escape(where + in_words(fit))}</b>"]
        told += [escape(note) for note in caveats(fit)]
        items += f"<li>{'<br>'.join(told)}</li>" if told else ""
    if items:
        yield f'<section><h2>What fits</h2><ul class="text">{items}</ul></section>'


def _curve_sections(sweep: Sweep) -> Iterator[str]:
    """Two figures for each set of points that differ in one dimension and the budget."""
    families: dict[str, list[SweepPoint]] = {}
    dim = _x_dim(sweep)
    for point in sweep.points:
        if point.footprint is not None:
            others = {name: size for name, size in point.dims.items() if name != dim}
            shown = {n: s for n, s in others.items() if n in varying(sweep).dims}
            name = named(point.model, shown, point.session, point.provider, sweep)
            families.setdefault(name.removesuffix(": "), []).append(point)
    for name, points in list(families.items())[:_MOST_FAMILIES]:
        figures = figure_svg(_memory(points, dim))
        if any(point.planned for point in points):
            figures += figure_svg(_extra_time(points, dim))
        title = escape(name or "Curves")
        yield f'<section><h2>{title}</h2><div class="pair">{figures}</div></section>'
    if len(families) > _MOST_FAMILIES:
        left = counted(len(families) - _MOST_FAMILIES, "more set")
        yield f"<section><p>Curves of {left} are left out; the table has all points.</p></section>"


def _x_dim(sweep: Sweep) -> str | None:
    """The dimension along the x axis: a fit's, else the one with most sizes; None: the budget."""
    if sweep.fits and sweep.fits[0].dim in sweep.dims:
        return sweep.fits[0].dim
    several = {name: len(sizes) for name, sizes in sweep.dims.items() if len(sizes) > 1}
    return max(several, key=lambda name: several[name]) if several else None


def _place(point: SweepPoint, dim: str | None) -> float:
    return float(point.dims.get(dim, 0) if dim else point.budget_bytes or 0)


def _axis(points: Sequence[SweepPoint], dim: str | None) -> tuple[tuple[float, str], ...]:
    label: Callable[[float], str] = (
        (lambda x: f"{x:,.0f}") if dim else (lambda x: format_bytes(int(x)))
    )
    return tuple((x, label(x)) for x in sorted({_place(p, dim) for p in points}))


def _where(point: SweepPoint, dim: str | None) -> str:
    parts = [f"{dim}={point.dims.get(dim)}"] if dim else []
    parts += [f"budget {point.budget.text}"] if point.budget else []
    return ", ".join(parts)


def _memory(points: Sequence[SweepPoint], dim: str | None) -> Figure:
    """Bytes: the peak as it is, the floor, and what plans come to."""
    ranked = sorted(points, key=lambda point: _place(point, dim))
    once = list({_place(point, dim): point for point in ranked}.values())
    curves = [
        Curve("peak as it is", "stash", tuple(_peak_mark(p, dim, "peak") for p in once)),
        Curve("floor", "weights", tuple(_peak_mark(p, dim, "floor") for p in once)),
    ]
    curves += [
        Curve(
            f"planned, {text}",
            color,
            tuple(_planned_mark(p, dim) for p in found if p.planned),
        )
        for text, color, found in _by_budget(ranked, dim)
        if any(p.planned for p in found)
    ]
    highest = max(mark.y for curve in curves for mark in curve.marks)
    return Figure(
        "Peak memory, kernel workspace included",
        dim or "budget",
        _axis(points, dim),
        tuple(size_ticks(highest)),
        highest * _HEADROOM,
        tuple(curves),
    )


def _peak_mark(point: SweepPoint, dim: str | None, what: str) -> Mark:
    assert point.footprint is not None
    found = point.footprint
    size = found.peak_with_workspace_bytes if what == "peak" else found.floor_with_workspace_bytes
    where = f"{dim}={point.dims.get(dim)}: " if dim else ""
    return Mark(_place(point, dim), size, f"{where}{what} {format_bytes(size)}")


def _planned_mark(point: SweepPoint, dim: str | None) -> Mark:
    assert point.planned is not None
    size = point.planned.predicted_peak_with_workspace_bytes
    return Mark(_place(point, dim), size, f"{_where(point, dim)}: {format_bytes(size)}")


def _by_budget(
    points: Sequence[SweepPoint], dim: str | None
) -> Iterator[tuple[str, str, list[SweepPoint]]]:
    """Name, colour and points of every budget; one curve of all where budgets are the x axis."""
    found: dict[str, list[SweepPoint]] = {}
    for point in points:
        if point.budget is not None:
            found.setdefault(point.budget.text if dim else "by budget", []).append(point)
    for k, (text, members) in enumerate(found.items()):
        yield text, _COLORS[k % len(_COLORS)], members


def _extra_time(points: Sequence[SweepPoint], dim: str | None) -> Figure:
    """Percent: what plans cost, and crosses where there is none."""
    ranked = sorted(points, key=lambda point: _place(point, dim))
    curves = [
        Curve(f"extra time, {text}", color, tuple(_time_mark(p, dim) for p in found))
        for text, color, found in _by_budget(ranked, dim)
    ]
    highest = max((mark.y for c in curves for mark in c.marks if not mark.missing), default=0.0)
    top = max(highest, 0.1)
    return Figure(
        "Extra time (a cross: no plan)",
        dim or "budget",
        _axis(points, dim),
        tuple(_percent_ticks(top)),
        top * _HEADROOM,
        tuple(curves),
    )


def _time_mark(point: SweepPoint, dim: str | None) -> Mark:
    where, plan = _where(point, dim), point.planned
    if plan is None:
        why = point.failure.message if point.failure else "no plan"
        return Mark(_place(point, dim), 0.0, f"{where}: {why}", missing=True)
    percent = 100 * plan.extra_cost_fraction
    bound = f" (bound {100 * plan.bound_fraction:.2f}%)"
    return Mark(_place(point, dim), percent, f"{where}: {percent:.2f}% more time{bound}")


def _percent_ticks(highest: float) -> Iterator[tuple[float, str]]:
    scales = (s * 10.0**e for e in range(-3, 6) for s in (1, 2, 5))
    scale = next(s for s in scales if highest / s <= 6)
    for k in range(int(highest / scale) + 1):
        yield k * scale, f"{k * scale:g}%"


def _table_section(sweep: Sweep) -> str:
    columns = varying(sweep)
    heads = [(name, "text") for name in columns.texts] + [(name, "number") for name in columns.dims]
    numbers = ("budget", "peak", "floor", "planned", "extra time", "bound", "clones")
    heads += [(name, "number") for name in numbers]
    told = any(point.failure for point in sweep.points)
    heads += [("why not", "text")] if told else []
    cells = sortable_heads(heads)
    rows = "".join(f"<tr>{_row(point, columns, told)}</tr>" for point in sweep.points)
    return (
        f"<section><h2>Points <small>{escape(sweep.summary)}; peaks with kernel workspace, extra "
        f'time estimated</small></h2>{scroll("points")}<table class="live"><thead><tr>'
        f"{cells}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _row(point: SweepPoint, columns: Columns, told: bool) -> str:
    cells = [f"<td>{escape(columns.text(point, name))}</td>" for name in columns.texts]
    for name in columns.dims:
        size = point.dims.get(name)
        cells.append(_number(size, f"{size:,}" if size is not None else ""))
    text = point.budget.text if point.budget else ""
    cells.append(_number(point.budget_bytes, text))
    shape, plan = point.footprint, point.planned
    cells.append(_bytes(shape.peak_with_workspace_bytes if shape else None))
    cells.append(_bytes(shape.floor_with_workspace_bytes if shape else None))
    cells.append(_bytes(plan.predicted_peak_with_workspace_bytes if plan else None))
    for fraction in (plan.extra_cost_fraction, plan.bound_fraction) if plan else (None, None):
        cells.append(
            _number(None, "") if fraction is None else _number(fraction, f"{100 * fraction:.2f}%")
        )
    cells.append(_number(plan.recomputed_nodes, f"{plan.recomputed_nodes:,}") if plan else _EMPTY)
    if told:
        why = escape(point.failure.message if point.failure else "")
        cells.append(f'<td title="{why}">{why}</td>')
    return "".join(cells)


def _number(value: float | None, text: str) -> str:
    place = _LAST if value is None or value == inf else value
    return f'<td class="number" data-value="{place}">{escape(text)}</td>'


_EMPTY = _number(None, "")


def _bytes(nbytes: int | None) -> str:
    return _EMPTY if nbytes is None else _number(nbytes, format_bytes(nbytes))


def _notes_section(sweep: Sweep) -> str:
    notes = assumed(sweep) or ["none: every operator and shape is known"]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<section><h2>Assumptions</h2><ul class="text">{items}</ul></section>'
