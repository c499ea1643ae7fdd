"""What the bytes of a step are, and who holds them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from memplan.ir.graph import Graph, Phase, Tensor, TensorKind
from memplan.ir.phases import Phases
from memplan.simulate.allocation import Buffer, is_resident
from memplan.simulate.timeline import Timeline


class TensorClass(StrEnum):
    """What a tensor is for; every byte of a peak is in exactly one class."""

    WEIGHTS = "weights"
    INPUTS = "inputs"
    OPTIMIZER_STATE = "optimizer_state"
    CONSTANTS = "constants"
    STASH = "stash"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Live:
    """A tensor in memory at the peak.

    ``birth`` and ``death`` are steps (half open); resident tensors are born at -1. ``held_by``
    says which node still reads it, or why else it is kept.
    """

    name: str
    nbytes: int
    tensor_class: TensorClass
    producer: str
    birth: int
    death: int
    held_by: str
    module: str


@dataclass(frozen=True, slots=True)
class Stash:
    """A tensor made in forward and read in backward: its size and its backward readers."""

    name: str
    nbytes: int
    producer: str
    readers: tuple[str, ...]
    module: str


class Explainer:
    """Answers questions about one timeline."""

    def __init__(self, timeline: Timeline, phases: Phases, modules: tuple[str, ...]) -> None:
        self.timeline = timeline
        self.graph: Graph = timeline.graph
        self.phases = phases
        self.modules = modules
        self.peak_step = timeline.peak_step
        self._classes: dict[int, TensorClass] = {}

    def class_of(self, tensor: Tensor) -> TensorClass:
        """The class of a tensor's memory."""
        if is_resident(tensor):
            return self._resident_class(tensor)
        if tensor.is_output:
            return TensorClass.OUTPUT
        phase = self.phases.of[tensor.producer]
        if phase in (Phase.BACKWARD, Phase.UPDATE):
            return TensorClass.GRADIENT
        if any(self.phases.of[reader] is Phase.BACKWARD for reader in tensor.readers):
            return TensorClass.STASH
        return TensorClass.ACTIVATION

    def _resident_class(self, tensor: Tensor) -> TensorClass:
        if tensor.id in self.phases.parameters or tensor.id in self.phases.fixed:
            return TensorClass.WEIGHTS
        if tensor.id in self.phases.state:
            return TensorClass.OPTIMIZER_STATE
        if tensor.kind is TensorKind.INITIALIZER:
            return TensorClass.CONSTANTS
        return TensorClass.INPUTS

    def buffer_class(self, buffer: Buffer) -> TensorClass:
        """The class of a buffer: a stash if any tensor in it is one."""
        found = self._classes.get(buffer.id)
        if found is None:
            classes = [self.class_of(self.graph.tensors[t]) for t in buffer.members]
            found = TensorClass.STASH if TensorClass.STASH in classes else classes[0]
            self._classes[buffer.id] = found
        return found

    def by_class(self, step: int) -> dict[TensorClass, int]:
        """Bytes per class in memory at ``step``; resident ones included, empty ones left out.

        With devices those on the device, as everywhere in a timeline.
        """
        found: Counter[TensorClass] = Counter()
        away = self.timeline.away
        for tensor in self.graph.tensors:
            if is_resident(tensor) and tensor.id not in away:
                found[self.class_of(tensor)] += tensor.nbytes
        if (state := self.graph.state) is not None:
            for output in state.apart:  # the second buffer
                old = self.graph.tensors[state.pairs[output]]
                found[self.class_of(old)] += old.nbytes
        for buffer in self.timeline.live_at(step):
            found[self.buffer_class(buffer)] += buffer.nbytes
        inside = (
            int(self.timeline.dynamic[step]) + self.timeline.resident_bytes
            if len(self.timeline.dynamic)
            else self.timeline.resident_bytes
        )
        rest = inside - sum(found.values())
        if rest:
            found[TensorClass.ACTIVATION] += rest  # inside a control-flow body
        return {name: found[name] for name in TensorClass if found[name]}

    def at_peak(self) -> list[Live]:
        """Computed tensors in memory at the peak, largest first."""
        return [self._live(buffer) for buffer in self.timeline.live_at(self.peak_step)]

    def _live(self, buffer: Buffer) -> Live:
        root = self.graph.tensors[buffer.root]
        producer = self.graph.nodes[root.producer]
        return Live(
            name=root.name,
            nbytes=buffer.nbytes,
            tensor_class=self.buffer_class(buffer),
            producer=producer.name,
            birth=buffer.birth,
            death=buffer.death,
            held_by=self._held_by(buffer),
            module=self.modules[producer.id],
        )

    def _held_by(self, buffer: Buffer) -> str:
        """The next reader after the peak, and how many follow."""
        step_of, peak = self.timeline.allocation.step_of, self.peak_step
        readers = sorted(
            {step_of[r] for t in buffer.members for r in self.graph.tensors[t].readers}
        )
        later = [step for step in readers if step > peak]
        if buffer.is_output:
            return "graph output, held to the end"
        if not readers:
            return "unused: held to the end"
        if not later:
            return f"in use by {self._node_at(readers[-1])}"
        more = f" and {len(later) - 1} more" if len(later) > 1 else ""
        return f"{self._node_at(later[0])}{more}"

    def _node_at(self, step: int) -> str:
        node = self.graph.nodes[self.timeline.order[step]]
        return f"{node.op} {node.name} ({self.phases.of[node.id]})"

    def stashes(self) -> list[Stash]:
        """Every buffer that forward makes and backward reads, largest first."""
        found = []
        for buffer in self.timeline.allocation.buffers:
            root = self.graph.tensors[buffer.root]
            if root.is_output or self.buffer_class(buffer) is not TensorClass.STASH:
                continue
            readers = sorted(
                {
                    reader
                    for t in buffer.members
                    for reader in self.graph.tensors[t].readers
                    if self.phases.of[reader] is Phase.BACKWARD
                }
            )
            found.append(
                Stash(
                    name=root.name,
                    nbytes=buffer.nbytes,
                    producer=self.graph.nodes[root.producer].name,
                    readers=tuple(self.graph.nodes[r].name for r in readers),
                    module=self.modules[root.producer],
                )
            )
        return sorted(found, key=lambda stash: (-stash.nbytes, stash.name))
