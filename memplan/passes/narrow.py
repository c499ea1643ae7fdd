"""``narrow``: whole numbers that are kept for long, in the least type that holds them.

Indices are int64 by definition, and what the backward pass keeps of them is a number below the size
of an image, or, counted from its window, below that of a few rows. A cast to the least type that
holds what a tensor can hold, and one back before it is read, keep every bit (Gist, Jain et al.,
ISCA 2018, section 4, encodes pool indices so). What is a widened form of something smaller is kept
as that (:mod:`memplan.passes.copies`).

The casts take time. They are made where the peak falls by a larger share than the step's
estimated seconds grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import helper

from memplan.ir.graph import Tensor, TensorKind
from memplan.ops.cost import device_for, node_costs
from memplan.passes.change import Array, Change, facts_of, name_authority, with_most
from memplan.passes.copies import is_widened, made_again
from memplan.passes.graph_pass import Applied, peak_fell
from memplan.passes.pools import Window, window_of
from memplan.passes.ranges import TYPES, Bounds, Ranges
from memplan.passes.surgery import node_protos
from memplan.proto.edit import copied, rename_reads
from memplan.proto.elements import ELEMENT_BITS
from memplan.proto.names import NameAuthority
from memplan.shapes.tensor_type import TensorType
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline
from memplan.units import counted

_T = onnx.TensorProto
_WIDE = (_T.INT64, _T.INT32)
# CUDA casts to and from all of them; operators on the narrow ones it has next to none.
_NARROW = (_T.UINT8, _T.INT16, _T.INT32)
_ROUNDS = 3  # the peak moves when something is narrowed
_SMALLEST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Narrow:
    """``any_price``: also where the casts are estimated to cost more than they save."""

    name: ClassVar[str] = "narrow"
    summary: ClassVar[str] = "indices in the least type that holds them, casts as what they are of"
    any_price: bool = False

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with what is kept of whole numbers narrowed, where the peak falls by it."""
        done = again = 0
        for _ in range(_ROUNDS):
            worth = peak_fell if self.any_price else is_worth_it
            found = with_most(model, timeline, _changes(model, timeline), worth)
            if found is None:
                break
            model, timeline, count = found
            done += count
        for _ in range(_ROUNDS):
            worth = peak_fell if self.any_price else is_worth_it
            found = with_most(model, timeline, _widened(model, timeline), worth)
            if found is None:
                break
            model, timeline, count = found
            again += count
        notes = [f"{counted(done, 'tensor')} of whole numbers"] if done else []
        notes += [f"{counted(again, 'cast or broadcast', 'casts or broadcasts')} made again"] * (
            again > 0
        )
        return Applied(model, ", ".join(notes))


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
    """What may be narrowed of what is there at the peak."""
    facts, names = facts_of(model), name_authority(model)
    if not facts.exact:
        return []
    ranges, protos = Ranges(facts), node_protos(model.prepared.proto)
    peak = int((timeline.dynamic + timeline.workspace).argmax())
    step_of, taken = timeline.allocation.step_of, set[str]()
    captured = {t for node in facts.graph.nodes for t in node.captured}
    changes = []
    for buffer in timeline.live_at(peak):
        tensor = facts.graph.tensors[buffer.root]
        if not _may_be_narrowed(tensor, captured, facts.graph.checkpoints):
            continue
        late = sorted({n for n in tensor.readers if step_of[n] > peak}, key=lambda n: step_of[n])
        if not late or any(step_of[n] == peak for n in tensor.readers):
            continue
        window = window_of(facts, tensor) if timeline.session.provider == "cpu" else None
        bounds = (0, window.reach) if window is not None else ranges.of(tensor.id)
        kind = _least(tensor.dtype, bounds)
        touched = {protos[tensor.producer].name, *(protos[n].name for n in late)}
        if kind is None or touched & taken:
            continue
        taken |= touched
        readers = [protos[n] for n in late]
        changes.append(_narrowed(tensor, kind, window, protos[tensor.producer], readers, names))
    return changes


def _widened(model: OpenModel, timeline: Timeline) -> list[Change]:
    """What is there at the peak and may be made again of something smaller."""
    graph, names = model.graph, name_authority(model)
    if not facts_of(model).exact:
        return []
    protos = node_protos(model.prepared.proto)
    peak = int((timeline.dynamic + timeline.workspace).argmax())
    step_of, taken = timeline.allocation.step_of, set[str]()
    captured = {t for node in graph.nodes for t in node.captured}
    changes = []
    for buffer in timeline.live_at(peak):
        tensor = graph.tensors[buffer.root]
        if tensor.id in captured or tensor.id in graph.checkpoints or not is_widened(graph, tensor):
            continue
        late = sorted({n for n in tensor.readers if step_of[n] > peak}, key=lambda n: step_of[n])
        touched = {protos[n].name for n in late}
        if not late or any(step_of[n] == peak for n in tensor.readers) or touched & taken:
            continue
        taken |= touched
        readers = [protos[n] for n in late]
        changes.append(made_again(tensor, protos[tensor.producer], readers, names))
    return changes


def _may_be_narrowed(tensor: Tensor, captured: set[int], marked: frozenset[int]) -> bool:
    made_here = tensor.kind is TensorKind.COMPUTED and not tensor.is_output and tensor.counted
    wide = tensor.dtype in _WIDE and tensor.nbytes >= _SMALLEST_BYTES
    return made_here and wide and tensor.id not in captured and tensor.id not in marked


def _least(dtype: int, bounds: Bounds | None) -> int | None:
    """The narrowest type for numbers within bounds, if it is narrower than ``dtype``."""
    if bounds is None:
        return None
    for kind in _NARROW:
        low, high = TYPES[kind]
        if low <= bounds[0] and bounds[1] <= high:
            return kind if ELEMENT_BITS[kind] < ELEMENT_BITS[dtype] else None
    return None


class _Writer:
    """Writes nodes one after the other, each with one output."""

    def __init__(self, stem: str, names: NameAuthority) -> None:
        self.stem, self.names = stem, names
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.types: dict[str, TensorType] = {}

    def constant(self, value: Array) -> str:
        name = self.names.fresh(f"{self.stem}/constant")
        self.constants[name] = value
        return name

    def add(self, op: str, reads: Sequence[str], kind: TensorType) -> str:
        name = self.names.fresh(f"{self.stem}/{op}")
        attributes: dict[str, Any] = {"to": kind.dtype} if op == "Cast" else {}
        self.nodes.append(helper.make_node(op, list(reads), [name], name=name, **attributes))
        self.types[name] = kind
        return name

    def sum(self, parts: Sequence[Array]) -> str:
        """The sum of constants."""
        total, shape = self.constant(parts[0]), parts[0].shape
        for part in parts[1:]:
            shape = np.broadcast_shapes(shape, part.shape)
            dtype = helper.np_dtype_to_tensor_dtype(part.dtype)
            total = self.add("Add", [total, self.constant(part)], TensorType(dtype, shape))
        return total


def _narrowed(
    tensor: Tensor,
    kind: int,
    window: Window | None,
    maker: onnx.NodeProto,
    readers: Sequence[onnx.NodeProto],
    names: NameAuthority,
) -> Change:
    """``tensor`` in a narrower type from its maker to the first of ``readers``; the parts of
    ``window`` are taken off before and put on again behind."""
    wide = TensorType(tensor.dtype, tensor.shape)
    writer = _Writer(f"{tensor.name}/narrow", names)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.dtype)
    parts = [[a.astype(dtype) for a in part] for part in (window.parts if window else ())]
    kept = tensor.name
    for part in parts:
        kept = writer.add("Sub", [kept, writer.sum(part)], wide)
    kept = writer.add("Cast", [kept], TensorType(kind, tensor.shape))
    before, writer.nodes = writer.nodes, []
    back = writer.add("Cast", [kept], wide)
    for part in reversed(parts):
        back = writer.add("Add", [back, writer.sum(part)], wide)
    nodes: dict[str, tuple[onnx.NodeProto, ...]] = {maker.name: (copied(maker), *before)}
    for place, reader in enumerate(readers):
        again = copied(reader)
        rename_reads(again, {tensor.name: back})
        nodes[reader.name] = (*writer.nodes, again) if not place else (again,)
    return Change(nodes, writer.constants, writer.types)
