"""What ``diff`` answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from memplan.api.analysis import ACCOUNTING_VERSION, Analysis
from memplan.api.check.measure import family_of, module_of_several
from memplan.api.diff.graph_changes import GraphChanges
from memplan.api.diff.peak_changes import Change, How, TensorChange
from memplan.api.summary import Summary
from memplan.api.versions import runtime_json
from memplan.ir.counterparts import Counterparts
from memplan.ir.modules import NO_MODULE
from memplan.simulate.allocation import is_resident

SCHEMA = "memplan.diff/1"


@dataclass(frozen=True, slots=True)
class ClassDelta:
    """Bytes of one tensor class at both peaks."""

    name: str
    old_bytes: int
    new_bytes: int

    @property
    def delta_bytes(self) -> int:
        """New less old."""
        return self.new_bytes - self.old_bytes


@dataclass(frozen=True, slots=True)
class ChangeGroup:
    """Changes of one kind of tensors alike: ``count`` of them, the first of which is ``first``.

    ``name`` is that of the first, or what their names have in common, with ``*`` in place of
    numbers; ``module`` is empty where they have none in common.
    """

    name: str
    first: TensorChange
    count: int
    module: str = ""

    @property
    def delta_bytes(self) -> int:
        """Of all of them."""
        return self.count * self.first.delta_bytes


@dataclass(frozen=True, slots=True, repr=False)
class Diff(Summary):
    """The answer of ``diff``: two analyses, and what lies between their peaks.

    ``changes`` and ``inside_bytes`` (the change of what lies inside bodies of control-flow nodes)
    sum to ``delta_bytes``, and so do ``classes``.
    """

    old: Analysis
    new: Analysis
    counterparts: Counterparts
    graph: GraphChanges
    changes: tuple[TensorChange, ...]

    @property
    def delta_bytes(self) -> int:
        """New peak less old peak."""
        return self.new.timeline.peak_bytes - self.old.timeline.peak_bytes

    @property
    def inside_bytes(self) -> int:
        """What is not in ``changes``."""
        return self.delta_bytes - sum(change.delta_bytes for change in self.changes)

    @property
    def classes(self) -> tuple[ClassDelta, ...]:
        """Bytes of every class at both peaks."""
        before, after = self.old.by_class, self.new.by_class
        names = dict.fromkeys((*after, *before))
        return tuple(ClassDelta(str(n), before.get(n, 0), after.get(n, 0)) for n in names)

    @property
    def modules(self) -> dict[str, int]:
        """Change in bytes per module that has one, most bytes first. Weights that are in no module
        give their names to what reads them (:mod:`memplan.ir.modules`): no modules either."""
        found: defaultdict[str, int] = defaultdict(int)
        graphs = (self.old.graph, self.new.graph)
        weights = {each.name for graph in graphs for each in graph.tensors if is_resident(each)}
        for change in self.changes:
            name = NO_MODULE if change.module in weights else change.module
            found[name] += change.delta_bytes
        changed = ((name, nbytes) for name, nbytes in found.items() if nbytes)
        return dict(sorted(changed, key=lambda item: (-abs(item[1]), item[0])))

    @property
    def groups(self) -> tuple[ChangeGroup, ...]:
        """The changes by kind, family, class and sizes; those that add to the delta first."""
        sign = 1 if self.delta_bytes >= 0 else -1
        return tuple(
            sorted(grouped(self.changes), key=lambda group: (-sign * group.delta_bytes, group.name))
        )

    @property
    def title(self) -> str:
        """What ``repr`` heads it with."""
        return f"of {self.old.path} and {self.new.path}"

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        return {
            "schema": SCHEMA,
            "accounting_version": ACCOUNTING_VERSION,
            "runtime": runtime_json(self.new.session.provider),
            "session": self.new.session.name,
            "provider": self.new.session.provider,
            "old": _side(self.old),
            "new": _side(self.new),
            "delta_bytes": self.delta_bytes,
            "by_class_delta": {c.name: c.delta_bytes for c in self.classes},
            "by_module_delta": self.modules,
            "inside_bodies_delta_bytes": self.inside_bytes,
            "changes": [_change(change) for change in self.changes],
            "graph": self.graph.as_json(),
        }


def grouped(changes: Iterable[TensorChange]) -> list[ChangeGroup]:
    """Changes alike, as one."""
    members: dict[tuple[object, ...], list[TensorChange]] = {}
    for change in changes:
        key = (change.change, change.how, family_of(change.name), change.tensor_class)
        members.setdefault((*key, change.old_bytes, change.new_bytes), []).append(change)
    return [
        ChangeGroup(
            found[0].name if len(found) == 1 else f"{family_of(found[0].name)}*",
            found[0],
            len(found),
            module_of_several([change.module for change in found]),
        )
        for found in members.values()
    ]


def left_the_peak(diff: Diff) -> dict[How | Change, tuple[int, int]]:
    """How many tensors, of how many bytes, are no longer at the peak, by how."""
    found: dict[How | Change, tuple[int, int]] = {}
    for change in diff.changes:
        if change.old_bytes and not change.new_bytes:
            how = change.how or change.change
            count, nbytes = found.get(how, (0, 0))
            found[how] = count + 1, nbytes + change.old_bytes
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def _side(analysis: Analysis) -> dict[str, object]:
    timeline = analysis.timeline
    return {
        "path": str(analysis.path),
        "fingerprint": analysis.fingerprint,
        "nodes": len(analysis.graph.nodes),
        "dims": dict(analysis.dims),
        "peak_bytes": timeline.peak_bytes,
        "peak_with_workspace_bytes": timeline.peak_with_workspace_bytes,
        "resident_bytes": timeline.resident_bytes,
        "peak_step": timeline.peak_step,
        "peak_node": analysis.peak_node,
        "steps": len(timeline.order),
        "work": analysis.work.as_json(),
        "floor_with_workspace_bytes": analysis.floor_with_workspace_bytes,
        "by_class": {str(name): nbytes for name, nbytes in analysis.by_class.items()},
        "as_loaded": analysis.as_loaded,
        "exact": not analysis.inexact,
        "assumptions": list(analysis.assumptions),
    }


def _change(change: TensorChange) -> dict[str, object]:
    return {
        "change": str(change.change),
        "how": None if change.how is None else str(change.how),
        "name": change.name,
        "old_name": change.old_name,
        "class": change.tensor_class,
        "module": change.module,
        "old_bytes": change.old_bytes,
        "new_bytes": change.new_bytes,
        "held_by": change.held_by,
    }
