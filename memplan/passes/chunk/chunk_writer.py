"""A region in chunks, as nodes of a file.

Every block runs its chunks one after the other: slices of what it reads from outside, a copy of
each node, and sums that go on from those of the chunks before. What others read is joined at the
end of the block.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ops.book import PRODUCTS
from memplan.ops.facets import SUM, WHOLE, Use
from memplan.passes.chunk.part import Part
from memplan.passes.chunk.region import merged
from memplan.passes.surgery import ModelEdit
from memplan.proto.edit import copied
from memplan.proto.metadata import CHUNK_KEY
from memplan.shapes.tensor_type import TensorType
from memplan.simulate.opened import OpenModel

_GEMM_TYPES = frozenset(
    {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
    }
)


class Chunked:
    """Parts of a graph that share no node, as one region; ``count``: of the chunks of a node."""

    def __init__(self, graph: Graph, parts: Sequence[Part]) -> None:
        self.graph = graph
        self.region = merged([region for part in parts for region in part.regions])
        self.count = {
            n: part.count for part in parts for region in part.regions for n in region.uses
        }
        self.blocks: dict[int, list[int]] = {}
        for node, block in self.region.block.items():
            self.blocks.setdefault(block, []).append(node)

    def handed_on(self, tensor: int, reader: int) -> bool:
        """Whether a node reads a tensor in the pieces in which a region made it."""
        use, made = self.region.uses.get(reader), self.graph.tensors[tensor]
        if use is None or self.count.get(made.producer) != self.count[reader]:
            return False
        axis, node = self.region.axis[tensor], self.graph.nodes[reader]
        read = {use.reads[slot] for slot, each in enumerate(node.inputs) if each == tensor}
        return axis >= 0 and read == {axis}

    def joined(self, tensor: int) -> bool:
        """Whether anything reads the whole of what a region makes along an axis."""
        value = self.graph.tensors[tensor]
        return value.is_output or not all(self.handed_on(tensor, r) for r in value.readers)

    def order(self) -> list[int]:
        """Nodes outside, as ``-1 - block`` the blocks, and late additions: whatever can run and
        stands first in the file. Not all of them where blocks wait for each other."""
        before = self._dependencies()
        after: dict[int, list[int]] = {}
        for item, needs in before.items():
            for need in needs:
                after.setdefault(need, []).append(item)
        missing = {item: len(needs) for item, needs in before.items()}
        place = {item: item if item >= 0 else self.blocks[-1 - item][0] for item in before}
        ready = [(place[item], item) for item, needs in missing.items() if not needs]
        heapq.heapify(ready)
        found: list[int] = []
        while ready:
            _, item = heapq.heappop(ready)
            found.append(item)
            for reader in after.get(item, ()):
                missing[reader] -= 1
                if not missing[reader]:
                    heapq.heappush(ready, (place[reader], reader))
        return found if len(found) == len(before) else []

    def _dependencies(self) -> dict[int, set[int]]:
        """What must run before each item; a late addition is an item of its own."""
        block, late, tensors = self.region.block, self.region.late, self.graph.tensors
        before: dict[int, set[int]] = {}
        for node in self.graph.nodes:
            inside = node.id in block
            item = -1 - block[node.id] if inside else node.id
            needs = before.setdefault(item, set())
            for slot, tensor in enumerate((*node.inputs, *node.captured)):
                producer = tensors[tensor].producer if tensor != ABSENT else -1
                if producer < 0 or (inside and slot == self.region.uses[node.id].shape_slot):
                    continue
                source = -1 - block[producer] if producer in block else producer
                if producer in late:
                    source = producer
                if inside and node.id in late and slot == self.region.uses[node.id].addend:
                    before.setdefault(node.id, {item}).add(source)
                elif source != item:
                    needs.add(source)
        return before


def write_chunks(model: OpenModel, parts: Sequence[Part]) -> ModelEdit:
    """``model`` with ``parts``, which share no node, in chunks."""
    writer = _Writer(model, Chunked(model.graph, parts))
    writer.edit.write(list(writer.nodes()))
    return writer.edit


@dataclass(slots=True)
class _Chunk:
    """One chunk of ``count`` of a block while it is written: the names of its slices, by tensor
    and axis."""

    place: int
    count: int
    slices: dict[tuple[int, int], str] = field(default_factory=dict)


class _Writer:
    """Writes the nodes of a graph, those of a region in chunks."""

    def __init__(self, model: OpenModel, chunked: Chunked) -> None:
        self.graph, self.chunked, self.region = model.graph, chunked, chunked.region
        self.edit = ModelEdit(model)
        self.bounds: dict[tuple[int, ...], str] = {}
        self.pieces: dict[tuple[int, int], str] = {}
        self.sums: dict[int, str] = {}

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """All nodes: the others in their order, a block as soon as it can run."""
        for item in self.chunked.order():
            if item < 0:
                yield from self._block(self.chunked.blocks[-1 - item])
            elif item in self.region.late:
                yield self._late(item)
            else:
                yield self.edit.original(item)

    def _block(self, members: list[int]) -> Iterator[onnx.NodeProto]:
        count = self.chunked.count[members[0]]
        for place in range(count):
            chunk = _Chunk(place, count)
            for member in members:
                yield from self._part(self.graph.nodes[member], chunk)
        for member in members:
            yield from self._joined(self.graph.nodes[member], count)

    def _part(self, node: Node, chunk: _Chunk) -> Iterator[onnx.NodeProto]:
        """A node of the region in one chunk, behind the slices that it is the first to read."""
        use = self.region.uses[node.id]
        reads: list[str] = []
        for slot, (tensor, axis) in enumerate(zip(node.inputs, use.reads, strict=True)):
            if tensor == ABSENT:
                reads.append("")
            elif slot == use.shape_slot:
                made = node.outputs[0]
                reads.append(self._ints(list(self._shape(made, use.makes[0], chunk.count))))
            elif axis == WHOLE:
                reads.append(self.graph.tensors[tensor].name)
            elif self.chunked.handed_on(tensor, node.id):
                reads.append(self.pieces[tensor, chunk.place])
            else:
                if (tensor, axis) not in chunk.slices:
                    yield self._slice(tensor, axis, chunk, node)
                reads.append(chunk.slices[tensor, axis])
        part = copied(self.edit.original(node.id))
        part.name = self._node(f"{node.name}/chunk{chunk.place}", node)
        part.input[:] = reads
        for slot, tensor in enumerate(node.outputs):
            if tensor != ABSENT and use.makes[slot] != SUM:
                name = self._tensor(tensor, f"/chunk{chunk.place}", use.makes[slot], chunk.count)
                self.pieces[tensor, chunk.place] = part.output[slot] = name
        if all(axis == WHOLE for axis in use.reads):
            part.metadata_props.add(key=CHUNK_KEY, value=str(chunk.place))
        if use.sums:
            yield from self._summand(node, use, part, chunk)
        else:
            yield part

    def _slice(self, tensor: int, axis: int, chunk: _Chunk, reader: Node) -> onnx.NodeProto:
        value = self.graph.tensors[tensor]
        length = value.shape[axis] // chunk.count
        name = self._tensor(tensor, f"/chunk{chunk.place}", axis, chunk.count)
        chunk.slices[tensor, axis] = name
        bounds = [chunk.place * length, (chunk.place + 1) * length, axis]
        reads = [value.name, *(self._ints([bound]) for bound in bounds)]
        label = self._node(f"{value.name}/slice{chunk.place}", reader)
        cut = helper.make_node("Slice", reads, [name], name=label)
        cut.metadata_props.add(key=CHUNK_KEY, value=str(chunk.place))
        return cut

    def _summand(
        self, node: Node, use: Use, part: onnx.NodeProto, chunk: _Chunk
    ) -> Iterator[onnx.NodeProto]:
        """The part, added to the sum of those before; the last sum has the name of the whole."""
        made, place = node.outputs[0], chunk.place
        last, late = place == chunk.count - 1, node.id in self.region.late
        if place == 0:
            if late:
                del part.input[use.addend :]
            total = self._tensor(made, "/sum0")
            part.output[0] = self.sums[made] = total
            yield part
            return
        whole = last and not late
        total = self.graph.tensors[made].name if whole else self._tensor(made, f"/sum{place}")
        before, self.sums[made] = self.sums[made], total
        product = self._accumulated(node, part, before)
        if product is not None:
            product.output[0] = total
            yield product
            return
        if use.addend >= 0:
            del part.input[use.addend :]
        part.output[0] = self._tensor(made, f"/summand{place}")
        yield part
        label = self._node(f"{node.name}/sum{place}", node)
        yield helper.make_node("Add", [before, part.output[0]], [total], name=label)

    def _accumulated(self, node: Node, part: onnx.NodeProto, before: str) -> onnx.NodeProto | None:
        """The product of two matrices on top of a sum, which its kernel adds to; else None."""
        tensors = self.graph.tensors
        if node.key not in PRODUCTS:
            return None
        factors = [tensors[t] for t in node.inputs[:2]]
        if any(len(t.shape) != 2 or t.dtype not in _GEMM_TYPES for t in factors):
            return None
        alpha = node.attributes.get("alpha", 1.0)
        return helper.make_node(
            "Gemm",
            [*part.input[:2], before],
            [""],
            name=part.name,
            alpha=float(alpha) if isinstance(alpha, int | float) else 1.0,
            transA=node.attributes.get("transA", 0),
            transB=node.attributes.get("transB", 0),
        )

    def _late(self, index: int) -> onnx.NodeProto:
        """What a sum of products gets added behind the region."""
        node = self.graph.nodes[index]
        made, added = (self.graph.tensors[t].name for t in (node.outputs[0], node.inputs[2]))
        total = self.sums[node.outputs[0]]
        return helper.make_node(
            "Add", [total, added], [made], name=self._node(f"{node.name}/add", node)
        )

    def _joined(self, node: Node, count: int) -> Iterator[onnx.NodeProto]:
        """The whole of every output of which it is read."""
        for tensor, axis in zip(node.outputs, self.region.uses[node.id].makes, strict=True):
            if tensor == ABSENT or axis == SUM or not self.chunked.joined(tensor):
                continue
            value = self.graph.tensors[tensor]
            pieces = [self.pieces[tensor, place] for place in range(count)]
            label = self._node(f"{value.name}/join", node)
            yield helper.make_node("Concat", pieces, [value.name], name=label, axis=axis)

    def _shape(self, tensor: int, axis: int, count: int) -> tuple[int, ...]:
        """The shape of one of so many chunks of a tensor along an axis; WHOLE: of all of it."""
        shape = self.graph.tensors[tensor].shape
        return tuple(d // count if k == axis else d for k, d in enumerate(shape))

    def _tensor(self, tensor: int, suffix: str, axis: int = WHOLE, count: int = 1) -> str:
        """A new name for a part of a tensor."""
        value = self.graph.tensors[tensor]
        name = self.edit.fresh(value.name + suffix)
        self.edit.types[name] = TensorType(value.dtype, self._shape(tensor, axis, count))
        return name

    def _node(self, stem: str, origin: Node) -> str:
        name = self.edit.fresh(stem)
        self.edit.origin[name] = origin.id
        return name

    def _ints(self, values: list[int]) -> str:
        """The name of a constant of whole numbers."""
        key = tuple(values)
        if key not in self.bounds:
            stem = "chunk/" + "x".join(str(value) for value in values)
            self.bounds[key] = self.edit.constant(np.asarray(values, np.int64), stem)
        return self.bounds[key]
