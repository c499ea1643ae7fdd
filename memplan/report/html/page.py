"""A report as one offline HTML file: no network, no library, about 2 MB at most.

The pictures are SVG made here, so they show without scripts; the script beside them adds hovering,
zooming, searching and sorting. Its hash is in the page's policy, which forbids all else. Every name
in a model file is untrusted: it is escaped here, reaches the script as JSON and is only ever set as
text.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from importlib.resources import files
from math import isfinite

from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.report.html.module_tree import module_tree
from memplan.report.html.short_names import escape
from memplan.report.html.tensor_search import tensor_data
from memplan.report.html.timelines import timeline_sections
from memplan.report.parts import (
    Column,
    Life,
    Line,
    Notes,
    Part,
    Report,
    Row,
    Spelled,
    Table,
    TensorSearch,
    Timelines,
)

_MOST_ROWS = 200
_LAST = 1e18
"""What has no number stands behind all that do, however the table is sorted."""


def page(report: Report) -> str:
    """The report as a self-contained page; a headline comes first."""
    data: dict[str, object] = {"charts": []}
    headline = next(part for part in report.parts if isinstance(part, Line))
    body = "\n".join(text for part in report.parts for text in _shown(part, headline, data))
    # JSON that cannot end the script element it stands in.
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    content = content.replace(">", "\\u003e").replace("&", "\\u0026")
    script = _asset("report.js")
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    about = f"{report.about} · " if report.about else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.title)} · memplan</title>"
        f"<style>{_asset('report.css')}</style></head><body><main>\n"
        f'<p class="brand">memplan · {escape(report.title)}</p>\n{body}\n'
        f"<footer>memplan · {escape(about)}accounting version {ACCOUNTING_VERSION} · predicted; no "
        f'step was run</footer>\n</main><script type="application/json" id="data">{content}'
        f"</script><script>{script}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    """A file of ``assets/``."""
    return (files("memplan.report.html") / "assets" / name).read_text(encoding="utf-8")


def _shown(part: Part, headline: Part, data: dict[str, object]) -> Iterator[str]:
    """A part; what the script needs of it is put into ``data``."""
    match part:
        case str():
            yield f"<p>{escape(part)}</p>" if part else ""
        case Line() if part is headline:
            yield f"<h1>{escape(part.text)}</h1>"
        case Line():
            yield f"<p><b>{escape(part.text)}</b></p>"
        case Table(rows=[] | (), below=()):
            pass
        case Table(tree=True):
            modules = ((row[0], row[1], row[-1]) for row in part.rows)
            yield f"<section><h2>{escape(part.title)}</h2>{module_tree(modules)}</section>"
        case Table():
            yield f"<section><h2>{escape(part.title)}</h2>{_table(part)}</section>"
        case Timelines():
            found, data["charts"] = timeline_sections(part)
            yield from found
        case TensorSearch():
            data["tensors"] = tensor_data(part.analysis)
            yield _asset("tensors.html")
        case Notes():
            items = "".join(f"<li>{escape(note)}</li>" for note in dict.fromkeys(part.texts))
            if items:
                yield f'<section><h2>Assumptions</h2><ul class="text">{items}</ul></section>'


def _table(table: Table) -> str:
    """A table that the script sorts; it scrolls where it is wider than the page, also from the
    keyboard, which knows it by its label."""
    rows, rest = table.cut(table.most and _MOST_ROWS)
    heads = "".join(
        f'<th class="{kind}" data-kind="{kind}"><button type="button">{escape(name)}</button></th>'
        for name, kind in (
            (column.heading or "what", "number" if column.numeric else "text")
            for column in table.columns
        )
    )
    foot = "".join(
        _row(table.columns, row) for row in [*rest, *(r for g in table.below for r in g)]
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f'<table class="live"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(_row(table.columns, row) for row in rows)}</tbody>"
        f"<tfoot>{foot}</tfoot></table></div>"
    )


def _row(columns: Sequence[Column], row: Row) -> str:
    cells = (_cell(column, value) for column, value in zip(columns, row, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def _cell(column: Column, value: object) -> str:
    text = escape(column.shown(value))
    if isinstance(value, Life):
        length = value.death - value.birth
        return f'<td class="number" data-value="{length}">{text}{_life(value)}</td>'
    if column.numeric:
        known = _number(value)
        exact = f' title="{known:,} B"' if column.kind == "bytes" and known is not None else ""
        place = _LAST if known is None else known
        return f'<td class="number" data-value="{place}"{exact}>{text}</td>'
    if column.kind == "class" and text:
        return f'<td><span class="swatch" style="background:var(--{text})"></span>{text}</td>'
    shown = f"<code>{text}</code>" if column.kind == "name" else text
    return f'<td title="{text}">{shown}</td>'


def _number(value: object) -> float | None:
    """What a value is sorted by."""
    found = value.value if isinstance(value, Spelled) else value
    return found if isinstance(found, int | float) and isfinite(found) else None


def _life(life: Life) -> str:
    """The time in memory as a bar, with the peak."""
    start, length, peak = (
        100 * step / life.steps for step in (life.birth, life.death - life.birth, life.peak)
    )
    return (
        f'<div class="life"><i style="left:{start:.2f}%;width:{length:.2f}%;'
        f'background:var(--{life.color})"></i><b style="left:{peak:.2f}%"></b></div>'
    )
