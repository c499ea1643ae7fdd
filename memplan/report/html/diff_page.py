"""Before and after as one offline HTML file: two timelines on one scale, and what lies between.

The old one is also drawn as an outline over the new one, so that nodes which are in both stand
below each other.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from memplan.api.analysis import ACCOUNTING_VERSION, Analysis
from memplan.api.diff.diff_result import ChangeGroup, Diff, left_the_peak
from memplan.api.diff.graph_changes import common_order
from memplan.report.diff_words import (
    WORDS,
    dims_line,
    graph_line,
    headline,
    place,
    reason,
    what_of,
    work_lines,
)
from memplan.report.html.chart import (
    HEADROOM,
    chart_data,
    charts_json,
    kept_steps,
    outline,
    stacked_layers,
    timeline_figure,
)
from memplan.report.html.document import document, figure_list, scroll, sortable_heads
from memplan.report.html.short_names import escape
from memplan.simulate.timeline import Bytes
from memplan.units import counted, format_bytes, format_delta

_MOST_ROWS = 200
_HINT = "drag to zoom, double-click to reset; arrow keys move the cursor"


def diff_html(diff: Diff) -> str:
    """The diff as a self-contained page."""
    figures, data = _timelines(diff)
    body = [
        _header(diff),
        _figures(diff),
        *figures,
        _left_section(diff),
        _class_section(diff),
        _change_section(diff),
        _notes_section(diff),
        f"<footer>memplan · fingerprints {escape(diff.old.fingerprint)} and "
        f"{escape(diff.new.fingerprint)} · accounting version {ACCOUNTING_VERSION} · predicted; "
        "nothing was run and no weights were read</footer>",
    ]
    return document(f"{diff.old.path.name} and {diff.new.path.name}", body, data)


def _header(diff: Diff) -> str:
    why = reason(diff)
    facts = {
        "old": place(diff.old),
        "new": place(diff.new),
        "session": f"{diff.new.session.name}, {diff.new.session.provider}",
        **({"dims": dims_line(diff)} if dims_line(diff) else {}),
    }
    items = "".join(f"<span>{key} <b>{escape(value)}</b></span>" for key, value in facts.items())
    return (
        '<header><div class="brand">memplan · before and after</div>'
        f"<h1>{escape(headline(diff))}</h1>"
        f"{f'<p class=where>{escape(why)}</p>' if why else ''}"
        f'<div class="facts">{items}</div></header>'
    )


def _figures(diff: Diff) -> str:
    old, new = diff.old.timeline, diff.new.timeline
    figures = (
        ("peak before", format_bytes(old.peak_bytes), f"{old.peak_bytes:,} B"),
        ("peak after", format_bytes(new.peak_bytes), f"{new.peak_bytes:,} B"),
        ("difference", format_delta(diff.delta_bytes), f"{diff.delta_bytes:+,} B"),
        (
            "with workspace, after",
            format_bytes(new.peak_with_workspace_bytes),
            "what a budget is held against",
        ),
    )
    return figure_list(figures, main="peak after")


def _timelines(diff: Diff) -> tuple[list[str], str]:
    """Both charts on one scale, and the data of their tooltips."""
    sides = (diff.old, diff.new)
    highest = max(side.timeline.peak_with_workspace_bytes for side in sides) * HEADROOM
    shown, data = [], []
    for side, title in zip(sides, ("Before", "After"), strict=True):
        layers = stacked_layers(side)
        kept = kept_steps(_total(side, layers.values()))
        if not len(kept):
            shown.append(f"<section><h2>{title}</h2><p>The graph has no nodes.</p></section>")
            continue
        over = _outline(diff, highest) if side is diff.new and diff.old.timeline.order else ""
        note = f"dashed: before, below the same nodes · {_HINT}" if over else _HINT
        figure = timeline_figure(side, layers, kept, highest=highest, over=over, title=title)
        shown.append(f"<section><h2>{title} <small>{note}</small></h2>{figure}</section>")
        data.append(chart_data(side, layers, kept))
    return shown, charts_json(data)


def _total(analysis: Analysis, layers: Iterable[Bytes]) -> Bytes:
    return sum(layers, np.zeros(len(analysis.timeline.order), np.int64))


def _outline(diff: Diff, highest: float) -> str:
    """The old timeline, each step where its node is in the new one."""
    old = diff.old
    total = _total(old, stacked_layers(old).values())
    kept = kept_steps(total)
    end = len(diff.new.timeline.order)
    run = [(0, 0), *((a + 1, b + 1) for a, b in common_order(old, diff.new, diff.counterparts))]
    if run[-1][0] < len(total):
        run.append((len(total), end))
    before, after = zip(*run, strict=True)
    places = np.interp(np.append(kept, len(total)), before, after)
    return outline(places, total[kept], highest)


def _left_section(diff: Diff) -> str:
    """What is no longer at the peak, by how; empty where nothing is."""
    left = left_the_peak(diff)
    if not left:
        return ""
    rows = "".join(
        f"<tr><td>{'off the peak as it moved' if how == 'peak-moved' else WORDS[how]}</td>"
        f"{_number(count, f'{count:,}')}{_number(nbytes, format_bytes(nbytes))}</tr>"
        for how, (count, nbytes) in left.items()
    )
    return (
        "<section><h2>What left the peak, and how</h2>"
        + _table(
            "what left the peak", (("how", "text"), ("tensors", "number"), ("bytes", "number"))
        )
        + f"<tbody>{rows}</tbody></table></div></section>"
    )


def _class_section(diff: Diff) -> str:
    rows = "".join(
        f'<tr><td><span class="swatch" style="background:var(--{escape(c.name)})"></span>'
        f"{escape(c.name.replace('_', ' '))}</td>"
        f"{_number(c.old_bytes, format_bytes(c.old_bytes))}"
        f"{_number(c.new_bytes, format_bytes(c.new_bytes))}"
        f"{_number(c.delta_bytes, format_delta(c.delta_bytes))}</tr>"
        for c in sorted(diff.classes, key=lambda c: -abs(c.delta_bytes))
    )
    old, new = diff.old.timeline.peak_bytes, diff.new.timeline.peak_bytes
    foot = (
        f"<tfoot><tr><td>peak</td>{_number(old, format_bytes(old))}"
        f"{_number(new, format_bytes(new))}"
        f"{_number(diff.delta_bytes, format_delta(diff.delta_bytes))}</tr></tfoot>"
    )
    columns = (("class", "text"), ("before", "number"), ("after", "number"), ("change", "number"))
    return (
        "<section><h2>The peaks by class</h2>"
        + _table("peaks by class", columns)
        + f"<tbody>{rows}</tbody>{foot}</table></div></section>"
    )


def _change_section(diff: Diff) -> str:
    groups = sorted(diff.groups, key=lambda group: -abs(group.delta_bytes))
    shown, rest = groups[:_MOST_ROWS], groups[_MOST_ROWS:]
    columns = (
        *(("what", "text"), ("tensor", "text"), ("count", "number"), ("before", "number")),
        *(("after", "number"), ("change", "number"), ("class", "text"), ("module", "text")),
        ("held by", "text"),
    )
    more = ""
    if rest:
        size = format_delta(sum(group.delta_bytes for group in rest))
        more = (
            f'<tfoot><tr><td colspan="{len(columns)}">and {counted(len(rest), "more kind")}, '
            f"{size} together</td></tr></tfoot>"
        )
    changes = counted(len(diff.changes), "change")
    inside = f"; {format_delta(diff.inside_bytes)} inside loop bodies" if diff.inside_bytes else ""
    return (
        f"<section><h2>Tensor by tensor <small>{changes} that sum to the difference{inside}"
        f"</small></h2>{_table('tensor by tensor', columns)}"
        f"<tbody>{''.join(map(_change_row, shown))}</tbody>{more}</table></div></section>"
    )


def _change_row(group: ChangeGroup) -> str:
    first = group.first
    name = group.name if first.old_name is None else f"{group.name} (was {first.old_name})"
    return (
        f"<tr><td>{escape(what_of(first))}</td>"
        f'<td title="{escape(name)}"><code>{escape(name)}</code></td>'
        f"{_number(group.count, f'{group.count:,}')}"
        f"{_number(first.old_bytes, format_bytes(first.old_bytes))}"
        f"{_number(first.new_bytes, format_bytes(first.new_bytes))}"
        f"{_number(group.delta_bytes, format_delta(group.delta_bytes))}"
        f'<td><span class="swatch" style="background:var(--{escape(first.tensor_class)})"></span>'
        f"{escape(first.tensor_class.replace('_', ' '))}</td>"
        f'<td title="{escape(first.module)}">{escape(first.module)}</td>'
        f'<td title="{escape(first.held_by)}">{escape(first.held_by)}</td></tr>'
    )


def _table(label: str, columns: tuple[tuple[str, str], ...]) -> str:
    """The head of a sortable table, which scrolls where it is wider than the page."""
    return f'{scroll(label)}<table class="live"><thead><tr>{sortable_heads(columns)}</tr></thead>'


def _number(value: int, text: str) -> str:
    return f'<td class="number" data-value="{value}">{text}</td>'


def _notes_section(diff: Diff) -> str:
    notes = dict.fromkeys((*diff.old.assumptions, *diff.new.assumptions))
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    listed = f'<h2 class="second">Assumptions</h2><ul class="text">{items}</ul>' if notes else ""
    lines = [graph_line(diff), *work_lines(diff)]
    told = "".join(f'<p class="text">{escape(text)}</p>' for text in lines)
    return f"<section><h2>The graphs</h2>{told}{listed}</section>"
