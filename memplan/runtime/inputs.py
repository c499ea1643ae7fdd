"""Inputs that a real training graph survives: legal indices, small floats, positive variances."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from memplan.errors import UsageError
from memplan.ir.graph import Graph, Tensor, TensorKind

Array = npt.NDArray[np.generic]

# Operators that hand an index on unchanged, or nearly so.
_INDEX_THROUGH = frozenset(
    {"Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Expand", "Identity", "Cast"}
    | {"Where", "Slice", "Concat", "Split", "Clip", "Max", "Min", "Add", "Sub", "Tile", "Gather"}
)
# Operators through which a value that must not be negative is still the same quantity.
_POSITIVE_THROUGH = frozenset(
    {"Reshape", "Unsqueeze", "Squeeze", "Cast", "Mul", "Add", "Div", "Identity", "Expand"}
)
_NEEDS_POSITIVE = frozenset({"Sqrt", "Log", "Reciprocal"})
_NO_LIMIT = 2


def synthesize(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Values for every graph input, the same for the same seed.

    Integer inputs that index something (traced to Gather*, Scatter*, OneHot) are drawn below the
    size of what they index; other integers are 0 or 1; floats are small, and positive where they
    reach a square root or a logarithm.

    Raises:
        UsageError: an input's type has no numpy equivalent (give ``--inputs``).
    """
    generator = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for index in graph.inputs:
        tensor = graph.tensors[index]
        if tensor.kind is TensorKind.INPUT:
            feeds[tensor.name] = _value(graph, tensor, generator)
    return feeds


def load_inputs(path: Path, graph: Graph) -> dict[str, Array]:
    """Inputs from an ``.npz`` file with one array per graph input.

    Raises:
        UsageError: unreadable file, or an input is missing or has another shape or type.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            given = dict(archive.items())
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} cannot be read as .npz: {error}") from None
    feeds = {}
    for index in graph.inputs:
        tensor = graph.tensors[index]
        if tensor.kind is not TensorKind.INPUT:
            continue
        if tensor.name not in given:
            raise UsageError(f"{path} has no array '{tensor.name}'", "one array per graph input")
        value = given[tensor.name]
        wanted = onnx.helper.tensor_dtype_to_np_dtype(tensor.dtype)
        if value.shape != tensor.shape or value.dtype != wanted:
            raise UsageError(
                f"{path}: '{tensor.name}' is {value.dtype}{list(value.shape)}, "
                f"the model wants {wanted}{list(tensor.shape)}"
            )
        feeds[tensor.name] = value
    return feeds


def _value(graph: Graph, tensor: Tensor, generator: np.random.Generator) -> Array:
    if not tensor.counted or tensor.dtype == onnx.TensorProto.BFLOAT16:
        raise UsageError(
            f"input '{tensor.name}' has a type that memplan cannot generate",
            "give values with --inputs FILE.npz",
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, tensor.shape).astype(bool)
    if dtype.kind in "iu":
        limit = _index_limit(graph, tensor.id)
        if limit is None and not tensor.shape:
            return np.asarray(1, dtype=dtype)  # a step or batch counter
        return generator.integers(0, limit or _NO_LIMIT, tensor.shape).astype(dtype)
    if dtype.kind != "f":
        raise UsageError(f"input '{tensor.name}' ({dtype}) cannot be generated", "give --inputs")
    if not tensor.shape:
        return np.asarray(1, dtype=dtype)
    value = generator.standard_normal(tensor.shape, dtype=np.float32) * np.float32(0.05)
    if _must_be_positive(graph, tensor.id):
        value = np.abs(value) + np.float32(0.5)
    return value.astype(dtype)


def _index_limit(graph: Graph, start: int) -> int | None:
    """The smallest dimension that values derived from ``start`` index, or None."""
    limits: list[int] = []
    stack, seen = [start], {start}
    while stack:
        tensor = stack.pop()
        for reader in set(graph.tensors[tensor].readers):
            node = graph.nodes[reader]
            shapes = [graph.tensors[t].shape if t >= 0 else () for t in node.inputs]
            for slot, source in enumerate(node.inputs):
                if source == tensor:
                    limits.extend(_indexed(node.op, slot, shapes, node.attributes, graph, reader))
            if node.op in _INDEX_THROUGH:
                for output in node.writes:
                    if output not in seen:
                        seen.add(output)
                        stack.append(output)
    return min(limits) if limits else None


def _indexed(
    op: str,
    slot: int,
    shapes: list[tuple[int, ...]],
    attributes: Mapping[str, object],
    graph: Graph,
    reader: int,
) -> list[int]:
    """Dimensions that slot ``slot`` of the operator indexes."""
    axis = attributes.get("axis", 0)
    assert isinstance(axis, int)
    if slot == 1 and op in ("Gather", "GatherElements", "ScatterElements", "Scatter"):
        return [shapes[0][axis]] if shapes[0] else []
    if slot == 1 and op in ("GatherND", "ScatterND"):
        batch = attributes.get("batch_dims", 0)
        assert isinstance(batch, int)
        depth = shapes[1][-1] if shapes[1] else 0
        return list(shapes[0][batch : batch + depth])
    if slot == 0 and op == "OneHot":
        shape = graph.tensors[graph.nodes[reader].outputs[0]].shape
        axis = attributes.get("axis", -1)
        assert isinstance(axis, int)
        return [shape[axis]]
    if slot == 1 and op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        return [shapes[0][1]]
    return []


def _must_be_positive(graph: Graph, start: int, depth: int = 6) -> bool:
    """Whether a value derived from ``start`` by scaling reaches a root, logarithm or inverse."""
    frontier, seen = {start}, {start}
    for _ in range(depth):
        following: set[int] = set()
        for tensor in frontier:
            for reader in graph.tensors[tensor].readers:
                node = graph.nodes[reader]
                if node.op in _NEEDS_POSITIVE:
                    return True
                if node.op in _POSITIVE_THROUGH:
                    following.update(node.writes)
        frontier = following - seen
        seen |= frontier
    return False
