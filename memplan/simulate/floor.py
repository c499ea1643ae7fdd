"""The certified structural floor: no order and no recomputation goes below it.

At the moment a node runs, three things are in memory in any schedule: its inputs, the outputs it
makes, and every graph output that it depends on (those are held to the end once made). At the end,
all graph outputs are. The largest of these sums is a lower bound on the dynamic peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ops.book import operator
from memplan.ops.memory import MemorySemantics, semantics
from memplan.simulate.allocation import is_resident
from memplan.simulate.growing_sets import EMPTY, GrowingSets
from memplan.simulate.timeline import Timeline
from memplan.units import format_bytes

_NAMED = 3  # tensors of a pin


@dataclass(frozen=True, slots=True)
class Floor:
    """Dynamic bytes that any schedule needs, and what pins them, without and with workspace."""

    plain: Pin
    loaded: Pin

    @property
    def nbytes(self) -> int:
        """The floor without kernel workspace."""
        return self.plain.nbytes

    @property
    def with_workspace(self) -> int:
        """The floor with kernel workspace, which budgets are held against."""
        return self.loaded.nbytes


@dataclass(frozen=True, slots=True)
class Pin:
    """Bytes, the node that needs them (ABSENT: the end of the step) and the tensors there then.

    The bytes are those of the tensors, of the node's ``workspace``, and those ``inside`` its body.
    """

    nbytes: int
    node: int
    tensors: tuple[int, ...]
    workspace: int = 0
    inside: int = 0

    def describe(self, graph: Graph) -> str:
        """What pins the floor, in one line whose sizes add up to :attr:`nbytes`."""
        largest = [t for t in self.tensors if graph.tensors[t].nbytes]
        largest.sort(key=lambda t: -graph.tensors[t].nbytes)
        sizes = [graph.tensors[t].nbytes for t in largest]
        parts = [("its workspace, predicted only", self.workspace), ("its body", self.inside)]
        parts = [(name, nbytes) for name, nbytes in parts if nbytes]
        shown = zip(largest[:_NAMED], sizes, strict=False)
        parts += [(graph.tensors[t].name, nbytes) for t, nbytes in shown]
        listed = ", ".join(f"{name} ({format_bytes(nbytes)})" for name, nbytes in parts)
        if more := sizes[_NAMED:]:
            listed += f" and {len(more)} more ({format_bytes(sum(more))})"
        if self.node == ABSENT:
            return f"{self.where(graph)}, held to the end: {listed}"
        return f"{self.where(graph)}, which needs {listed} at once"

    def where(self, graph: Graph) -> str:
        """The node, or the end of the step."""
        if self.node == ABSENT:
            return "the graph outputs"
        return f"{graph.nodes[self.node].op} {graph.nodes[self.node].name}"


class Need(NamedTuple):
    """What must be there while ``node`` runs in any schedule: ``tensors`` that it reads and makes,
    and ``held`` bytes of graph outputs that it depends on (as a set of ``Needs.sets``: ``behind``);
    together ``nbytes``, with those ``inside`` its body. ``workspace``: scratch of its kernel."""

    node: Node
    tensors: set[int]
    behind: int
    held: int
    nbytes: int
    inside: int
    workspace: int


class Needs:
    """What every node of a graph needs; ``root``: for every tensor that is always a view, the
    tensor whose buffer it shares.

    With devices it is what is on the device. ``timeline`` is any simulation of ``graph`` (for
    workspace and bodies). ``held``: graph outputs are held to the end.
    """

    def __init__(self, graph: Graph, timeline: Timeline, *, held: bool = True) -> None:
        self.graph, self.timeline = graph, timeline
        self.rules = semantics(timeline.session.provider)
        self.root = _view_roots(graph, self.rules)
        self.sets = GrowingSets()
        resident = {tensor.id for tensor in graph.tensors if is_resident(tensor)}
        self.elsewhere = frozenset(resident | timeline.away)
        every = dict.fromkeys(graph.outputs) if held else ()
        self.outputs = tuple(t for t in every if t not in self.elsewhere)

    def __iter__(self) -> Iterator[Need]:
        graph, sets, is_held = self.graph, self.sets, set(self.outputs)
        behind = [EMPTY] * len(graph.tensors)  # outputs held once a tensor is made, it included
        inside, timeline = self.timeline.inside.nbytes, self.timeline
        for node in graph.nodes:
            before = EMPTY
            for t in node.reads:
                if behind[t] != before:
                    before = sets.union(before, behind[t])
            tensors = _working_set(graph, node, self.root, self.rules) - self.elsewhere
            more = sum(
                graph.tensors[t].nbytes
                for t in tensors
                if t not in is_held or not sets.contains(before, t)
            )
            body, held = inside.get(node.id, 0), sets.weight[before]
            workspace = int(timeline.workspace[timeline.allocation.step_of[node.id]])
            yield Need(node, tensors, before, held, more + held + body, body, workspace)
            for t in node.writes:
                nbytes = graph.tensors[t].nbytes
                behind[t] = sets.add(before, t, nbytes) if t in is_held else before


def structural_floor(
    graph: Graph, timeline: Timeline, *, below: int = 0, held: bool = True
) -> Floor:
    """The floor of ``graph``; see :class:`Needs`.

    ``below``: as if no node made or read a tensor of so many bytes or more, graph outputs aside
    (0: all do).
    """
    tensors = graph.tensors
    needs = Needs(graph, timeline, held=held)
    at_end = sum(tensors[t].nbytes for t in needs.outputs)
    plain = loaded = Pin(at_end, ABSENT, needs.outputs)
    for need in needs:
        if below and any(
            tensors[t].nbytes >= below and not tensors[t].is_output for t in need.tensors
        ):
            continue
        with_workspace = need.nbytes + need.workspace
        if need.nbytes > plain.nbytes or with_workspace > loaded.nbytes:
            pinned = tuple(sorted(need.tensors.union(needs.sets.elements(need.behind))))
            if need.nbytes > plain.nbytes:
                plain = Pin(need.nbytes, need.node.id, pinned, 0, need.inside)
            if with_workspace > loaded.nbytes:
                loaded = Pin(with_workspace, need.node.id, pinned, need.workspace, need.inside)
    return Floor(plain, loaded)


def _view_roots(graph: Graph, rules: MemorySemantics) -> dict[int, int]:
    """For every tensor that is always a view: the tensor whose buffer it shares."""
    root: dict[int, int] = {}
    for node in graph.nodes:
        for slot, tensor in enumerate(node.outputs):
            alias = rules.alias_input(node.key, slot)
            if tensor == ABSENT or alias is None or graph.tensors[tensor].is_output:
                continue
            if alias < len(node.inputs) and node.inputs[alias] != ABSENT:
                source = node.inputs[alias]
                root[tensor] = root.get(source, source)
    return root


def _working_set(
    graph: Graph, node: Node, root: dict[int, int], rules: MemorySemantics
) -> set[int]:
    """Inputs, and outputs that cannot share memory with an input."""
    tensors = {root.get(t, t) for t in node.reads}
    for slot, tensor in enumerate(node.outputs):
        if tensor == ABSENT:
            continue
        if graph.tensors[tensor].is_output:
            tensors.add(tensor)
            continue
        if tensor in root or slot in operator(node.key).optional_outputs:
            continue
        slots = [k for k in rules.inplace_inputs(node.key, slot) if k < len(node.inputs)]
        sizes = [graph.tensors[t].nbytes for k in slots if (t := node.inputs[k]) != ABSENT]
        if graph.tensors[tensor].nbytes not in sizes:
            tensors.add(tensor)
    return tensors
