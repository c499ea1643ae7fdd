"""Inputs that a real training graph survives: legal indices, small floats, positive variances.

What one draw cannot tell apart, another can: a learning rate that is ignored shows unless it is 1,
a Clip unless all values are small, a branch only where it is taken. So draws differ in kind, not
only in their random numbers (:func:`synthesize`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from memplan.errors import UsageError
from memplan.ir.graph import Graph, Phase, Tensor, TensorKind
from memplan.proto.metadata import PHASE_KEY
from memplan.runtime.archive import BFLOAT16, Header, load_arrays, readable
from memplan.runtime.room import require_room

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
_SCALAR = 0.37
_RARE, _FAR = 16, np.float32(8)
_SHOWN = 5


def synthesize(
    graph: Graph, seed: int = 0, draw: int = 0, also: Collection[str] = ()
) -> dict[str, Array]:
    """Values for every graph input without a default, the same for the same seed and draw; and for
    those named in ``also``. In further draws also for scalars with a default that only an update
    reads (a learning rate).

    Integer inputs that index something (traced to Gather*, Scatter*, OneHot) are drawn below the
    size of what they index; other integers are 0 or 1.

    - Draw 0: floats are small, and positive where they reach a square root or a logarithm; scalars
      are 1.
    - Further draws: float scalars are 0.37 / draw, integer ones 2 draw + 1, boolean ones the
      opposite of the draw before. Floats are of scale 1, one in 16 of them 8 times that, so that
      what saturates does; but matrices and filters that something is multiplied by are of scale
      1 / sqrt(fan-in), with which layers neither vanish nor explode (He et al., "Delving deep into
      rectifiers", 2015, section 2.2, without its factor for rectifiers).

    Raises:
        UsageError: an input's type has no numpy equivalent (give ``--inputs``).
        RuntimeUnavailableError: the inputs do not fit into memory.
    """
    generator = np.random.default_rng(seed if not draw else [seed, draw])
    feeds: dict[str, Array] = {}
    given = [graph.tensors[index] for index in graph.inputs]
    require_room(sum(tensor.nbytes for tensor in given if tensor.counted), "the model's inputs")
    for tensor in given:
        if tensor.kind is not TensorKind.INPUT and not (
            tensor.name in also or (draw and _is_setting(graph, tensor))
        ):
            continue
        if tensor.dtype == onnx.TensorProto.BOOL and not tensor.shape:
            flipped = bool(zlib.crc32(f"{seed} {tensor.name}".encode()) & 1) ^ bool(draw % 2)
            feeds[tensor.name] = np.asarray(flipped)
        else:
            feeds[tensor.name] = _value(graph, tensor, generator, draw)
    return feeds


def load_inputs(path: Path, graph: Graph) -> dict[str, Array]:
    """Inputs from an ``.npz`` file: one array per graph input, those with a default if wanted.

    Nothing is read but what the model has, and of that only what fits: a file of some kB can hold
    GB of zeros.

    Raises:
        UsageError: unreadable file, an array that is not a graph input, or an input is missing or
            has another shape or type.
    """
    inputs = {graph.tensors[index].name: graph.tensors[index] for index in graph.inputs}
    with readable(path, ".npz", "one array per graph input, as numpy.savez writes it"):
        return load_arrays(path, lambda headers: _chosen(headers, inputs, path))


def _chosen(
    headers: Mapping[str, Header], inputs: Mapping[str, Tensor], path: Path
) -> Iterable[str]:
    for name, tensor in inputs.items():
        if name not in headers and tensor.kind is TensorKind.INPUT:
            raise UsageError(f"{path} has no array '{name}'", "one array per graph input")
    unknown = sorted(headers.keys() - inputs.keys())
    if unknown:
        near = get_close_matches(unknown[0], inputs, 3)
        raise UsageError(
            f"{path} has an array '{unknown[0]}', which is not a graph input"
            + (f", and {len(unknown) - 1} more such" if len(unknown) > 1 else ""),
            f"near matches: {', '.join(near)}" if near else f"inputs: {_some(inputs)}",
        )
    for name, header in headers.items():
        _require_fitting(inputs[name], header, path)
    return [name for name in inputs if name in headers]


def _require_fitting(tensor: Tensor, header: Header, path: Path) -> None:
    """Refuse an array by its header."""
    wanted = onnx.helper.tensor_dtype_to_np_dtype(tensor.dtype)
    if (header.shape, header.dtype) != (tensor.shape, wanted):
        raise UsageError(
            f"{path}: '{tensor.name}' is {header.words}, "
            f"the model wants {wanted}{list(tensor.shape)}"
        )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_SHOWN]) + (", ..." if len(listed) > _SHOWN else "")


def _value(graph: Graph, tensor: Tensor, generator: np.random.Generator, draw: int) -> Array:
    if not tensor.counted:
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
            return np.asarray(2 * draw + 1, dtype=dtype)  # a step or batch counter
        return generator.integers(0, limit or _NO_LIMIT, tensor.shape).astype(dtype)
    if (dtype.kind != "f" or dtype.itemsize < 2) and dtype != BFLOAT16:  # 8 bits: no npz has them
        raise UsageError(f"input '{tensor.name}' ({dtype}) cannot be generated", "give --inputs")
    return _float(graph, tensor, generator, draw).astype(dtype)


def _float(graph: Graph, tensor: Tensor, generator: np.random.Generator, draw: int) -> Array:
    """float32 values."""
    if not tensor.shape:
        return np.asarray(_SCALAR / draw if draw else 1, dtype=np.float32)
    value = generator.standard_normal(tensor.shape, dtype=np.float32)
    positive = _must_be_positive(graph, tensor.id)
    fan_in = _fan_in(graph, tensor)
    if not draw:
        value *= np.float32(0.05)
    elif fan_in and not positive:
        value /= np.float32(math.sqrt(fan_in))
    else:
        value *= np.where(generator.integers(0, _RARE, tensor.shape) == 0, _FAR, np.float32(1))
    return np.abs(value) + np.float32(0.5) if positive else value


def _fan_in(graph: Graph, tensor: Tensor) -> int:
    """How many products an output element sums where ``tensor`` is a matrix or filter; else 0."""
    for reader in tensor.readers:
        node = graph.nodes[reader]
        if node.inputs[1:2] != (tensor.id,):
            continue
        if node.op == "MatMul":
            return tensor.shape[-2] if len(tensor.shape) > 1 else tensor.shape[0]
        if node.op == "Gemm" and len(tensor.shape) == 2:
            return tensor.shape[1 if node.attributes.get("transB") else 0]
        if node.op == "Conv":
            return math.prod(tensor.shape[1:])
    return 0


def _is_setting(graph: Graph, tensor: Tensor) -> bool:
    """Whether an input sets how parameters are updated, as the nodes say that read it."""
    told = {graph.metadata[reader].get(PHASE_KEY) for reader in tensor.readers}
    return not tensor.shape and told == {Phase.UPDATE}


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
    """Dimensions that slot ``slot`` of the operator indexes; none where it has no such axis, which
    the runtime then says."""
    axis = attributes.get("axis", 0)
    assert isinstance(axis, int)
    if slot == 1 and op in ("Gather", "GatherElements", "ScatterElements", "Scatter"):
        return _size(shapes[0], axis)
    if slot == 1 and op in ("GatherND", "ScatterND"):
        batch = attributes.get("batch_dims", 0)
        assert isinstance(batch, int)
        depth = shapes[1][-1] if shapes[1] else 0
        return list(shapes[0][batch : batch + depth])
    if slot == 0 and op == "OneHot":
        shape = graph.tensors[graph.nodes[reader].outputs[0]].shape
        axis = attributes.get("axis", -1)
        assert isinstance(axis, int)
        return _size(shape, axis)
    if slot == 1 and op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        return _size(shapes[0], 1)
    return []


def _size(shape: tuple[int, ...], axis: int) -> list[int]:
    return [shape[axis]] if -len(shape) <= axis < len(shape) else []


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
