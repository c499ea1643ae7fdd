"""Modules as a tree that opens, each with the bytes in it and below it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from memplan.report.html.short_names import escape
from memplan.units import counted, format_bytes

_DEEPEST, _MOST_CHILDREN = 12, 60
_OPEN_MODULES = 12


@dataclass(slots=True)
class _Module:
    name: str
    nbytes: int = 0
    count: int = 0
    children: dict[str, _Module] = field(default_factory=dict)

    @property
    def ranked(self) -> list[_Module]:
        """Children, those with the most bytes first."""
        return sorted(self.children.values(), key=lambda module: (-module.nbytes, module.name))


def module_tree(modules: Iterable[tuple[str, int, int]]) -> str:
    """The tree of modules given by path, bytes and number of tensors."""
    root = _Module("")
    for path, nbytes, count in modules:
        below = [root]
        for name in path.split(".", _DEEPEST - 1):
            below.append(below[-1].children.setdefault(name, _Module(name)))
        for module in below:
            module.nbytes, module.count = module.nbytes + nbytes, module.count + count
    rows = _rows(root, max(1, root.nbytes), is_open=len(root.children) <= _OPEN_MODULES)
    return f'<div class="modules">{rows}</div>'


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
