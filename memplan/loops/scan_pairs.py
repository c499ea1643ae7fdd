"""Forward and backward ``Scan`` of one recurrent layer, and what the one keeps for the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import helper

from memplan.errors import ModelError
from memplan.proto.nodes import subgraphs
from memplan.shapes.infer import ValueType

FORWARD_KEY = "memplan.forward"
# A backward Scan may read states shifted by one step: behind these.
_BETWEEN = frozenset({"Concat", "Slice", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor with all time steps that the backward Scan reads.

    ``tensor`` is its name in the forward body, ``shape`` that of one step (sizes or names).
    """

    name: str
    tensor: str
    shape: tuple[int | str, ...]
    element_bytes: float

    def step_bytes(self, dims: Mapping[str, int]) -> int | None:
        """Bytes of one step; None if a dimension is not known."""
        sizes = [dim if isinstance(dim, int) else dims.get(dim) for dim in self.shape]
        known = [size for size in sizes if size is not None]
        return (
            math.ceil(math.prod(known) * self.element_bytes) if len(known) == len(sizes) else None
        )


@dataclass(frozen=True, slots=True)
class ScanPair:
    """``stored`` are outputs of the forward Scan that its backward part reads, ``sequences`` inputs
    of the forward Scan that it reads again; ``steps`` is a size, a name, or "" if unknown."""

    forward: str
    backward: str
    steps: int | str
    stored: tuple[Stored, ...]
    sequences: tuple[Stored, ...]

    def step_bytes(self, dims: Mapping[str, int]) -> int | None:
        """Bytes stored per time step; None if a dimension is not known."""
        parts = [item.step_bytes(dims) for item in self.stored]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    def total_bytes(self, dims: Mapping[str, int]) -> int | None:
        """Bytes stored over all steps; None if a dimension is not known."""
        steps = self.steps if isinstance(self.steps, int) else dims.get(self.steps)
        each = self.step_bytes(dims)
        return None if steps is None or each is None else steps * each

    def as_json(self, dims: Mapping[str, int]) -> dict[str, object]:
        """For reports; null where a dimension is not known."""

        def row(item: Stored) -> dict[str, object]:
            return {
                "name": item.name,
                "tensor": item.tensor,
                "shape": list(item.shape),
                "bytes_per_step": item.step_bytes(dims),
            }

        return {
            "forward": self.forward,
            "backward": self.backward,
            "steps": self.steps,
            "stored_bytes_per_step": self.step_bytes(dims),
            "stored_bytes": self.total_bytes(dims),
            "stored": [row(item) for item in self.stored],
            "sequences": [row(item) for item in self.sequences],
        }


def find_scan_pairs(
    model: onnx.ModelProto, known: Mapping[str, ValueType] | None = None
) -> tuple[ScanPair, ...]:
    """The pairs in the main graph and in bodies, in the order of forward Scans.

    A backward Scan says whose it is (``memplan grad`` writes that), or reads an output of an
    earlier one the other way round. ``known`` are types of the main graph's tensors, beside those
    that the file states.
    """
    types = {
        name: helper.make_tensor_type_proto(value.dtype, value.shape)
        for name, value in (known or {}).items()
        if value.shape is not None
    }
    return tuple(_pairs(model.graph, types))


def _pairs(graph: onnx.GraphProto, known: Mapping[str, onnx.TypeProto]) -> Iterator[ScanPair]:
    makers = {name: node for node in graph.node for name in node.output if name}
    stated = (*graph.value_info, *graph.input, *graph.output)
    types = {value.name: value.type for value in stated} | dict(known)
    backward: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for note in node.metadata_props:
            if note.key == FORWARD_KEY:
                backward.setdefault(note.value, []).append(node)
    scans = [node for node in graph.node if node.op_type == "Scan"]
    told = bool(backward)
    for place, node in enumerate(scans):
        for other in scans[place + 1 :]:
            if not told and _reads_reversed(other, node):
                backward.setdefault(node.name, []).append(other)
    for node in graph.node:
        made = backward.get(node.name, ())
        theirs = [other for other in made if other.op_type == "Scan"]
        if node.op_type == "Scan" and theirs:
            read = {name for other in made for name in other.input}
            yield _pair(node, theirs[-1], read, makers, types)
        for body in subgraphs(node):
            yield from _pairs(body, {})


def _reads_reversed(reader: onnx.NodeProto, node: onnx.NodeProto) -> bool:
    """Whether a Scan reads an output of another from the last step on."""
    first, states = len(reader.input) - _body(reader)[1], len(node.input) - _body(node)[1]
    written = {
        (name, _number(node, "scan_output_directions", slot))
        for slot, name in enumerate(node.output[states:])
        if name
    }
    return any(
        (name, 1 - _number(reader, "scan_input_directions", slot)) in written
        for slot, name in enumerate(reader.input[first:])
    )


def _pair(
    forward: onnx.NodeProto,
    backward: onnx.NodeProto,
    read: set[str],
    makers: Mapping[str, onnx.NodeProto],
    types: Mapping[str, onnx.TypeProto],
) -> ScanPair:
    body, scanned = _body(forward)
    states = len(forward.input) - scanned
    origins = {origin for name in read for origin in _origins(name, makers)}
    stored = tuple(
        _stored(name, inner.name, types, _number(forward, "scan_output_axes", slot))
        for slot, (name, inner) in enumerate(
            zip(forward.output[states:], body.output[states:], strict=False)
        )
        if name in origins
    )
    sequences = tuple(
        _stored(name, inner.name, types, _number(forward, "scan_input_axes", slot))
        for slot, (name, inner) in enumerate(
            zip(forward.input[states:], body.input[states:], strict=True)
        )
        if name in read
    )
    steps: int | str = ""
    for slot, name in enumerate(forward.input[states:]):
        shape = _shape(types.get(name))
        if shape is not None and steps == "":
            steps = shape[_number(forward, "scan_input_axes", slot)]
    return ScanPair(forward.name, backward.name, steps, stored, sequences)


def _body(node: onnx.NodeProto) -> tuple[onnx.GraphProto, int]:
    """The body, and how many inputs are scanned."""
    given = {item.name: item for item in node.attribute}
    if "body" not in given or "num_scan_inputs" not in given:
        raise ModelError(f"Scan '{node.name}' lacks its body or num_scan_inputs")
    return given["body"].g, int(given["num_scan_inputs"].i)


def _origins(name: str, makers: Mapping[str, onnx.NodeProto]) -> Iterator[str]:
    """``name`` and what it is a shifted or reshaped copy of."""
    yield name
    node = makers.get(name)
    if node is not None and node.op_type in _BETWEEN:
        for source in node.input:
            yield from _origins(source, makers)


def _number(node: onnx.NodeProto, attribute: str, slot: int) -> int:
    for item in node.attribute:
        if item.name == attribute and slot < len(item.ints):
            return int(item.ints[slot])
    return 0


def _shape(found: onnx.TypeProto | None) -> tuple[int | str, ...] | None:
    if found is None or not found.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param
        for dim in found.tensor_type.shape.dim
    )


def _stored(name: str, inner: str, types: Mapping[str, onnx.TypeProto], axis: int) -> Stored:
    found = types.get(name)
    shape = list(_shape(found) or ("",))
    del shape[axis]
    kind = helper.tensor_dtype_to_np_dtype(found.tensor_type.elem_type) if found else None
    return Stored(name, inner, tuple(shape), float(kind.itemsize) if kind is not None else 0.0)
