"""Curves as SVG: a figure with some lines, made here, so that it shows without scripts.

All texts are escaped here. A point tells its figures when the pointer rests on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memplan.report.html.short_names import escape

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 14, 34
_MOST_LABELS = 8
_LABEL_APART = 46


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of a curve; ``text`` is what it tells. ``missing``: there is no value; it is drawn as
    a cross at the top."""

    x: float
    y: float
    text: str
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """``color`` is the name of a colour of the style."""

    name: str
    color: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """``ticks`` are heights and their labels, from 0 to at most ``top``; ``names`` are labels on
    the x axis, by position, which carries the ``axis`` in words."""

    title: str
    axis: str
    names: tuple[tuple[float, str], ...]
    ticks: tuple[tuple[float, str], ...]
    top: float
    curves: tuple[Curve, ...]


def figure_svg(figure: Figure) -> str:
    """The figure, with a legend."""
    span = _Span(figure)
    grid = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{span.y(value):.1f}" '
        f'y2="{span.y(value):.1f}"/><text x="{_LEFT - 8}" y="{span.y(value) + 4:.1f}" '
        f'text-anchor="end">{escape(label)}</text>'
        for value, label in figure.ticks
    )
    below = "".join(
        f'<text x="{span.x(value):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">'
        f"{escape(label)}</text>"
        for value, label in _apart(figure.names, span)
    )
    lines = "".join(_curve(curve, span) for curve in figure.curves)
    legend = "".join(
        f'<li><span class="swatch" style="background:var(--{curve.color})"></span>'
        f"{escape(curve.name)}</li>"
        for curve in figure.curves
    )
    return (
        f'<figure class="curves"><figcaption>{escape(figure.title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(figure.title)}">{grid}{below}'
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end" class="axis">'
        f'{escape(figure.axis)}</text>{lines}</svg><ul class="legend">{legend}</ul></figure>'
    )


class _Span:
    """From values to places in the picture."""

    def __init__(self, figure: Figure) -> None:
        places = [mark.x for curve in figure.curves for mark in curve.marks]
        self._first, self._last = min(places, default=0.0), max(places, default=1.0)
        self._top = figure.top or 1.0

    def x(self, value: float) -> float:
        """From the left edge; a single value stands in the middle."""
        width = _WIDTH - _LEFT - _RIGHT - 16
        if self._last == self._first:
            return _LEFT + 8 + width / 2
        return _LEFT + 8 + width * (value - self._first) / (self._last - self._first)

    def y(self, value: float) -> float:
        """From the upper edge."""
        height = _HEIGHT - _TOP - _BOTTOM
        return _TOP + height * (1 - min(value / self._top, 1.0))


def _apart(names: Sequence[tuple[float, str]], span: _Span) -> list[tuple[float, str]]:
    """Labels that do not touch each other, the outermost among them."""
    kept: list[tuple[float, str]] = []
    ranked = sorted(dict(names).items())
    for value, label in [*ranked[-1:], *ranked[:-1]]:
        if all(abs(span.x(value) - span.x(other)) >= _LABEL_APART for other, _ in kept):
            kept.append((value, label))
        if len(kept) == _MOST_LABELS:
            break
    return kept


def _curve(curve: Curve, span: _Span) -> str:
    drawn = [mark for mark in curve.marks if not mark.missing]
    path = "".join(
        f"{'L' if k else 'M'}{span.x(mark.x):.1f} {span.y(mark.y):.1f}"
        for k, mark in enumerate(drawn)
    )
    color = f"var(--{curve.color})"
    dots = "".join(
        f'<circle cx="{span.x(mark.x):.1f}" cy="{span.y(mark.y):.1f}" r="3.5" fill="{color}">'
        f"<title>{escape(mark.text)}</title></circle>"
        for mark in drawn
    )
    crosses = "".join(
        f'<path class="missing" d="M{span.x(mark.x) - 4:.1f} {_TOP - 4}l8 8m0 -8l-8 8" '
        f'stroke="{color}"><title>{escape(mark.text)}</title></path>'
        for mark in curve.marks
        if mark.missing
    )
    line = f'<path class="curve" d="{path}" stroke="{color}"/>' if len(drawn) > 1 else ""
    return f"{line}{dots}{crosses}"
