"""One offline HTML file for an analysis: no network, no library, about 2 MB at most.

The pictures are SVG made here, so they show without scripts; the script beside them adds hovering,
zooming and sorting. Every name in a model file is untrusted: it is escaped here, reaches the
script as JSON and is only ever set as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from memplan.api.analysis import ACCOUNTING_VERSION, Analysis
from memplan.report.html.chart import (
    STACK,
    WORKSPACE,
    Steps,
    kept_steps,
    script_data,
    stacked_layers,
    timeline_figure,
)
from memplan.report.html.document import document, figure_list, scroll
from memplan.report.html.sections import module_section, narrowing_section, tensors_section
from memplan.report.html.short_names import escape
from memplan.simulate.explain import Live, TensorClass
from memplan.simulate.timeline import Bytes
from memplan.units import counted, format_bytes

if TYPE_CHECKING:
    pass

_COLUMNS = (
    ("tensor", "text"),
    ("size", "number"),
    ("class", "text"),
    ("module", "text"),
    ("made by", "text"),
    ("birth", "number"),
    ("death", "number"),
    ("life", "span"),
    ("held by", "text"),
)


def analysis_html(analysis: Analysis, top: int = 20) -> str:
    """The analysis as a self-contained page.

    Args:
        analysis: what to show.
        top: how many of the tensors live at the peak to list, largest first.
    """
    layers = stacked_layers(analysis)
    kept = kept_steps(sum(layers.values(), np.zeros(len(analysis.timeline.order), np.int64)))
    data = script_data(analysis, layers, kept)
    body = [
        _header(analysis),
        _figures(analysis),
        _timeline_section(analysis, layers, kept),
        _live_section(analysis, top),
        tensors_section(),
        narrowing_section(analysis),
        '<div class="columns">',
        module_section(analysis.stashes),
        _notes_section(analysis),
        "</div>",
        f"<footer>memplan · fingerprint {escape(analysis.fingerprint)} · accounting version "
        f"{ACCOUNTING_VERSION} · predicted; nothing was run and no weights were read</footer>",
    ]
    return document(analysis.path.name, body, data)


def _header(analysis: Analysis) -> str:
    timeline = analysis.timeline
    where = ""
    if timeline.order:
        where = f' <span class="where">{escape(analysis.peak_place)}</span>'
    facts = {
        "model": str(analysis.path),
        "session": f"{analysis.session.name}, {analysis.session.provider}",
        "nodes": f"{len(analysis.graph.nodes):,}",
        "tensors": f"{len(analysis.graph.tensors):,}",
    }
    if analysis.dims:
        facts["dims"] = ", ".join(f"{name}={value}" for name, value in analysis.dims.items())
    items = "".join(f"<span>{key} <b>{escape(value)}</b></span>" for key, value in facts.items())
    return (
        f'<header><div class="brand">memplan · memory of one training step</div>'
        f"<h1>peak {format_bytes(timeline.peak_with_workspace_bytes)}{where}</h1>"
        f'<div class="facts">{items}</div></header>'
    )


def _figures(analysis: Analysis) -> str:
    timeline = analysis.timeline
    stash = sum(s.nbytes for s in analysis.stashes)
    at_peak = format_bytes(analysis.by_class.get(TensorClass.STASH, 0))
    kept = counted(len(analysis.stashes), "tensor")
    whole = timeline.peak_with_workspace_bytes
    beside = ("with workspace", whole, "what a budget is held against")
    if timeline.lifted:
        beside = ("tensors alone", timeline.peak_bytes, "what runs show; workspace is predicted")
    figures = (
        ("peak", whole, f"{whole:,} B"),
        beside,
        ("resident", timeline.resident_bytes, "there before step 0"),
        ("dynamic peak", timeline.dynamic_peak_bytes, "tensors made during the step"),
        ("stash", stash, f"{kept} for the backward pass, {at_peak} at the peak"),
        ("floor", analysis.floor_with_workspace_bytes, "no budget below this can be met"),
    )
    shown = ((name, format_bytes(value), note) for name, value, note in figures)
    return figure_list(shown, main="peak")


def _timeline_section(analysis: Analysis, layers: Mapping[str, Bytes], kept: Steps) -> str:
    if not len(kept):
        return "<section><h2>Memory over the step</h2><p>The graph has no nodes.</p></section>"
    hint = (
        "drag to zoom, double-click to reset; click to list what is alive at a step; arrow keys "
        "move the cursor"
    )
    if len(kept) < len(analysis.timeline.order):
        hint += f" · {len(kept):,} of {len(analysis.timeline.order):,} steps drawn"
    alone = " of tensors alone" if analysis.timeline.lifted else ""
    return (
        f"<section><h2>Memory over the step <small>{hint}</small></h2>"
        f"{timeline_figure(analysis, layers, kept)}"
        f"<h2>What the peak{alone} is made of</h2>{_legend(analysis)}</section>"
    )


def _legend(analysis: Analysis) -> str:
    """The classes at the peak, which sum to it, as one bar and as figures."""
    peak = max(1, analysis.timeline.peak_bytes)
    shown = [(name, analysis.by_class[name]) for name in STACK if analysis.by_class.get(name)]
    bar = "".join(f'<i style="flex:{size};background:var(--{name})"></i>' for name, size in shown)
    rows = [
        (str(name), format_bytes(size), _share(size / peak))
        for name, size in sorted(shown, key=lambda item: -item[1])
    ]
    if analysis.timeline.workspace.any():
        scratch = int(analysis.timeline.workspace[analysis.timeline.peak_step])
        rows.append((WORKSPACE, format_bytes(scratch), "at that step, beside it"))
    items = "".join(
        f'<li><span class="swatch" style="background:var(--{name})"></span>'
        f"{name.replace('_', ' ')} <b>{size}</b> {note}</li>"
        for name, size, note in rows
    )
    return f'<div class="bar">{bar}</div><ul class="legend">{items}</ul>'


def _share(fraction: float) -> str:
    return f"{100 * fraction:.1f}%" if fraction >= 0.0005 else "&lt;0.1%"


def _live_section(analysis: Analysis, top: int) -> str:
    shown, rest = analysis.at_peak[:top], analysis.at_peak[top:]
    heads = "".join(
        f'<th class="{kind}" data-kind="{kind}"{_sorted_at_first(name)}>'
        f'<button type="button">{name}</button></th>'
        for name, kind in _COLUMNS
    )
    steps = max(1, len(analysis.timeline.order))
    rows = "".join(_live_row(live, analysis.timeline.peak_step, steps) for live in shown)
    more = ""
    if rest:
        size = format_bytes(sum(live.nbytes for live in rest))
        more = (
            f'<tfoot><tr><td colspan="{len(_COLUMNS)}">and {len(rest):,} more, {size} together'
            "</td></tr></tfoot>"
        )
    resident = format_bytes(analysis.timeline.resident_bytes)
    lifted = analysis.timeline.lifted
    return (
        f"<section><h2>Live at the peak{' of tensors alone' if lifted else ''} <small>"
        f"{counted(len(analysis.at_peak), 'tensor')} made during the "
        f"step; beside them {resident} resident</small></h2>{scroll('live at the peak')}"
        f'<table class="live"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>{more}</table>'
        "</div></section>"
    )


def _sorted_at_first(column: str) -> str:
    return ' aria-sort="descending"' if column == "size" else ""


def _live_row(live: Live, peak: int, steps: int) -> str:
    death = "end" if live.death >= steps else str(live.death)
    start, length = 100 * live.birth / steps, 100 * (live.death - live.birth) / steps
    color = f"background:var(--{live.tensor_class})"
    life = (
        f'<div class="life"><i style="left:{start:.2f}%;width:{length:.2f}%;{color}"></i>'
        f'<b style="left:{100 * peak / steps:.2f}%"></b></div>'
    )
    name = str(live.tensor_class).replace("_", " ")
    return (
        f"<tr>{_cell(live.name, code=True)}"
        f'<td class="number" data-value="{live.nbytes}" title="{live.nbytes:,} B">'
        f"{format_bytes(live.nbytes)}</td>"
        f'<td><span class="swatch" style="{color}"></span>{name}</td>'
        f"{_cell(live.module)}{_cell(live.producer, code=True)}"
        f'<td class="number" data-value="{live.birth}">{live.birth}</td>'
        f'<td class="number" data-value="{live.death}">{death}</td>'
        f'<td data-value="{live.death - live.birth}">{life}</td>{_cell(live.held_by)}</tr>'
    )


def _cell(text: str, *, code: bool = False) -> str:
    shown = escape(text)
    return f'<td title="{shown}">{f"<code>{shown}</code>" if code else shown}</td>'


def _notes_section(analysis: Analysis) -> str:
    notes = analysis.assumptions or ("none: every operator and shape of this graph is known",)
    return (
        f'<section><h2>What pins the floor</h2><p class="text">{escape(analysis.floor.line)}</p>'
        f'<h2 class="second">Assumptions</h2><ul class="text">{_items(notes)}</ul></section>'
    )


def _items(texts: Iterable[str]) -> str:
    return "".join(f"<li>{escape(text)}</li>" for text in texts)
