"""What the two graphs take in memory, read off their nodes alone.

This walk knows nothing of plans or sequences: it goes through the forward graph and the backward
graph as the code that AOTAutograd generates runs them, statement by statement, and is what every
figure of a report comes from. The planner's own figure must be equal
(:mod:`memplan.pytorch.torch_solver`).

1. Inputs (weights, buffers, batch) and constants are there throughout: the caller holds them.
2. A call makes a storage for each result that is not a view of an argument.
3. A name is dropped behind the last statement that uses it; a storage goes with its last name.
4. What the forward pass returns to the caller stays to the end.
5. Saved tensors stay until the backward pass has used them last, tangents likewise; the number
   that ``loss.backward()`` begins with stays to the end.
6. Gradients stay to the end of the step.
7. What kernels take for themselves while they run (:mod:`memplan.pytorch.solver_costs`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import fx

from memplan.pytorch.solver_costs import scratch_bytes
from memplan.pytorch.solver_joint import (
    is_root,
    shared_argument,
    storage_bytes,
    storage_key,
    value_of,
)

Storages = tuple[int, ...]
"""What a name holds: one storage, several for several results, none where that is resident."""


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes of a step beside the resident ones, at its peak, and what runs there.

    ``saved_bytes``: of the storages that cross from forward to backward, those of inputs left out.
    """

    forward_peak_bytes: int
    backward_peak_bytes: int
    saved_bytes: int
    peak_node: str

    @property
    def peak_bytes(self) -> int:
        """The larger of both peaks."""
        return max(self.forward_peak_bytes, self.backward_peak_bytes)


@dataclass(slots=True)
class _Walk:
    """Names → storages, and the bytes of the storages that some name holds."""

    size: dict[int, int] = field(default_factory=dict)
    names: dict[fx.Node, Storages] = field(default_factory=dict)
    holders: dict[int, int] = field(default_factory=dict)
    live: int = 0
    peak: int = 0
    peak_node: str = ""
    count: int = 0

    def new(self, nbytes: int) -> int:
        self.count += 1
        self.size[self.count] = nbytes
        return self.count

    def hold(self, storages: Iterable[int]) -> None:
        for each in storages:
            self.holders[each] = self.holders.get(each, 0) + 1
            if self.holders[each] == 1:
                self.live += self.size[each]

    def drop(self, storages: Iterable[int]) -> None:
        for each in storages:
            self.holders[each] -= 1
            if not self.holders[each]:
                self.live -= self.size[each]

    def see(self, node: fx.Node) -> None:
        taken = self.live + scratch_bytes(node)
        if taken > self.peak:
            self.peak, self.peak_node = taken, node.name

    def run(self, graph: fx.Graph, given: dict[fx.Node, Storages]) -> list[Storages]:
        """Run a graph; the storages of what it returns, which the caller holds."""
        self.names = {}
        goes = _last_uses(graph)
        returned: list[Storages] = []
        for node in graph.nodes:
            if node.op == "placeholder":
                self._name(node, given.get(node, ()))
            elif node.op == "output":
                returned = [
                    self.names[each] if isinstance(each, fx.Node) else () for each in node.args[0]
                ]
                for storages in returned:
                    self.hold(storages)
            else:
                self._name(node, self._made(node))
                self.see(node)
            for gone in goes.get(node, ()):
                self.drop(self.names.pop(gone))
        return returned

    def _name(self, node: fx.Node, storages: Storages) -> None:
        self.names[node] = storages
        self.hold(storages)

    def _made(self, node: fx.Node) -> Storages:
        """The storages of a statement's results; a resident one has no bytes here."""
        if node.op == "get_attr":
            return ()
        value = value_of(node)
        many = isinstance(value, list | tuple)
        parts = []
        for each in value if many else (value,):
            shared = shared_argument(node, each)
            if shared is None:
                parts.append(self.new(storage_bytes(each)))
                continue
            lies_in = self.names[shared]
            # One result of several: the one that this call takes.
            place = node.args[1] if _takes_part(node, shared, lies_in) else 0
            parts.append(lies_in[place] if lies_in else self.new(0))
        return tuple(parts)


def _takes_part(node: fx.Node, source: fx.Node, storages: tuple[int, ...]) -> bool:
    """Whether a call is ``getitem`` on a call with several results."""
    return (
        len(storages) > 1
        and isinstance(value_of(source), list | tuple)
        and len(node.args) > 1
        and isinstance(node.args[1], int)
    )


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """The names that are dropped behind each node."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "output":
            last[node] = node
        for each in node.all_input_nodes:
            last[each] = node
    found: dict[fx.Node, list[fx.Node]] = {}
    for name, node in last.items():
        found.setdefault(node, []).append(name)
    return found


def step_memory(forward: fx.Graph, backward: fx.Graph, forward_outputs: int) -> StepMemory:
    """Walk through both graphs; the forward graph's first ``forward_outputs`` are the caller's."""
    walk = _Walk()
    returned = walk.run(forward, {})
    first, first_node = walk.peak, walk.peak_node
    (end,) = forward.find_nodes(op="output")
    names = [each.name if isinstance(each, fx.Node) else "" for each in end.args[0]]
    handed = dict(zip(names[forward_outputs:], returned[forward_outputs:], strict=True))
    given = _given(walk, backward, handed)
    for storages in handed.values():
        walk.drop(storages)
    walk.peak, walk.peak_node = 0, ""
    walk.run(backward, given)
    saved = {each for storages in handed.values() for each in storages}
    return StepMemory(
        first,
        walk.peak,
        sum(walk.size[each] for each in saved),
        first_node if first >= walk.peak else walk.peak_node,
    )


def _given(walk: _Walk, backward: fx.Graph, handed: dict[str, Storages]) -> dict[fx.Node, Storages]:
    """The storages that the backward graph begins with, by placeholder."""
    found: dict[fx.Node, Storages] = {}
    tangents: dict[int | None, Storages] = {}
    for node in backward.find_nodes(op="placeholder"):
        if "tangents" in str(node.target):
            value = value_of(node)
            key = storage_key(value)
            if key not in tangents:
                tangents[key] = (walk.new(storage_bytes(value)),)
                if is_root(value):
                    walk.hold(tangents[key])
            found[node] = tangents[key]
        else:
            found[node] = handed.get(node.name, ())
    return found
