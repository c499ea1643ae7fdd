"""Memory over the step as a small picture for notebooks, below the rows of an answer.

One SVG without script and style sheet. Its texts take the colour of the notebook's own, so that it
can be read on light and on dark; no name from a file is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from memplan.report.html.chart import (
    HEADROOM,
    areas,
    class_layers,
    kept_steps,
    phase_bands,
    size_ticks,
)
from memplan.report.html.document import asset
from memplan.simulate.explain import Explainer
from memplan.units import format_bytes

_WIDTH, _HEIGHT = 760, 206
_LEFT, _BETWEEN, _TOP, _BOTTOM = 60, 22, 24, 162
_MOST_POINTS, _MOST_BANDS = 160, 40
_BAND_WITH_LABEL = 56
_BESIDE_NAME, _CHARACTER = 30, 6.0


def picture(drawn: Sequence[tuple[str, Explainer]]) -> str:
    """Timelines beside each other on one scale, each under its name; those with a node."""
    drawn = [(name, explainer) for name, explainer in drawn if explainer.timeline.order]
    if not drawn:
        return ""
    peaks = [explainer.timeline.peak_bytes for _, explainer in drawn]
    highest = max(1.0, *(peak * HEADROOM for peak in peaks))
    width = (_WIDTH - _LEFT - _BETWEEN * (len(drawn) - 1)) / len(drawn)
    panels, told = list[str](), list[str]()
    names = dict[str, None]()
    for k, (name, explainer) in enumerate(drawn):
        title = f"peak {format_bytes(peaks[k])}" + (_share(peaks[0], peaks[k]) if k else "")
        title = f"{name}: {title}" if name else title
        panels.append(_panel(explainer, title, _LEFT + k * (width + _BETWEEN), width, highest))
        told.append(title)
        names.update(dict.fromkeys(class_layers(explainer)))
    first = _dashes(_LEFT, _WIDTH - _LEFT, peaks[0], highest) if len(drawn) > 1 else ""
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="bytes in memory over the '
        f'step, {"; ".join(told)}" style="{_colors()}display:block;width:100%;max-width:{_WIDTH}px;'
        f'height:auto;font:11px system-ui,sans-serif" fill="currentColor">'
        f"{_scale(highest)}{''.join(panels)}{first}{_legend(names)}</svg>"
    )


def _share(before: int, after: int) -> str:
    return f" ({100 * (after - before) / before:+.1f}%)" if before else ""


def _panel(explainer: Explainer, title: str, left: float, width: float, highest: float) -> str:
    """One timeline: its title, the areas of its classes, its peak and its phases."""
    timeline = explainer.timeline
    count = len(timeline.order)
    layers = class_layers(explainer)
    kept = kept_steps(sum(layers.values(), np.zeros(count, np.int64)), _MOST_POINTS)
    bands = "".join(
        _band(phase, left + start * width / count, (end - start) * width / count)
        for phase, start, end in phase_bands(explainer, _MOST_BANDS)
    )
    return (
        f'<text x="{left:.0f}" y="14" font-size="12.5" font-weight="600">{title}</text>'
        f'<svg x="{left:.1f}" y="{_TOP}" width="{width:.1f}" height="{_BOTTOM - _TOP}" '
        f'viewBox="0 0 {count} 1000" preserveAspectRatio="none">'
        f"{areas(layers, kept, count, highest)}</svg>"
        f"{_dashes(left, width, timeline.peak_bytes, highest)}{bands}"
    )


def _dashes(left: float, width: float, size: int, highest: float) -> str:
    return (
        f'<path d="M{left:.1f} {_place(size, highest):.1f}h{width:.1f}" stroke="currentColor" '
        f'stroke-dasharray="3 3" opacity=".5"/>'
    )


def _band(phase: str, left: float, width: float) -> str:
    label = (
        f'<text x="{left:.1f}" y="{_BOTTOM + 16}" opacity=".75">{phase}</text>'
        if width >= _BAND_WITH_LABEL
        else ""
    )
    return (
        f'<rect x="{left:.1f}" y="{_BOTTOM + 1}" width="{width:.1f}" height="3" '
        f'style="fill:var(--{phase})"/>{label}'
    )


def _scale(highest: float) -> str:
    return "".join(
        f'<path d="M{_LEFT} {(y := _place(size, highest)):.1f}H{_WIDTH}" stroke="currentColor" '
        f'opacity=".15"/><text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" opacity=".75">'
        f"{label}</text>"
        for size, label in size_ticks(highest)
    )


def _place(size: float, highest: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * size / highest


def _legend(names: Iterable[str]) -> str:
    parts, x = [], float(_LEFT)
    for name in names:
        parts.append(
            f'<rect x="{x:.0f}" y="{_HEIGHT - 15}" width="9" height="9" rx="2" '
            f'style="fill:var(--{name})"/><text x="{x + 13:.0f}" y="{_HEIGHT - 7}" '
            f'opacity=".75">{name.replace("_", " ")}</text>'
        )
        x += _BESIDE_NAME + _CHARACTER * len(name)
    return "".join(parts)


def _colors() -> str:
    """The colours of the pages, those for a light background: they stand out on a dark one, too."""
    light = asset("report.css").split("@media")[0]
    classes = light[light.index("--weights") :]
    return "".join(re.findall(r"--\w+:\s*#\w+;", classes))
