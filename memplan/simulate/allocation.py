"""Which buffer every tensor gets, and from which step to which it lives.

Follows ONNX Runtime's sequential allocation planner and execution frame (``allocation_planner.cc``,
``execution_frame.cc``; 1.31.1). The rules, numbered as in docs/how/memory-model.md:

1. A graph output gets a buffer of its own, held from production to the end.
2. An alias output shares the buffer of its input, whoever owns that.
3. An in-place output takes the buffer of an input that dies here, of equal dims and element size.
4. With ``enable_mem_reuse``: the most recently freed buffer of equal dims and element size.
5. Else a new buffer. It is released after the last node that reads any tensor living in it; a
   buffer that nobody reads is held to the end.

The same rules stand in :mod:`memplan.solver.evaluate` (compiled, for sequences in which nodes are
recomputed). That is an oracle and its subject, not duplication:
:mod:`memplan.api.rewrite.check_file` holds its answers against this one, to the byte. So neither of
the two may use the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from memplan.ir.graph import ABSENT, Graph, Node, Tensor, TensorKind
from memplan.ops.memory import MemorySemantics, semantics
from memplan.providers import on_host
from memplan.simulate.devices import Devices, host_copies
from memplan.simulate.session import SessionKind


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of ``nbytes`` bytes, live in steps ``birth`` ≤ s < ``death``.

    ``root`` is the tensor that it was allocated for; ``members`` all tensors that live in it, in
    order of production.
    """

    id: int
    root: int
    members: tuple[int, ...]
    nbytes: int
    birth: int
    death: int
    is_output: bool


@dataclass(frozen=True, slots=True)
class Allocation:
    """Buffers of one simulated run. ``buffer_of`` maps tensor id → buffer id (ABSENT: resident)."""

    order: tuple[int, ...]
    step_of: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    buffer_of: tuple[int, ...]


def allocate(
    graph: Graph, order: list[int], session: SessionKind, devices: Devices | None = None
) -> Allocation:
    """Simulate allocation for ``order`` (node ids, every node once).

    Where ``devices`` tell the host from the device, no buffer is shared between the two.
    """
    return _Planner(graph, order, session, devices).run()


_Likeness = tuple[tuple[int | str, ...], int, bool]
"""Dims as the runtime sees them, bytes (equal dims: element size), whether it is on the host."""


def off_device(graph: Graph, session: SessionKind, devices: Devices | None) -> frozenset[int]:
    """Tensors that are not in the device's memory: those that ``devices`` know, else what the graph
    itself copies to the host."""
    if devices is not None:
        return devices.host_tensors
    return frozenset() if on_host(session.provider) else host_copies(graph)


class _Planner:
    """State of the planner: use counts per root, free roots by likeness (the last freed last),
    roots per tensor."""

    def __init__(
        self, graph: Graph, order: list[int], session: SessionKind, devices: Devices | None
    ) -> None:
        self.graph = graph
        self.order = order
        self.reuse = session.reuse
        self.rules: MemorySemantics = semantics(session.provider)
        self.host_nodes = devices.host_nodes if devices else frozenset()
        self.host_tensors = off_device(graph, session, devices)
        self.root = list(range(len(graph.tensors)))
        self.uses = [self._initial_uses(tensor) for tensor in graph.tensors]
        self.members: dict[int, list[int]] = {}
        self.free: dict[_Likeness, list[int]] = {}

    @staticmethod
    def _initial_uses(tensor: Tensor) -> int:
        """Input slots that read it, one for being produced or owned, one for a graph output."""
        return len(tensor.readers) + 1 + tensor.is_output

    def run(self) -> Allocation:
        nodes, tensors = self.graph.nodes, self.graph.tensors
        step_of = [0] * len(nodes)
        for step, index in enumerate(self.order):
            step_of[index] = step
            node = nodes[index]
            made = [(s, t) for s, t in enumerate(node.outputs) if t != ABSENT]
            if node.id in self.graph.bodies:
                # What If and Scan do not know the shape of is made by the body.
                made.sort(key=lambda pair: not tensors[pair[1]].static)
            for slot, tensor in made:
                if tensors[tensor].counted:
                    self._place(node, slot, tensor)
            for tensor in (*node.reads, *node.writes):
                self._release(tensor)
        return self._finish(step_of)

    def _place(self, node: Node, slot: int, tensor: int) -> None:
        if self.graph.tensors[tensor].is_output:
            if not passes_through(self.graph, tensor):
                self.members[tensor] = [tensor]
            return
        source = self._shared(node, slot, tensor)
        if source is None and self.reuse:
            source = self._reusable(tensor)
        if source is None:
            self.members[tensor] = [tensor]
            return
        root = self.root[source]
        self.root[tensor] = root
        self.uses[root] += self.uses[tensor]
        if root in self.members:
            self.members[root].append(tensor)

    def _shared(self, node: Node, slot: int, tensor: int) -> int | None:
        """The input whose buffer the output takes by rule 2 or 3."""
        rules = self.rules
        if self.host_nodes and node.id in self.host_nodes:
            rules = semantics("cpu")
        alias = rules.alias_input(node.key, slot)
        if alias is not None and alias < len(node.inputs) and node.inputs[alias] != ABSENT:
            return node.inputs[alias]
        for candidate in rules.inplace_inputs(node.key, slot):
            if candidate >= len(node.inputs) or node.inputs[candidate] == ABSENT:
                continue
            source = node.inputs[candidate]
            if self.uses[self.root[source]] == 1 and self._alike(source, tensor):
                return source
        return None

    def _alike(self, first: int, second: int) -> bool:
        likeness = self._likeness(first)
        return likeness is not None and likeness == self._likeness(second)

    def _likeness(self, tensor: int) -> _Likeness | None:
        """What two tensors must have in common to share a buffer; None: this one never does."""
        found = self.graph.tensors[tensor]
        if not (found.static and found.counted):
            return None
        return found.seen, found.nbytes, tensor in self.host_tensors

    def _reusable(self, tensor: int) -> int | None:
        """Rule 4: take the most recently freed buffer of identical dims off the free list."""
        candidate = self.graph.tensors[tensor]
        if not candidate.readers or not candidate.shape:
            return None
        likeness = self._likeness(tensor)
        freed = self.free.get(likeness) if likeness is not None else None
        return freed.pop() if freed else None

    def _release(self, tensor: int) -> None:
        root = self.root[tensor]
        self.uses[root] -= 1
        if self.uses[root] == 0 and self.reuse and (likeness := self._likeness(root)) is not None:
            self.free.setdefault(likeness, []).append(root)

    def _finish(self, step_of: list[int]) -> Allocation:
        graph, tensors, end = self.graph, self.graph.tensors, len(self.order)
        buffer_of = [ABSENT] * len(graph.tensors)
        buffers: list[Buffer] = []
        for root, members in self.members.items():
            tensor = tensors[root]
            readers = [step_of[r] for member in members for r in tensors[member].readers]
            birth = step_of[tensor.producer]
            death = end if tensor.is_output or not readers else max(readers) + 1
            for member in members:
                buffer_of[member] = len(buffers)
            buffers.append(
                Buffer(
                    len(buffers),
                    root,
                    tuple(members),
                    0 if written_outside(graph, tensor) else tensor.nbytes,
                    birth,
                    death,
                    tensor.is_output,
                )
            )
        return Allocation(tuple(self.order), tuple(step_of), tuple(buffers), tuple(buffer_of))


def passes_through(graph: Graph, tensor: int) -> bool:
    """Whether a Loop body hands one of its inputs on unchanged: then nothing is copied.

    ``allocation_planner.cc`` makes this exception for ``Identity`` in Loop bodies only, and not for
    the iteration number.
    """
    producer = graph.tensors[tensor].producer
    if graph.parent_op != "Loop" or producer < 0 or graph.nodes[producer].key != ":Identity":
        return False
    source = graph.nodes[producer].inputs[0]
    return graph.tensors[source].kind is TensorKind.INPUT and source != graph.inputs[0]


def written_outside(graph: Graph, tensor: Tensor) -> bool:
    """Whether the tensor lies in memory of the node around.

    So do the outputs of a Scan's body, and those outputs of an If's branch whose dimensions are
    known before it runs (``if.cc``, ``AllocateOutputTensors``).
    """
    known = graph.parent_op == "Scan" or (graph.parent_op == "If" and tensor.static)
    return known and tensor.is_output


def is_resident(tensor: Tensor) -> bool:
    """Whether the tensor is in memory before step 0 (inputs and initializers)."""
    return tensor.kind is not TensorKind.COMPUTED
