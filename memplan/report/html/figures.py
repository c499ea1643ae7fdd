"""Curves as SVG: columns of a table over another one, made here, so that they show without scripts.

All texts are escaped here. A point tells its figures when the pointer rests on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from math import isfinite

from memplan.report.html.short_names import escape
from memplan.report.parts import Column, Curves, Row, Spelled
from memplan.units import counted

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 14, 34
_MOST_LABELS = 8
_LABEL_APART = 46
_HEADROOM = 1.08
_GRID_LINES = 6
_MOST_FAMILIES = 24
_COLORS = ("activation", "gradient", "output", "workspace", "optimizer_state", "inputs")
_Point = tuple[float, float | None, str]
"""Places along x and y (None: there is no value), and what the point tells."""


def curve_sections(curves: Curves) -> Iterator[str]:
    """A section for each set of rows that are drawn together."""
    columns, (first, *_) = curves.table.columns, next(iter(curves.figures.values()))
    families: dict[str, list[Row]] = {}
    for row in curves.table.rows:
        if number(row[first]) is not None:
            name = ", ".join(_named(columns[place], row[place]) for place in curves.apart)
            families.setdefault(name, []).append(row)
    for name, rows in list(families.items())[:_MOST_FAMILIES]:
        drawn = "".join(_figure(curves, title, rows) for title in curves.figures)
        heading = escape(name or "Curves")
        yield f'<section><h2>{heading}</h2><div class="pair">{drawn}</div></section>'
    if len(families) > _MOST_FAMILIES:
        left = counted(len(families) - _MOST_FAMILIES, "more set")
        yield f"<section><p>Curves of {left} are left out; the table has all points.</p></section>"


def _named(column: Column, value: object) -> str:
    return f"{column.heading}={value}" if column.numeric else str(value)


def number(value: object) -> float | None:
    """What a value is sorted and drawn by."""
    found = value.value if isinstance(value, Spelled) else value
    return found if isinstance(found, int | float) and isfinite(found) else None


def _lines(
    curves: Curves, title: str, rows: Sequence[Row]
) -> Iterator[tuple[str, str, Sequence[_Point]]]:
    """Name, color and points of every line; one where all values of ``by`` have the same."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: number(row[curves.x]) or 0):
        groups.setdefault("" if curves.by is None else str(row[curves.by]), []).append(row)
    for y, color in zip(curves.figures[title], ("stash", "weights", *_COLORS), strict=False):
        heading = curves.table.columns[y].heading
        found = [tuple(_point(curves, y, row) for row in each) for each in groups.values()]
        if len(set(found)) == 1:
            yield heading, color, found[0]
        else:
            names = (f"{heading}, {name}" for name in groups)
            yield from zip(names, cycle(_COLORS), found, strict=False)


def _point(curves: Curves, y: int, row: Row) -> _Point:
    columns, x, height = curves.table.columns, curves.x, number(row[y])
    told = columns[y].shown(row[y]) if height is not None else columns[-1].shown(row[-1])
    where = f"{columns[x].heading} = {columns[x].shown(row[x])}"
    return number(row[x]) or 0.0, height, f"{where}: {told}"


def _figure(curves: Curves, title: str, rows: Sequence[Row]) -> str:
    """One picture, with a legend."""
    lines = list(_lines(curves, title, rows))
    span = _Span([point for _, _, points in lines for point in points])
    columns, x = curves.table.columns, curves.x
    in_bytes = columns[curves.figures[title][0]].kind == "bytes"
    grid = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{span.y(value):.1f}" '
        f'y2="{span.y(value):.1f}"/><text x="{_LEFT - 8}" y="{span.y(value) + 4:.1f}" '
        f'text-anchor="end">{label}</text>'
        for value, label in (size_ticks if in_bytes else _percent_ticks)(span.highest)
    )
    names = {number(row[x]): row[x] for row in rows}
    below = "".join(
        f'<text x="{span.x(value):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">'
        f"{escape(columns[x].shown(names.get(value)))}</text>"
        for value in _apart(span)
    )
    legend = "".join(
        f'<li><span class="swatch" style="background:var(--{color})"></span>{escape(name)}</li>'
        for name, color, _ in lines
    )
    drawn = "".join(_line(*line, span) for line in lines)
    return (
        f'<figure class="curves"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{grid}{below}'
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end" class="axis">'
        f'{escape(columns[x].heading)}</text>{drawn}</svg><ul class="legend">{legend}</ul></figure>'
    )


class _Span:
    """From values to places in the picture."""

    def __init__(self, points: Sequence[_Point]) -> None:
        self.places = sorted({x for x, _, _ in points})
        self.highest = max((y for _, y, _ in points if y is not None), default=0.0) or 0.001

    def x(self, value: float) -> float:
        """From the left edge; a single value stands in the middle."""
        width, first, last = _WIDTH - _LEFT - _RIGHT - 16, self.places[0], self.places[-1]
        if last == first:
            return _LEFT + 8 + width / 2
        return _LEFT + 8 + width * (value - first) / (last - first)

    def y(self, value: float) -> float:
        """From the upper edge."""
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / (self.highest * _HEADROOM))


def _apart(span: _Span) -> list[float]:
    """Places whose labels do not touch each other, the outermost among them."""
    kept: list[float] = []
    for value in [*span.places[-1:], *span.places[:-1]]:
        if all(abs(span.x(value) - span.x(other)) >= _LABEL_APART for other in kept):
            kept.append(value)
    return kept[:_MOST_LABELS]


def size_ticks(highest: float) -> Iterator[tuple[float, str]]:
    """Round sizes in binary units, at most six above zero."""
    powers = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B"))
    unit, name = next((2.0**power, name) for power, name in powers if highest >= 2.0**power)
    return _ticks(highest, unit, f" {name}")


def _percent_ticks(highest: float) -> Iterator[tuple[float, str]]:
    return _ticks(highest, 0.01, "%")


def _ticks(highest: float, unit: float, name: str) -> Iterator[tuple[float, str]]:
    scales = (s * 10.0**e for e in range(-3, 6) for s in (1, 2, 5))
    scale = next(s for s in scales if highest / unit / s <= _GRID_LINES)
    for k in range(int(highest / unit / scale) + 1):
        yield k * scale * unit, f"{k * scale:g}{name}" if k else "0"


def _line(name: str, color: str, points: Sequence[_Point], span: _Span) -> str:
    path, dots = "", ""
    for place, height, told in points:
        title = f"<title>{escape(f'{name}: {told}')}</title>"
        if height is None:
            cross = f'd="M{span.x(place) - 4:.1f} {_TOP - 4}l8 8m0 -8l-8 8"'
            dots += f'<path class="missing" {cross} stroke="var(--{color})">{title}</path>'
        else:
            x, y = f"{span.x(place):.1f}", f"{span.y(height):.1f}"
            path += f"{'L' if path else 'M'}{x} {y}"
            dots += f'<circle cx="{x}" cy="{y}" r="3.5" fill="var(--{color})">{title}</circle>'
    return f'<path class="curve" d="{path}" stroke="var(--{color})"/>{dots}'
