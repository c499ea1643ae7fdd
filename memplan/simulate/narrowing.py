"""What fewer wanted gradients would free of the peak: for ``rewrite --wrt``.

Groups are modules of parameters (``blocks.3`` of ``blocks.3.attn.qkv.weight``). For each of them:
the bytes in memory at the peak that only its gradients and updates hold, and what goes if the
modules before it, in order of the forward part, are frozen as well. The peak falls by that at most:
with less at this step, another one may be the highest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memplan.ir.graph import Graph, TensorKind
from memplan.ir.phases import Phases
from memplan.ir.reach import trained_outputs
from memplan.ops.memory import OPTIONAL_OUTPUTS
from memplan.simulate.allocation import Buffer, is_resident
from memplan.simulate.explain import Explainer, TensorClass
from memplan.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Narrowing:
    """A module whose parameters might be frozen, and what that would free of the peak.

    ``freed_bytes`` by itself, ``freed_with_earlier_bytes`` with all modules before it; ``stashes``
    are names and bytes of the stashes among ``freed_bytes``, the largest first.
    """

    module: str
    parameters: tuple[str, ...]
    freed_bytes: int
    freed_with_earlier_bytes: int
    stashes: tuple[tuple[str, int], ...]

    def as_json(self) -> dict[str, object]:
        """All fields, by name."""
        return {
            "module": self.module,
            "parameters": list(self.parameters),
            "freed_bytes": self.freed_bytes,
            "freed_with_earlier_bytes": self.freed_with_earlier_bytes,
            "stashes": [{"name": name, "nbytes": nbytes} for name, nbytes in self.stashes],
        }


def narrowings(timeline: Timeline, phases: Phases) -> tuple[Narrowing, ...]:
    """What each module's gradients hold at the peak, in order of the forward part.

    Empty where the graph has no gradients, or those of one module only.
    """
    graph = timeline.graph
    owners = trained_outputs(graph, phases)
    groups = _groups(graph, {p for parameters in owners.values() for p in parameters})
    if len(groups) < 2:
        return ()
    holders = _Holders(timeline, phases, owners, list(groups.values()))
    found = []
    for index, (module, parameters) in enumerate(groups.items()):
        alone, stashes = holders.freed(1 << index)
        earlier, _ = holders.freed((2 << index) - 1)
        names = tuple(graph.tensors[p].name for p in parameters)
        found.append(Narrowing(module, names, alone, earlier, stashes))
    return tuple(found)


def _groups(graph: Graph, parameters: Iterable[int]) -> dict[str, list[int]]:
    """Parameters by module, in order of their first reader."""
    ordered = sorted(parameters, key=lambda p: (min(graph.tensors[p].readers, default=-1), p))
    found: dict[str, list[int]] = {}
    for parameter in ordered:
        found.setdefault(_layer(graph.tensors[parameter].name), []).append(parameter)
    return found


def _layer(parameter: str) -> str:
    """The parameter's path up to its first index, or without its last part."""
    parts = parameter.split(".")
    index = next((k for k, part in enumerate(parts[:-1]) if part.isdigit()), None)
    return ".".join(parts[: index + 1] if index is not None else parts[:-1] or parts)


class _Holders:
    """Whom every node works for, as bits: one per group, and one for what is always wanted."""

    def __init__(
        self,
        timeline: Timeline,
        phases: Phases,
        owners: dict[int, frozenset[int]],
        groups: list[list[int]],
    ) -> None:
        self.timeline, self.graph = timeline, timeline.graph
        self.live = timeline.live_at(timeline.peak_step)
        self.explainer = Explainer(timeline, phases, ("",) * len(self.graph.nodes))
        bit = {p: 1 << index for index, group in enumerate(groups) for p in group}
        always = 1 << len(groups)
        self.wanted = {
            t: sum({bit[p] for p in owners[t]}) if t in owners else always
            for t in self.graph.outputs
        }
        self.serves = [0] * len(self.graph.nodes)
        for node in reversed(self.graph.nodes):
            for t in node.writes:
                self.serves[node.id] |= self.wanted.get(t, 0)
                for reader in self.graph.tensors[t].readers:
                    self.serves[node.id] |= self.serves[reader]

    def freed(self, frozen: int) -> tuple[int, tuple[tuple[str, int], ...]]:
        """Bytes of the peak that go with the groups ``frozen`` (bits), and the stashes in it."""
        gone = [buffer for buffer in self.live if not self._stays(buffer, frozen)]
        stashes = tuple(
            (self.graph.tensors[buffer.root].name, buffer.nbytes)
            for buffer in gone
            if self.explainer.buffer_class(buffer) is TensorClass.STASH
        )
        return sum(buffer.nbytes for buffer in gone) + self._state(frozen), stashes

    def _stays(self, buffer: Buffer, frozen: int) -> bool:
        tensors = [self.graph.tensors[t] for t in buffer.members]
        if not self.serves[tensors[0].producer] & ~frozen:
            return False
        if any(self.wanted.get(t.id, 0) & ~frozen for t in tensors):
            return True
        readers = [r for t in tensors for r in t.readers if self.serves[r] & ~frozen]
        if not readers:  # held to the end, unless the node need not make it
            node = self.graph.nodes[tensors[0].producer]
            return node.outputs.index(buffer.root) not in OPTIONAL_OUTPUTS.get(node.key, ())
        step_of = self.timeline.allocation.step_of
        return any(step_of[r] >= self.timeline.peak_step for r in readers)

    def _state(self, frozen: int) -> int:
        """Bytes of graph inputs that only work for ``frozen`` reads: their optimizer state."""
        return sum(
            tensor.nbytes
            for tensor in self.graph.tensors
            if tensor.kind is TensorKind.INPUT
            and is_resident(tensor)
            and tensor.readers
            and not any(self.serves[r] & ~frozen for r in tensor.readers)
            and any(self.serves[r] for r in tensor.readers)
        )
