"""Sections of the HTML report that look beyond the peak: all tensors, modules, gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from memplan.api.analysis import Analysis
from memplan.ir.graph import Tensor
from memplan.report.html.document import scroll, sortable_heads
from memplan.report.html.short_names import NameTable, escape, shorten
from memplan.simulate.allocation import Buffer, is_resident
from memplan.simulate.explain import Explainer, Stash, TensorClass
from memplan.simulate.narrowing import narrowings
from memplan.units import counted, format_bytes

# Names take most of the page: about a megabyte of them.
_MOST_CHARACTERS = 900_000
_DEEPEST, _MOST_CHILDREN = 12, 60
_OPEN_MODULES = 12


def tensor_data(analysis: Analysis) -> dict[str, Any]:
    """All tensors in memory, largest first, column by column, for the script.

    Bytes, steps (born at -1: there before step 0), classes and modules by index into lists of
    names; ``also`` are further names in the same buffer. ``all`` counts those that had no room.
    """
    explainer = analysis.explainer
    graph, modules, room = analysis.graph, NameTable(), _MOST_CHARACTERS
    resident = [tensor for tensor in graph.tensors if is_resident(tensor) and tensor.nbytes]
    found: list[Buffer | Tensor] = [*resident, *analysis.timeline.allocation.buffers]
    found.sort(key=lambda item: -item.nbytes)
    rows = []
    for item in found:
        row = (
            _buffer_row(item, explainer, modules)
            if isinstance(item, Buffer)
            else _resident_row(item, explainer, modules)
        )
        room -= sum(len(part) for part in row if isinstance(part, str))
        if room < 0:
            break
        rows.append(row)
    columns = ("name", "bytes", "class", "module", "made", "birth", "death", "last", "also")
    return {
        **{name: [row[k] for row in rows] for k, name in enumerate(columns)},
        "classes": [str(name) for name in TensorClass],
        "modules": modules.names,
        "all": len(found),
    }


_Row = tuple[str, int, int, int, str, int, int, str, str]


def _buffer_row(buffer: Buffer, explainer: Explainer, modules: NameTable) -> _Row:
    graph, step_of = explainer.graph, explainer.timeline.allocation.step_of
    root = graph.tensors[buffer.root]
    producer = graph.nodes[root.producer]
    readers = {reader for t in buffer.members for reader in graph.tensors[t].readers}
    last = max(readers, key=lambda reader: step_of[reader], default=None)
    others = [graph.tensors[t].name for t in buffer.members if t != buffer.root]
    return (
        shorten(root.name),
        buffer.nbytes,
        list(TensorClass).index(explainer.buffer_class(buffer)),
        modules.index(shorten(explainer.modules[producer.id])),
        shorten(f"{producer.op} {producer.name}"),
        buffer.birth,
        buffer.death,
        "graph output"
        if buffer.is_output
        else ""
        if last is None
        else shorten(f"{graph.nodes[last].op} {graph.nodes[last].name}"),
        shorten(" ".join(others)),
    )


def _resident_row(tensor: Tensor, explainer: Explainer, modules: NameTable) -> _Row:
    steps, graph = len(explainer.timeline.order), explainer.graph
    last = max(tensor.readers, key=lambda r: explainer.timeline.allocation.step_of[r], default=None)
    return (
        shorten(tensor.name),
        tensor.nbytes,
        list(TensorClass).index(explainer.class_of(tensor)),
        modules.index(""),
        str(tensor.kind),
        -1,
        steps,
        "" if last is None else shorten(f"{graph.nodes[last].op} {graph.nodes[last].name}"),
        "",
    )


def tensors_section() -> str:
    """The search over all tensors; the script fills in its table."""
    heads = "".join(
        f'<th class="{kind}" data-kind="{kind}" data-column="{column}">'
        f'<button type="button">{head}</button></th>'
        for head, kind, column in (
            ("tensor", "text", "name"),
            ("size", "number", "bytes"),
            ("class", "text", "class"),
            ("module", "text", "module"),
            ("made by", "text", "made"),
            ("birth", "number", "birth"),
            ("death", "number", "death"),
            ("last read by", "text", "last"),
        )
    )
    return (
        '<section id="tensors" hidden><h2>All tensors <small></small></h2><div class="search">'
        '<input type="search" placeholder="name, module, operator or class" '
        'aria-label="search tensors"><button type="button" class="step" hidden></button></div>'
        f'{scroll("all tensors")}<table class="live"><thead><tr>{heads}</tr></thead><tbody></tbody>'
        "<tfoot></tfoot></table></div></section>"
    )


def narrowing_section(analysis: Analysis) -> str:
    """What fewer wanted gradients would free of the peak; empty where nothing would."""
    found = [
        item
        for item in narrowings(analysis.timeline, analysis.phases)
        if item.freed_with_earlier_bytes
    ]
    if not found:
        return ""
    heads = sortable_heads(
        (
            ("frozen module", "text"),
            ("frees", "number"),
            ("with all before it", "number"),
            ("parameters", "number"),
            ("its stashes", "text"),
        )
    )
    rows = "".join(
        f"<tr>{_text(item.module)}{_size(item.freed_bytes)}{_size(item.freed_with_earlier_bytes)}"
        f'<td class="number" data-value="{len(item.parameters)}">{len(item.parameters):,}</td>'
        f"{_text(', '.join(name for name, _ in item.stashes))}</tr>"
        for item in found
    )
    return (
        "<section><h2>A narrower --wrt <small>what the gradients of a module hold at the peak, "
        "when those before it are frozen; the peak falls by that at most</small></h2>"
        f"{scroll('narrower gradients')}"
        f'<table class="live"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
        "</div></section>"
    )


def _text(text: str) -> str:
    shown = escape(text)
    return f'<td title="{shown}">{shown}</td>'


def _size(nbytes: int) -> str:
    return f'<td class="number" data-value="{nbytes}">{format_bytes(nbytes)}</td>'


@dataclass(slots=True)
class _Module:
    """A module with the stash in it and below it: bytes and number of tensors."""

    name: str
    nbytes: int = 0
    count: int = 0
    children: dict[str, _Module] = field(default_factory=dict)

    def add(self, path: Iterable[str], nbytes: int) -> None:
        module = self
        module.nbytes, module.count = module.nbytes + nbytes, module.count + 1
        for part in path:
            module = module.children.setdefault(part, _Module(part))
            module.nbytes, module.count = module.nbytes + nbytes, module.count + 1

    @property
    def ranked(self) -> list[_Module]:
        """Children, those with the most bytes first."""
        return sorted(self.children.values(), key=lambda module: (-module.nbytes, module.name))


def module_section(stashes: Iterable[Stash]) -> str:
    """The stash by module, as a tree that opens."""
    root = _Module("")
    for stash in stashes:
        root.add(stash.module.split(".", _DEEPEST - 1), stash.nbytes)
    if not root.count:
        text = "<p>Nothing made in the forward pass is read in the backward pass.</p>"
        return f"<section><h2>Stash by module</h2>{text}</section>"
    whole = max(1, root.nbytes)
    return (
        f"<section><h2>Stash by module <small>{format_bytes(root.nbytes)} made in forward and read "
        f'in backward; what recomputing can free</small></h2><div class="modules">'
        f"{_rows(root, whole, is_open=len(root.children) <= _OPEN_MODULES)}</div></section>"
    )


def _rows(parent: _Module, whole: int, *, is_open: bool = False) -> str:
    ranked = parent.ranked
    rows = "".join(_row(module, whole, is_open) for module in ranked[:_MOST_CHILDREN])
    rest = ranked[_MOST_CHILDREN:]
    if rest:
        size = format_bytes(sum(module.nbytes for module in rest))
        rows += f"<p><span>{len(rest):,} more</span><span></span><span>{size}</span></p>"
    return rows


def _row(module: _Module, whole: int, is_open: bool) -> str:
    name = module.name
    while len(module.children) == 1 and next(iter(module.children.values())).count == module.count:
        module = next(iter(module.children.values()))  # what has but one part is shown with it
        name += f".{module.name}"
    shown = escape(name or "(no module)")
    line = (
        f'<span title="{shown}">{shown}</span>'
        f'<span><i style="width:{100 * module.nbytes / whole:.1f}%"></i></span>'
        f"<span>{format_bytes(module.nbytes)} · {counted(module.count, 'tensor')}</span>"
    )
    if not module.children:
        return f"<p>{line}</p>"
    inside = _rows(module, whole)
    return f"<details{' open' if is_open else ''}><summary>{line}</summary>{inside}</details>"
