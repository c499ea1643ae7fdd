"""Memory over a step on a page: stacked areas as SVG, and the data behind their tooltips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from memplan.api.analysis import Analysis
from memplan.api.diff.graph_changes import common_order
from memplan.ir.graph import Phase
from memplan.report.html.short_names import NameTable, shorten
from memplan.report.parts import Timelines
from memplan.simulate.allocation import is_resident
from memplan.simulate.explain import Explainer, TensorClass
from memplan.simulate.timeline import Bytes
from memplan.units import format_bytes

Steps = npt.NDArray[np.int64]

MAX_POINTS = 4000
"""Steps that a chart draws at most."""
WORKSPACE = "workspace"
# Bottom to top: what no plan can move, what piles up, what comes and goes.
STACK = (
    TensorClass.WEIGHTS,
    TensorClass.OPTIMIZER_STATE,
    TensorClass.INPUTS,
    TensorClass.CONSTANTS,
    TensorClass.OUTPUT,
    TensorClass.STASH,
    TensorClass.GRADIENT,
    TensorClass.ACTIVATION,
)
_MAX_BANDS = 300
_HEIGHT = 1000
_HEADROOM = 1.13
_GRID_LINES = 6
_HINT = "drag to zoom, double-click to reset; arrow keys move the cursor"
_HINT_OF_ONE = f"{_HINT}; click to list what is alive at a step"
_BAND_WITH_LABEL = 0.055


def timeline_sections(part: Timelines) -> tuple[list[str], list[dict[str, object]]]:
    """A section for each analysis, all on one scale, and what the script needs for each chart."""
    steps = part.analyses.values()
    highest = max(step.timeline.peak_with_workspace_bytes for step in steps) * _HEADROOM
    sections, data = [], []
    earlier: Analysis | None = None
    for title, analysis in part.analyses.items():
        count = len(analysis.timeline.order)
        layers = stacked_layers(analysis)
        kept = kept_steps(_total(analysis, layers))
        hint = _HINT if part.counterparts else _HINT_OF_ONE
        over, figure = "", "<p>The graph has no nodes.</p>"
        if earlier is not None and earlier.timeline.order and part.counterparts is not None:
            places = common_order(earlier, analysis, part.counterparts)
            over = _outline(earlier, places, count, highest)
            hint = f"dashed: before, below the same nodes · {_HINT}"
        if len(kept) < count:
            hint += f" · {len(kept):,} of {count:,} steps drawn"
        if count:
            figure = _figure(analysis, layers, kept, title, max(highest, 1.0), over)
            data.append(_chart_data(analysis, layers, kept))
        sections.append(f"<section><h2>{title} <small>{hint}</small></h2>{figure}</section>")
        earlier = analysis
    return sections, data


def _total(analysis: Analysis, layers: Mapping[str, Bytes]) -> Bytes:
    return sum(layers.values(), np.zeros(len(analysis.timeline.order), np.int64))


def stacked_layers(analysis: Analysis) -> dict[str, Bytes]:
    """Bytes per class and step, bottom to top, with kernel workspace as the last layer; what is
    never there is left out.

    The classes of a step sum to the dynamic and the resident bytes of the timeline. Bytes inside
    control-flow bodies count as activations, as in :meth:`Explainer.by_class`.
    """
    explainer, timeline = analysis.explainer, analysis.timeline
    change = {name: np.zeros(len(timeline.order) + 1, dtype=np.int64) for name in STACK}
    for tensor in timeline.graph.tensors:
        if is_resident(tensor):
            change[explainer.class_of(tensor)][0] += tensor.nbytes
    for buffer in timeline.allocation.buffers:
        delta = change[explainer.buffer_class(buffer)]
        delta[buffer.birth] += buffer.nbytes
        delta[buffer.death] -= buffer.nbytes
    series = {str(name): np.cumsum(delta)[:-1] for name, delta in change.items()}
    inside = timeline.dynamic + timeline.resident_bytes - sum(series.values())
    series[TensorClass.ACTIVATION] = series[TensorClass.ACTIVATION] + inside
    series[WORKSPACE] = timeline.workspace
    return {name: values for name, values in series.items() if values.any()}


def kept_steps(total: Bytes) -> Steps:
    """Steps to draw: all of them, or at most so many with the local maxima of ``total`` (bytes).

    Each kept step stands for those up to the next. If there are more maxima than points, every
    stretch of equal length keeps its highest and its lowest step: no high peak is ever lost.
    """
    steps = np.arange(len(total), dtype=np.int64)
    if len(steps) <= MAX_POINTS:
        return steps
    before, after = total[:-2], total[2:]
    maxima = steps[1:-1][(total[1:-1] > before) & (total[1:-1] >= after)]
    ends = np.array([0, len(total) - 1, int(total.argmax())], dtype=np.int64)
    room = MAX_POINTS - len(maxima) - len(ends)
    if room < MAX_POINTS // 4:
        stretches = np.array_split(steps, (MAX_POINTS - len(ends)) // 2)
        found = [s[[total[s].argmax(), total[s].argmin()]] for s in stretches]
        return np.unique(np.concatenate([*found, ends]))
    lowest = [s[total[s].argmin()] for s in np.array_split(steps, room)]
    return np.unique(np.concatenate([maxima, ends, np.array(lowest, dtype=np.int64)]))


def _figure(
    analysis: Analysis,
    layers: Mapping[str, Bytes],
    kept: Steps,
    title: str,
    highest: float,
    over: str,
) -> str:
    """Phase bands, areas of ``layers`` (bytes per step) at the ``kept`` steps, floor and peak.

    Positions are fractions of the picture, so that it stretches; the script moves them when the
    reader zooms. ``highest`` are the bytes at the upper edge; ``over`` is drawn above all
    (:func:`_outline`).
    """
    timeline = analysis.timeline
    count = len(timeline.order)
    bands = _phase_bands(analysis.explainer)
    floor, step = analysis.floor_with_workspace_bytes, timeline.peak_with_workspace_step
    peak = timeline.peak_with_workspace_bytes
    below = {name: 100 * value / highest for name, value in (("peak", peak), ("floor", floor))}
    ticks = [(100 * size / highest, label) for size, label in _size_ticks(highest)]
    grid = "".join(_rule("grid", percent, count) for percent, _ in ticks)
    tints = "".join(
        f'<rect class="tint" x="{start}" y="0" width="{end - start}" height="{_HEIGHT}" '
        f'fill="var(--{phase})"/>'
        for phase, start, end in bands
    )
    labels = "".join(
        f'<span class="label" style="bottom:{percent:.2f}%">{label}</span>'
        for percent, label in ticks
    )
    legend = "".join(
        f'<li><span class="swatch" style="background:var(--{name})"></span>{name}</li>'
        for name in layers
    )
    side = 100 * (step + 0.5) / count
    edge = " right" if side > 93 else " left" if side < 7 else ""
    return (
        f'<div class="chart" tabindex="0" role="img" aria-label="{title}: bytes in '
        f"memory at each of {count:,} steps; peak {format_bytes(peak)} at step "
        f'{step:,}">'
        f'<div class="phases">{"".join(_band(*band, count) for band in bands)}</div>'
        f'<div class="plot">{labels}<svg viewBox="0 0 {count} {_HEIGHT}" '
        f'preserveAspectRatio="none">{tints}{grid}{_areas(layers, kept, count, highest)}'
        f"{_rule('floor', below['floor'], count)}{over}</svg>"
        f'<div class="overlay"><span class="note-floor" style="bottom:calc({below["floor"]:.2f}% '
        f'+ 3px)">floor {format_bytes(floor)}</span>'
        f'<div class="brush" hidden></div><div class="cursor" hidden></div></div>'
        f'<div class="peak{edge}" style="left:{side:.3f}%;bottom:{below["peak"]:.2f}%">'
        f"<span>peak {format_bytes(peak)}</span></div>"
        f'<div class="tip" hidden></div></div><div class="steps">'
        f'<span style="left:0">step 0</span><span style="left:100%">{count}</span></div></div>'
        f'<ul class="legend">{legend}</ul>'
    )


def _size_ticks(highest: float) -> Iterator[tuple[float, str]]:
    """Round sizes in binary units, at most six above zero."""
    powers = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B"))
    unit, name = next((2.0**power, name) for power, name in powers if highest >= 2.0**power)
    scales = (s * 10.0**e for e in range(-3, 6) for s in (1, 2, 5))
    scale = next(s for s in scales if highest / unit / s <= _GRID_LINES)
    for k in range(int(highest / unit / scale) + 1):
        yield k * scale * unit, f"{k * scale:g} {name}" if k else "0"


def _rule(kind: str, percent: float, count: int) -> str:
    y = _HEIGHT * (1 - percent / 100)
    return f'<line class="{kind}" x1="0" x2="{count}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _areas(layers: Mapping[str, Bytes], kept: Steps, count: int, highest: float) -> str:
    """Stacked steps, painted from the sum of all layers down, so that each needs one edge."""
    edge = np.zeros(len(kept), dtype=np.int64)
    areas: list[str] = []
    for name, values in layers.items():
        edge = edge + values[kept]
        levels = np.round(_HEIGHT * (1 - edge / highest)).astype(np.int64)
        changed = np.flatnonzero(np.diff(levels, prepend=levels[:1] - 1))
        path = "".join(
            f"H{step}V{level}"
            for step, level in zip(kept[changed].tolist(), levels[changed].tolist(), strict=True)
        )
        areas.append(f'<path fill="var(--{name})" d="M0 {_HEIGHT}{path}H{count}V{_HEIGHT}Z"/>')
    return "".join(reversed(areas))


def _outline(old: Analysis, common: Sequence[tuple[int, int]], end: int, highest: float) -> str:
    """The upper edge of another timeline over one of ``end`` steps: ``common`` are its steps and
    those of the same nodes."""
    total = _total(old, stacked_layers(old))
    kept = kept_steps(total)
    run = [(0, 0), *((a + 1, b + 1) for a, b in common)]
    if run[-1][0] < len(total):
        run.append((len(total), end))
    before, after = zip(*run, strict=True)
    places = np.interp(np.append(kept, len(total)), before, after)
    levels = np.round(_HEIGHT * (1 - total[kept] / highest)).astype(np.int64)
    changed = np.flatnonzero(np.diff(levels, prepend=levels[:1] - 1))
    path = "".join(
        f"L{place:.1f} {level}" if (place, level) == (0, levels[0]) else f"H{place:.1f}V{level}"
        for place, level in zip(places[changed].tolist(), levels[changed].tolist(), strict=True)
    )
    return f'<path class="before" d="M0 {levels[0]}{path}H{places[-1]:.1f}"/>'


def _phase_bands(explainer: Explainer) -> list[tuple[Phase, int, int]]:
    """Phases as (phase, first step, end), or the commonest per stretch when they alternate."""
    phases = list(Phase)
    codes = np.array([phases.index(explainer.phases.of[n]) for n in explainer.timeline.order])
    steps = np.arange(len(codes))
    if np.count_nonzero(np.diff(codes)) > _MAX_BANDS:
        for stretch in np.array_split(steps, _MAX_BANDS):
            codes[stretch] = np.bincount(codes[stretch]).argmax()
    starts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    return [(phases[codes[start]], start, end) for start, end in pairwise(starts)]


def _band(phase: Phase, start: int, end: int, count: int) -> str:
    width = (end - start) / count
    narrow = "" if width >= _BAND_WITH_LABEL else " class=narrow"
    return (
        f'<span{narrow} data-from="{start}" data-to="{end}" title="{phase}: steps {start} to '
        f'{end - 1}" style="left:{100 * start / count:.3f}%;width:{100 * width:.3f}%;'
        f'background:var(--{phase})">{phase}</span>'
    )


def _chart_data(analysis: Analysis, layers: Mapping[str, Bytes], kept: Steps) -> dict[str, object]:
    """Of one timeline: bytes per layer and the node, for every kept step."""
    graph, order = analysis.graph, analysis.timeline.order
    nodes = [graph.nodes[order[step]] for step in kept.tolist()]
    ops, modules = NameTable(), NameTable()
    return {
        "count": len(order),
        "peak": analysis.timeline.peak_with_workspace_step,
        "steps": kept.tolist(),
        "layers": [[name, _compact(values[kept])] for name, values in layers.items()],
        "names": [shorten(node.name) for node in nodes],
        "op": [ops.index(shorten(node.op)) for node in nodes],
        "module": [modules.index(shorten(analysis.modules[node.id])) for node in nodes],
        "phase": [list(Phase).index(analysis.phases.of[node.id]) for node in nodes],
        "phases": [str(phase) for phase in Phase],
        "ops": ops.names,
        "modules": modules.names,
    }


def _compact(values: Bytes) -> int | list[int]:
    return int(values[0]) if len(values) and (values == values[0]).all() else values.tolist()
