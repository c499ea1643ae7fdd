"""Pairs of loops: one that the loss depends on, and one behind it that reads what it stacked.

The backward loop runs the other way: its step u belongs to step T - 1 - u of the forward loop. What
it reads is followed back through copies, reversals and shifts by one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from memplan.ir.graph import Graph, TensorKind
from memplan.ir.phases import Phases
from memplan.loops.call import LoopCall, Values, read_call
from memplan.loops.sequences import Makers, shifted_state, sources
from memplan.shapes.fold import folded_constants
from memplan.shapes.tensor_type import TensorType


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor with all steps that the backward loop reads: ``name`` in the graph, ``tensor`` in
    the body of the forward loop. ``resident`` ones are there all the time anyway."""

    name: str
    tensor: str
    shape: tuple[int, ...]
    nbytes: int
    resident: bool = False

    def as_json(self) -> dict[str, object]:
        """For reports; bytes are those of one step."""
        return {
            "name": self.name,
            "tensor": self.tensor,
            "shape": list(self.shape),
            "bytes_per_step": self.nbytes,
        }


@dataclass(frozen=True, slots=True)
class RecurrentPair:
    """Two loops of ``steps`` steps each.

    ``reads`` maps names of the backward body to names of the forward body: the slices of the one
    are what the other computes (``stored``), or is given (``sequences``), at the same step.
    """

    forward: LoopCall
    backward: LoopCall
    reads: Mapping[str, str]
    stored: tuple[Stored, ...]
    sequences: tuple[Stored, ...]

    @property
    def steps(self) -> int:
        """How often the loops run."""
        return self.forward.steps

    @property
    def step_bytes(self) -> int:
        """Bytes stored per step for the backward loop."""
        return sum(item.nbytes for item in self.stored)

    def as_json(self) -> dict[str, object]:
        """For reports."""
        return {
            "forward": self.forward.node.name,
            "backward": self.backward.node.name,
            "op": self.forward.node.op_type,
            "steps": self.steps,
            "stored_bytes_per_step": self.step_bytes,
            "stored_bytes": self.steps * self.step_bytes,
            "stored": [item.as_json() for item in self.stored],
            "sequences": [item.as_json() for item in self.sequences],
        }


def find_pairs(
    model: onnx.ModelProto, types: Mapping[str, TensorType], graph: Graph, phases: Phases
) -> tuple[RecurrentPair, ...]:
    """The pairs of a graph, in the order of the backward loops.

    Args:
        model: the model with dimensions bound, of which ``graph`` was made.
        types: of its tensors.
        graph: the graph.
        phases: its phases.
    """
    loops = [node.id for node in graph.nodes if node.key in (":Scan", ":Loop")]
    if len(loops) < 2:
        return ()
    values = folded_constants(model, types)
    protos = [n for n in model.graph.node if n.op_type != "Constant" or n.domain]
    makers = {name: node for node in protos for name in node.output if name}
    calls = [read_call(protos[k], graph.nodes[k], graph, values) for k in loops]
    ahead = [call for call in calls if call and call.index in phases.forward]
    behind = [call for call in calls if call and call.index not in phases.forward]
    found = []
    for backward in behind:
        for forward in ahead:
            pair = _pair(forward, backward, graph, makers, values)
            if pair is not None:
                found.append(pair)
    return tuple(found)


def _pair(
    forward: LoopCall, backward: LoopCall, graph: Graph, makers: Makers, values: Values
) -> RecurrentPair | None:
    """What of ``forward`` the steps of ``backward`` read; None if nothing that it stacked."""
    if forward.steps != backward.steps:
        return None
    reads: dict[str, str] = {}
    for inner, given in backward.slices.items():
        for item in sources(given, forward.steps, makers, values):
            known = [*forward.stacked, *forward.slices.items()]
            met = next(
                (
                    n
                    for n, s in known
                    if (s.name, s.axis) == (item.name, item.axis) and s.reversed_ != item.reversed_
                ),
                None,
            )
            shifted = shifted_state(item, forward, makers, values)
            if met is None and shifted and shifted[1].reversed_ != item.reversed_:
                met = shifted[0].before
            if met is not None:
                reads[inner] = met
                break
    stored = {inner: t for inner, t in reads.items() if t not in forward.slices}
    if not stored:
        return None
    return RecurrentPair(
        forward,
        backward,
        reads,
        _rows(backward, stored, forward, graph),
        _rows(backward, {i: t for i, t in reads.items() if i not in stored}, forward, graph),
    )


def _rows(
    backward: LoopCall, reads: Mapping[str, str], forward: LoopCall, graph: Graph
) -> tuple[Stored, ...]:
    """The tensors, under the names of what the forward loop stacks or reads, where it does."""
    kinds = {tensor.name: tensor.kind for tensor in graph.tensors}
    homes = {
        **{n: s.name for n, s in forward.slices.items()},
        **{n: s.name for n, s in reversed(forward.stacked)},
    }
    rows: dict[str, Stored] = {}
    for inner, tensor in reads.items():
        outer = homes.get(tensor, backward.slices[inner].name)
        found = forward.tensors[tensor]
        resident = kinds[outer] is not TensorKind.COMPUTED
        rows.setdefault(tensor, Stored(outer, tensor, found.shape, found.nbytes, resident))
    return tuple(rows.values())
