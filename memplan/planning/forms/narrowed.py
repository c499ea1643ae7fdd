"""Whole numbers kept in the least type that holds them: a form that the planner may choose.

Indices are int64 by definition, and what the backward pass keeps of them is a number below the size
of an image, or, counted from its window, below that of a few rows. A cast to the least type that
holds what a tensor can hold, and one back before it is read, keep every bit (Gist, Jain et al.,
ISCA 2018, section 4, encodes pool indices so). What may be taken off a number before the cast, and
added again behind the one back, is what its window begins at.

The law: a cast back from a type that held every number gives it back
(:func:`memplan.equivalence.range_proof.narrowed_and_back`), and so does adding what was taken off
(``added_again``), for the bounds of :mod:`memplan.ops.whole_numbers`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx

from memplan.ir.graph import ABSENT, Node, Tensor, TensorKind
from memplan.ir.graph_facts import Array, Facts
from memplan.ops.pool_indices import is_unit_pool, plane_begins, takes_first, window_places
from memplan.ops.whole_numbers import (
    Applied,
    Bounds,
    made_bounds,
    type_bounds,
    within,
    within_type,
)
from memplan.planning.forms.dormant import Dormant, Writer
from memplan.proto.elements import ELEMENT_BITS
from memplan.shapes.tensor_type import TensorType
from memplan.solver.problem import Form

NARROWED = "narrowed"
"""The kind of these forms."""

_T = onnx.TensorProto
_WIDE = (_T.INT64, _T.INT32)
# CUDA casts to and from all of them; operators on the narrow ones it has next to none.
_NARROW = (_T.UINT8, _T.INT16, _T.INT32)
_SMALLEST_BYTES = 4096  # below that there is nothing to save
_DEEPEST = 24


def add_narrowed(builder: Dormant, facts: Facts) -> None:
    """Let all whole numbers be kept narrower whose bounds allow it; shapes hold in every run."""
    ranges, graph = Ranges(facts), facts.graph
    captured = {t for node in graph.nodes for t in node.captured}
    for tensor in graph.tensors:
        if tensor.id in captured | graph.checkpoints or not _may_be_narrowed(tensor):
            continue
        window = window_of(facts, tensor) if builder.provider == "cpu" else None
        bounds = (0, window.reach) if window is not None else ranges.of(tensor.id)
        dtype = _least(tensor.dtype, bounds)
        if dtype is not None:
            _add(Writer(builder, f"{tensor.name}/narrow"), tensor, dtype, window)


def _may_be_narrowed(tensor: Tensor) -> bool:
    made_here = tensor.kind is TensorKind.COMPUTED and not tensor.is_output and tensor.counted
    wide = tensor.dtype in _WIDE and tensor.nbytes >= _SMALLEST_BYTES
    return made_here and wide and tensor.static and bool(tensor.readers)


def _least(dtype: int, bounds: Bounds | None) -> int | None:
    """The narrowest type for numbers within bounds, if it is narrower than ``dtype``."""
    for narrow in _NARROW if bounds is not None else ():
        room = type_bounds(narrow)
        if bounds is not None and room is not None and within(bounds, room):
            return narrow if ELEMENT_BITS[narrow] < ELEMENT_BITS[dtype] else None
    return None


def _add(writer: Writer, tensor: Tensor, dtype: int, window: Window | None) -> None:
    """The nodes that take off what the window begins at and cast, and those that give back."""
    builder, first = writer.builder, len(writer.builder.nodes)
    wide = TensorType(tensor.dtype, tensor.shape)
    parts = window.parts if window is not None else ()
    kept = tensor.id
    for part in parts:
        kept = writer.add("Sub", (kept, _sum(writer, part, tensor.dtype)), wide)
    kept = writer.add("Cast", (kept,), TensorType(dtype, tensor.shape), to=dtype)
    encode = tuple(range(first, len(builder.nodes)))
    if parts:
        kept = writer.add("Cast", (kept,), wide, to=tensor.dtype)
        for part in parts[:0:-1]:
            kept = writer.add("Add", (kept, _sum(writer, part, tensor.dtype)), wide)
        total = _sum(writer, parts[0], tensor.dtype)
        decode = writer.make("Add", (kept, total), tensor.id)
    else:
        decode = writer.make("Cast", (kept,), tensor.id, to=tensor.dtype)
    builder.forms.append(Form(NARROWED, tensor.id, encode, decode))


def _sum(writer: Writer, parts: tuple[Array, ...], dtype: int) -> int:
    """The sum of constants: the proof looks into small ones only."""
    kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    first, *others = (part.astype(kind) for part in parts)
    total, reached = writer.constant(first), first
    for part in others:
        reached = reached + part
        total = writer.add("Add", (total, writer.constant(part)), TensorType(dtype, reached.shape))
    return total


@dataclass(slots=True)
class Ranges:
    """Bounds of the tensors of a graph whose shapes hold in every run."""

    facts: Facts
    _known: dict[int, Bounds | None] = field(default_factory=dict)

    def of(self, tensor: int, depth: int = 0) -> Bounds | None:
        """The least and the largest number that a tensor may hold, or None."""
        if tensor == ABSENT or depth > _DEEPEST:
            return None
        if tensor not in self._known:
            dtype = self.facts.graph.tensors[tensor].dtype
            self._known[tensor] = within_type(self._found(tensor, depth), dtype)
        return self._known[tensor]

    def _found(self, tensor: int, depth: int) -> Bounds | None:
        value, node = self.facts.content(tensor), self.facts.maker(tensor)
        if value is not None:
            whole = value.size and value.dtype.kind in "biu"
            return (int(value.min()), int(value.max())) if whole else None
        if node is None or node.domain:
            return None
        shape = self.facts.graph.tensors[node.inputs[0]].shape if node.inputs else None
        made = Applied(
            node.op,
            node.attributes,
            len(node.inputs),
            shape,
            lambda slot: self.of(node.inputs[slot], depth + 1),
        )
        return made_bounds(made, node.outputs.index(tensor))


@dataclass(frozen=True, slots=True)
class Window:
    """What an index of a pool is when it is counted from its window's first place.

    ``parts`` are to be taken from it one after the other, each a sum of constants; what is left is
    from 0 to ``reach``. That holds on the CPU, whatever the elements are.
    """

    parts: tuple[tuple[Array, ...], ...]
    reach: int


def window_of(facts: Facts, tensor: Tensor) -> Window | None:
    """For the indices of a pool of images (also as int32, also less where their plane begins)."""
    graph, node = facts.graph, facts.maker(tensor.id)
    source, within_plane = tensor.id, node is not None and node.key == ":Sub"
    if node is not None and node.key in (":Sub", ":Cast"):
        source = node.inputs[0]
    pool = facts.maker(source)
    if pool is None or pool.key != ":MaxPool" or pool.outputs[1:] != (source,):
        return None
    if node is not None and within_plane and not _begins_planes(facts, node.inputs[1], pool):
        return None
    shape = graph.tensors[pool.inputs[0]].shape
    found = window_places(shape, pool.attributes)
    if found is None:
        return None
    rows, columns, reach = found
    begins = plane_begins(shape[0], shape[1], shape[2] * shape[3])
    planes = begins if shape[1] > 1 else begins[:1]
    return Window(((rows, columns),) if within_plane else (planes, (rows, columns)), reach)


def _begins_planes(facts: Facts, tensor: int, of: Node) -> bool:
    """Whether a tensor is the index of the first element of each plane that a pool looks through:
    of a pool of one element, or of one of the first rows and what the others hold (``release``)."""
    added: list[Array] = []
    node = facts.maker(tensor)
    while node is not None and node.key == ":Add":
        value = facts.value(node, 1)
        if value is None:
            return False
        added.append(value)
        node = facts.maker(node.inputs[0])
    if node is None or not takes_first(facts, node):
        return False
    pool, source = facts.maker(node.inputs[0]), of.inputs[0]
    if pool is None or pool.key != ":MaxPool" or not is_unit_pool(pool.attributes):
        return False
    if not added:
        return pool.inputs[0] == source
    row = facts.maker(pool.inputs[0])
    if row is None or row.key != ":Slice" or row.inputs[0] != source:
        return False
    cut = [facts.value(row, slot) for slot in (1, 2, 3)]
    if any(value is None for value in cut) or not facts.absent(row, 4):
        return False
    if [value.tolist() for value in cut if value is not None] != [[0], [1], [2]]:
        return False
    batch, channels, rows, columns = facts.graph.tensors[source].shape
    by_batch, by_channel = plane_begins(batch, channels, (rows - 1) * columns)
    skipped, total = by_batch + by_channel, sum(added, np.zeros((1, 1, 1, 1), np.int64))
    return total.shape == skipped.shape and bool((total == skipped).all())
