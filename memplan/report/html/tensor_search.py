"""The search in all tensors of a step: the data that the script fills a table with."""

from __future__ import annotations

from typing import Any

from memplan.api.analysis import Analysis
from memplan.ir.graph import Tensor
from memplan.report.html.short_names import NameTable, shorten
from memplan.simulate.allocation import Buffer, is_resident
from memplan.simulate.explain import Explainer, TensorClass

# Names take most of the page: about a megabyte of them.
_MOST_CHARACTERS = 900_000


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
        row = _row(item, explainer, modules)
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


def _row(
    item: Buffer | Tensor, explainer: Explainer, modules: NameTable
) -> tuple[str, int, int, int, str, int, int, str, str]:
    graph, step_of = explainer.graph, explainer.timeline.allocation.step_of
    if isinstance(item, Buffer):
        root, members, kind = graph.tensors[item.root], item.members, explainer.buffer_class(item)
        producer = graph.nodes[root.producer]
        module, made = explainer.modules[producer.id], f"{producer.op} {producer.name}"
        birth, death, is_output = item.birth, item.death, item.is_output
    else:
        root, members, kind = item, (item.id,), explainer.class_of(item)
        module, made = "", str(item.kind)
        birth, death, is_output = -1, len(explainer.timeline.order), False
    readers = {reader for t in members for reader in graph.tensors[t].readers}
    last = max(readers, key=lambda reader: step_of[reader], default=None)
    reader = "" if last is None else f"{graph.nodes[last].op} {graph.nodes[last].name}"
    others = [graph.tensors[t].name for t in members if t != root.id]
    return (
        shorten(root.name),
        item.nbytes,
        list(TensorClass).index(kind),
        modules.index(shorten(module)),
        shorten(made),
        birth,
        death,
        "graph output" if is_output else shorten(reader),
        shorten(" ".join(others)),
    )
