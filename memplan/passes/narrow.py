"""``narrow``: whole numbers that are kept for long, in the least type that holds them.

Indices are int64 by definition, and what the backward pass keeps of them is a number below the size
of an image, or, counted from its window, below that of a few rows. A cast to the least type that
holds what a tensor can hold, and one back before it is read, keep every bit (Gist, Jain et al.,
ISCA 2018, section 4, encodes pool indices so). What may be taken off a number before the cast, and
added again behind the one back, is what its window begins at.

The law: a cast back from a type that held every number gives it back
(:func:`memplan.equivalence.range_proof.narrowed_and_back`), and so does adding what was taken off
(``added_again``), for the bounds of :mod:`memplan.ops.whole_numbers`.

A pass and no form of the planner's: as one, it made plans dearer (ResNet-50 at 50%: 5.8% instead of
5.6%), since what stands in front of its casts takes memory in every sequence that a search looks
at. The casts take time. They are made where the peak falls by a larger share than the step's
estimated seconds grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import onnx

from memplan.ir.graph import ABSENT, Node, Tensor, TensorKind
from memplan.ir.graph_facts import Array, Facts
from memplan.ops.cost import device_for, node_costs
from memplan.ops.pool_indices import is_unit_pool, plane_begins, takes_first, window_places
from memplan.ops.whole_numbers import Applied as AppliedNode
from memplan.ops.whole_numbers import (
    Bounds,
    made_bounds,
    type_bounds,
    within,
    within_type,
)
from memplan.passes.change import Change, facts_of, with_most
from memplan.passes.graph_pass import Applied, peak_fell
from memplan.passes.surgery import ModelEdit
from memplan.proto.edit import rename_reads
from memplan.proto.elements import ELEMENT_BITS
from memplan.shapes.tensor_type import TensorType
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline
from memplan.units import counted

_T = onnx.TensorProto
_WIDE = (_T.INT64, _T.INT32)
# CUDA casts to and from all of them; operators on the narrow ones it has next to none.
_NARROW = (_T.UINT8, _T.INT16, _T.INT32)
_ROUNDS = 3  # the peak moves when something is narrowed
_SMALLEST_BYTES = 4096  # below that there is nothing to save
_DEEPEST = 24


@dataclass(frozen=True, slots=True)
class Narrow:
    """``any_price``: also where the casts are estimated to cost more than they save."""

    name: ClassVar[str] = "narrow"
    summary: ClassVar[str] = "indices in the smallest type that holds them"
    any_price: bool = False

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with what is kept of integers narrowed, where the peak falls by it."""
        done = 0
        for _ in range(_ROUNDS):
            worth = peak_fell if self.any_price else is_worth_it
            found = with_most(model, timeline, _changes(model, timeline), worth)
            if found is None:
                break
            model, timeline, count = found
            done += count
        return Applied(model, f"{counted(done, 'tensor')} of integers" if done else "")


def is_worth_it(after: Timeline, before: Timeline) -> bool:
    """Whether the peak fell by a larger share than the seconds grew (both estimated)."""
    if not peak_fell(after, before):
        return False
    saved = 1 - after.peak_with_workspace_bytes / before.peak_with_workspace_bytes
    return _seconds(after) / max(_seconds(before), 1e-12) - 1 <= saved


def _seconds(timeline: Timeline) -> float:
    provider = timeline.session.provider
    return sum(node_costs(timeline.graph, device_for(provider), provider))


def _changes(model: OpenModel, timeline: Timeline) -> list[Change]:
    """What may be narrowed of what is there at the peak; no node is in two of the changes."""
    facts = facts_of(model)
    if not facts.exact:
        return []
    ranges, graph = Ranges(facts), facts.graph
    peak = int((timeline.dynamic + timeline.workspace).argmax())
    step_of, taken = timeline.allocation.step_of, set[int]()
    kept = graph.checkpoints | {t for node in graph.nodes for t in node.captured}
    changes: list[Change] = []
    for buffer in timeline.live_at(peak):
        tensor = graph.tensors[buffer.root]
        if tensor.id in kept or not _may_be_narrowed(tensor):
            continue
        late = sorted({n for n in tensor.readers if step_of[n] > peak}, key=lambda n: step_of[n])
        if not late or any(step_of[n] == peak for n in tensor.readers):
            continue
        window = window_of(facts, tensor) if timeline.session.provider == "cpu" else None
        bounds = (0, window.reach) if window is not None else ranges.of(tensor.id)
        dtype, touched = _least(tensor.dtype, bounds), {tensor.producer, *late}
        if dtype is None or touched & taken:
            continue
        taken |= touched
        changes.append(partial(_narrow, tensor, dtype, window, late))
    return changes


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


def _narrow(
    tensor: Tensor, dtype: int, window: Window | None, late: Sequence[int], edit: ModelEdit
) -> None:
    """``tensor`` in a narrower type from its maker to the first of ``late``; the parts of
    ``window`` are taken off before and put on again behind."""
    wide = TensorType(tensor.dtype, tensor.shape)
    parts = window.parts if window is not None else ()
    writer = _Writer(edit, f"{tensor.name}/narrow", tensor.dtype)
    narrow = tensor.name
    for part in parts:
        narrow = writer.add("Sub", [narrow, writer.sum(part)], wide)
    narrow = writer.add("Cast", [narrow], TensorType(dtype, tensor.shape), to=dtype)
    edit.put_behind(tensor.producer, *writer.taken())
    back = writer.add("Cast", [narrow], wide, to=tensor.dtype)
    for part in reversed(parts):
        back = writer.add("Add", [back, writer.sum(part)], wide)
    edit.put_before(late[0], *writer.taken())
    for node in late:
        rename_reads(edit.node(node), {tensor.name: back})


class _Writer:
    """Writes nodes one after the other, each with one output."""

    def __init__(self, edit: ModelEdit, stem: str, dtype: int) -> None:
        self.edit, self.stem = edit, stem
        self.dtype = onnx.helper.tensor_dtype_to_np_dtype(dtype)
        self.nodes: list[onnx.NodeProto] = []

    def taken(self) -> list[onnx.NodeProto]:
        """The nodes that were written since."""
        nodes, self.nodes = self.nodes, []
        return nodes

    def add(self, op: str, reads: Sequence[str], made: TensorType, **attributes: Any) -> str:
        name = self.edit.fresh(f"{self.stem}/{op}")
        self.nodes.append(onnx.helper.make_node(op, list(reads), [name], name=name, **attributes))
        self.edit.types[name] = made
        return name

    def sum(self, parts: tuple[Array, ...]) -> str:
        """The sum of constants: the proof looks into small ones only."""
        first, *others = parts
        total, shape = self._constant(first), first.shape
        for part in others:
            shape = np.broadcast_shapes(shape, part.shape)
            made = TensorType(onnx.helper.np_dtype_to_tensor_dtype(self.dtype), shape)
            total = self.add("Add", [total, self._constant(part)], made)
        return total

    def _constant(self, value: Array) -> str:
        return self.edit.constant(value.astype(self.dtype), f"{self.stem}/constant")


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
        made = AppliedNode(
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
