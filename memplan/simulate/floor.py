"""The certified structural floor: no order and no recomputation goes below it.

At the moment a node runs, three things are in memory in any schedule: its inputs, the outputs it
makes, and every graph output that it depends on (those are held to the end once made). At the end,
all graph outputs are. The largest of these sums is a lower bound on the dynamic peak.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ops.memory import OPTIONAL_OUTPUTS, MemorySemantics, semantics
from memplan.simulate.allocation import is_resident
from memplan.simulate.timeline import Timeline
from memplan.units import format_bytes


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
    """Bytes, the node that needs them (ABSENT: the end of the step) and the tensors there then."""

    nbytes: int
    node: int
    tensors: tuple[int, ...]

    def describe(self, graph: Graph) -> str:
        """What pins the floor, in one line."""
        largest = sorted(self.tensors, key=lambda t: -graph.tensors[t].nbytes)[:3]
        names = ", ".join(
            f"{graph.tensors[t].name} ({format_bytes(graph.tensors[t].nbytes)})" for t in largest
        )
        more = f" and {len(self.tensors) - 3} more" if len(self.tensors) > 3 else ""
        if self.node == ABSENT:
            return f"the graph outputs, held at the end: {names}{more}"
        node = graph.nodes[self.node]
        return f"{node.op} {node.name} needs at once: {names}{more}"


def structural_floor(graph: Graph, timeline: Timeline) -> Floor:
    """The floor of ``graph``; ``timeline`` is any simulation of it (for workspace and bodies).

    With devices it is a floor of what is on the device.
    """
    rules = semantics(timeline.session.provider)
    root = _view_roots(graph, rules)
    away = timeline.devices.host_tensors if timeline.devices else frozenset()
    outputs = [
        t
        for t in dict.fromkeys(graph.outputs)
        if not is_resident(graph.tensors[t]) and t not in away
    ]
    held = _Held(graph, outputs)
    plain = loaded = (held.total, ABSENT)
    inside = timeline.inside.nbytes
    for node in graph.nodes:
        here = held.before(node)
        nbytes = held.bytes_with(_working_set(graph, node, root, rules) - away, here)
        nbytes += inside.get(node.id, 0)
        step = timeline.allocation.step_of[node.id]
        with_workspace = nbytes + int(timeline.workspace[step])
        plain = max(plain, (nbytes, node.id), key=_nbytes)
        loaded = max(loaded, (with_workspace, node.id), key=_nbytes)

    def pin(found: tuple[int, int]) -> Pin:
        nbytes, node = found
        if node == ABSENT:
            return Pin(nbytes, ABSENT, tuple(outputs))
        tensors = _working_set(graph, graph.nodes[node], root, rules) - away
        tensors.update(held.names(held.before(graph.nodes[node])))
        return Pin(nbytes, node, tuple(sorted(tensors)))

    return Floor(pin(plain), pin(loaded))


def _nbytes(found: tuple[int, int]) -> int:
    return found[0]


class _Held:
    """Graph outputs that are made before a node, as bits of a number: there may be many.

    Their bytes are added eight outputs at a time, from a table: with a thousand outputs and nodes,
    a look at every output for every node would take seconds.
    """

    def __init__(self, graph: Graph, outputs: list[int]) -> None:
        self.graph = graph
        self.outputs = outputs
        self.bit = {tensor: 1 << k for k, tensor in enumerate(outputs)}
        self.made: dict[int, int] = {}
        sizes = np.zeros(-(-len(outputs) // 8) * 8, np.int64)
        sizes[: len(outputs)] = [graph.tensors[t].nbytes for t in outputs]
        bits = np.arange(256)[:, None] >> np.arange(8) & 1
        self.table = sizes.reshape(-1, 8) @ bits.T
        self.rows = np.arange(len(self.table))

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return sum(self.graph.tensors[t].nbytes for t in self.outputs)

    def before(self, node: Node) -> int:
        """Those that ``node`` depends on, its inputs among them. Nodes are asked for in order."""
        behind = 0
        for t in node.reads:
            behind |= self.made.get(t, 0) | self.bit.get(t, 0)
        for t in node.writes:
            self.made[t] = behind
        return behind

    def bytes_with(self, tensors: set[int], held: int) -> int:
        """Bytes of ``tensors`` and of the outputs ``held`` together."""
        others = (t for t in tensors if not held & self.bit.get(t, 0))
        beside = sum(self.graph.tensors[t].nbytes for t in others)
        if not held:
            return beside
        packed = np.frombuffer(held.to_bytes(len(self.rows), "little"), np.uint8)
        return beside + int(self.table[self.rows, packed].sum())

    def names(self, held: int) -> list[int]:
        """The tensors ``held``."""
        return [t for t in self.outputs if held & self.bit[t]]


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
    """Inputs that are not resident, and outputs that cannot share memory with an input."""
    tensors = {root.get(t, t) for t in node.reads}
    tensors = {t for t in tensors if not is_resident(graph.tensors[t])}
    for slot, tensor in enumerate(node.outputs):
        if tensor == ABSENT:
            continue
        if graph.tensors[tensor].is_output:
            tensors.add(tensor)
            continue
        if tensor in root or slot in OPTIONAL_OUTPUTS.get(node.key, ()):
            continue
        candidates = [
            graph.tensors[node.inputs[k]]
            for k in rules.inplace_inputs(node.key, slot)
            if k < len(node.inputs) and node.inputs[k] != ABSENT
        ]
        if not any(c.nbytes == graph.tensors[tensor].nbytes for c in candidates):
            tensors.add(tensor)
    return tensors
