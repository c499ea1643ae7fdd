"""Forward and backward ``Scan`` of recurrent layers in the words of the key ``scans``.

A view on the pairs that :mod:`memplan.passes.loops.loop_pairs` finds, kept for readers of
memplan.analysis/1, memplan.grad/1 and memplan.rewrite/1. It needs no sizes, and looks into bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx

from memplan.ir.graph import Phase
from memplan.ops.book import SAME_ELEMENTS
from memplan.passes.loops.call import LoopCall, LoopReader, Types
from memplan.passes.loops.loop_pairs import LoopPair, StoredTensor, pairs_in, stored_bytes
from memplan.passes.loops.sequences import Makers
from memplan.proto.loop_node import Slices, read_loop
from memplan.proto.metadata import FORWARD_KEY, PHASE_KEY, node_metadata
from memplan.proto.nodes import is_constant, operator_key, subgraphs
from memplan.proto.opset import default_opset
from memplan.shapes.fold import small_constants
from memplan.shapes.tensor_type import UNKNOWN, Dim, TensorType, read_type

_BETWEEN = SAME_ELEMENTS | {":Concat", ":Slice"}
"""What the backward part may read stacked tensors through: states are shifted by one step."""


@dataclass(frozen=True, slots=True)
class ScanLayer:
    """A forward Scan and its backward Scan, in the words of memplan.analysis/1.

    ``stored`` are outputs of the forward Scan that its backward part reads, ``sequences`` inputs
    of the forward Scan that it reads again; ``steps`` is a size, a name, or "" if unknown.
    """

    forward: str
    backward: str
    steps: Dim
    stored: tuple[StoredTensor, ...]
    sequences: tuple[StoredTensor, ...]

    def step_bytes(self, dims: Mapping[str, int]) -> int | None:
        """Bytes stored per time step; None if a dimension is not known."""
        return stored_bytes(self.stored, dims)

    def total_bytes(self, dims: Mapping[str, int]) -> int | None:
        """Bytes stored over all steps; None if a dimension is not known."""
        steps = self.steps if isinstance(self.steps, int) else dims.get(self.steps)
        each = self.step_bytes(dims)
        return None if steps is None or each is None else steps * each

    def as_json(self, dims: Mapping[str, int]) -> dict[str, object]:
        """For reports; null where a dimension is not known."""
        return {
            "forward": self.forward,
            "backward": self.backward,
            "steps": self.steps,
            "stored_bytes_per_step": self.step_bytes(dims),
            "stored_bytes": self.total_bytes(dims),
            "stored": [item.as_json(dims) for item in self.stored],
            "sequences": [item.as_json(dims) for item in self.sequences],
        }


def scan_layers(
    model: onnx.ModelProto, known: Mapping[str, TensorType] | None = None
) -> tuple[ScanLayer, ...]:
    """A view on the pairs of Scans, in the main graph and in bodies, in the order of forward Scans.

    It is kept for readers of ``scans`` in memplan.analysis/1, memplan.grad/1 and memplan.rewrite/1;
    ``recurrent`` says more. Where nodes say whose backward they are, a layer stores what any of
    them reads, not its backward Scan alone.

    Args:
        model: a training graph, with or without sizes.
        known: types of the main graph's tensors, beside those that the file states.
    """
    return tuple(_layers(model.graph, default_opset(model), known or {}))


def _layers(graph: onnx.GraphProto, opset: int, known: Types) -> Iterator[ScanLayer]:
    """The layers of a graph and of the bodies in it."""
    several = sum(node.op_type == "Scan" for node in graph.node) > 1
    own = _layers_of(graph, opset, known) if several else {}
    index = -1
    for node in graph.node:
        if own and not is_constant(node):
            index += 1
            if index in own:
                yield own[index]
        for body in subgraphs(node):
            yield from _layers(body, opset, {})


def _layers_of(graph: onnx.GraphProto, opset: int, known: Types) -> dict[int, ScanLayer]:
    """The layers of a graph itself, by the place of the forward Scan.

    Where some node says whose backward it is, only such pairs are layers; of several backward Scans
    of one forward Scan the last is named.
    """
    stated = (*graph.value_info, *graph.input, *graph.output)
    types = {value.name: read_type(value.type) for value in stated}
    types |= {
        name: TensorType(value.dtype, value.shape)
        for name, value in known.items()
        if value.shape is not None
    }
    makers = {name: node for node in graph.node for name in node.output if name}
    noted: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        if FORWARD_KEY in (notes := node_metadata(node)):
            noted.setdefault(notes[FORWARD_KEY], []).append(node)
    pairs: dict[int, list[LoopPair]] = {}
    reader = LoopReader(opset, types, small_constants(graph))
    for pair in pairs_in(graph, reader, _backward_by_note(graph)):
        if pair.forward.is_scan and pair.backward.is_scan and (pair.noted or not noted):
            pairs.setdefault(pair.forward.index, []).append(pair)
    found = {}
    for index, own in pairs.items():
        nodes = noted.get(own[-1].forward.node.name) or [pair.backward.node for pair in own]
        read = {name for node in nodes for name in node.input}
        found[index] = _layer(own[-1], read, makers, types)
    return found


def _backward_by_note(graph: onnx.GraphProto) -> Callable[[LoopCall], bool] | None:
    """Whether a loop is backward by its metadata; None if no node of the graph states a phase."""
    if not any(PHASE_KEY in node_metadata(node) for node in graph.node):
        return None
    ahead = (Phase.FORWARD, Phase.LOSS)
    return lambda call: node_metadata(call.node).get(PHASE_KEY, Phase.FORWARD) not in ahead


def _layer(pair: LoopPair, read: set[str], makers: Makers, types: Types) -> ScanLayer:
    """``read``: what the backward part reads."""
    loop = read_loop(pair.forward.node)
    origins = _origins(read, makers)

    def tensors(rows: Iterable[tuple[Slices, str]], names: set[str]) -> tuple[StoredTensor, ...]:
        return tuple(
            StoredTensor(item.name, inner, _slice_type(types.get(item.name, UNKNOWN), item.axis))
            for item, inner in rows
            if item.name in names
        )

    return ScanLayer(
        pair.forward.node.name,
        pair.backward.node.name,
        pair.forward.steps,
        tensors(zip(loop.stacked, loop.slice_outputs, strict=False), origins),
        tensors(zip(loop.sequences, loop.slice_inputs, strict=True), read),
    )


def _origins(names: Iterable[str], makers: Makers) -> set[str]:
    """The tensors ``names``, and what they are shifted or reshaped copies of."""
    found: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name in found:
            continue
        found.add(name)
        node = makers.get(name)
        if node is not None and operator_key(node) in _BETWEEN:
            stack.extend(node.input)
    return found


def _slice_type(found: TensorType, axis: int) -> TensorType:
    """The type of one step's slice."""
    shape = list(found.shape or ("",))
    del shape[axis : axis + 1 or None]  # an axis beyond the rank leaves all
    return TensorType(found.dtype, tuple(shape))
