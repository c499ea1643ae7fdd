"""Two graphs, node by node: what was added and removed, resized, widened, renamed and reordered."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from onnx import TensorProto

from memplan.api.analysis import Analysis
from memplan.ir.counterparts import Counterparts
from memplan.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class GraphChanges:
    """Numbers of nodes. ``common`` are in both graphs; of these, ``renamed`` have another name, and
    ``moved`` run at another place among the others. ``added`` and ``removed`` are by operator, and
    ``copies`` are those that a rewrite added. ``resized`` are tensors of another shape, ``retyped``
    those of another element type, by both types."""

    common: int
    renamed: int
    moved: int
    resized: int
    added: Mapping[str, int]
    removed: Mapping[str, int]
    copies: int
    retyped: Mapping[tuple[str, str], int]

    @property
    def same(self) -> bool:
        """Whether the graphs are equal but for names."""
        changed = self.moved or self.resized or self.copies
        return not (changed or self.added or self.removed or self.retyped)

    def as_json(self) -> dict[str, object]:
        """The ``graph`` of the contract."""
        return {
            "common_nodes": self.common,
            "renamed_nodes": self.renamed,
            "moved_nodes": self.moved,
            "resized_tensors": self.resized,
            "added_nodes": dict(self.added),
            "removed_nodes": dict(self.removed),
            "copies": self.copies,
            "retyped_tensors": [
                {"from": before, "to": after, "count": count}
                for (before, after), count in self.retyped.items()
            ],
        }


def graph_changes(old: Analysis, new: Analysis, found: Counterparts) -> GraphChanges:
    """What differs between two analyzed graphs."""
    before, after = old.graph, new.graph
    pairs = [(before.tensors[t], after.tensors[u]) for t, u in found.tensors.items()]
    retyped = Counter(
        (_type_name(t.dtype), _type_name(u.dtype)) for t, u in pairs if t.dtype != u.dtype
    )
    copies = _copies(after) - _copies(before)
    return GraphChanges(
        common=len(found.nodes),
        renamed=sum(before.nodes[n].name != after.nodes[m].name for n, m in found.nodes.items()),
        moved=len(found.nodes) - len(common_order(old, new, found)),
        resized=sum(t.shape != u.shape for t, u in pairs),
        added=_by_operator(after, set(found.nodes.values())),
        removed=_by_operator(before, set(found.nodes)),
        copies=max(copies, 0),
        retyped=dict(retyped.most_common()),
    )


def common_order(old: Analysis, new: Analysis, found: Counterparts) -> list[tuple[int, int]]:
    """Old and new steps of the most nodes that run in the same order in both graphs."""
    step_of = new.timeline.allocation.step_of
    steps = [
        (step, step_of[found.nodes[node]])
        for step, node in enumerate(old.timeline.order)
        if node in found.nodes
    ]
    lowest: list[int] = []  # the lowest end of a run of each length, and where it is in steps
    ends: list[int] = []
    previous: list[int] = []
    for index, (_, place) in enumerate(steps):
        length = bisect_left(lowest, place)
        previous.append(ends[length - 1] if length else -1)
        lowest[length : length + 1] = [place]
        ends[length : length + 1] = [index]
    run: list[tuple[int, int]] = []
    index = ends[-1] if ends else -1
    while index >= 0:
        run.append(steps[index])
        index = previous[index]
    return run[::-1]


def _by_operator(graph: Graph, known: set[int]) -> dict[str, int]:
    """Nodes that are not known and no copies, by operator, most first."""
    ops = Counter(
        node.op
        for node in graph.nodes
        if node.id not in known and "memplan.role" not in graph.metadata[node.id]
    )
    return dict(sorted(ops.items(), key=lambda item: (-item[1], item[0])))


def _copies(graph: Graph) -> int:
    return sum("memplan.role" in metadata for metadata in graph.metadata)


def _type_name(dtype: int) -> str:
    return str(TensorProto.DataType.Name(dtype)).lower()
