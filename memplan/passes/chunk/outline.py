"""What a graph takes with parts of it in chunks, estimated before any of it is written.

To write a graph in chunks, open it and simulate it takes a second where a network is large, and
there are a hundred choices of parts and counts. But nearly all is known from the whole: what lives
within a block is there for one chunk at a time, so its bytes go by the number of chunks; what a
block hands on, or adds up, is there as ever; what it reads along an axis is there once more as a
slice. So an estimate is an order of nodes and blocks, and two sums of bytes at every step of the
last chunk: those that stay, and those that are divided. What is chosen by it is written and
simulated like any other change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from typing import Protocol

import numpy as np

from memplan.ir.graph import Graph
from memplan.ops.facets import SUM, WHOLE
from memplan.passes.chunk.chunk_writer import Chunked
from memplan.passes.chunk.part import Part
from memplan.passes.chunk.region import Region
from memplan.simulate.floor import Needs
from memplan.simulate.timeline import Timeline


class Sizes(Protocol):
    """Bytes, estimated or simulated; resident ones and workspace included."""

    @property
    def peak_bytes(self) -> int: ...
    @property
    def floor_bytes(self) -> int: ...


def fall(after: Sizes, before: Sizes) -> float:
    """By what share peak and floor are lower, added: the lower the floor, the more recomputation
    can do."""
    peaks, floors = before.peak_bytes / after.peak_bytes, before.floor_bytes / after.floor_bytes
    return log(peaks) + log(floors)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes with resident ones and workspace; the tensors, made outside of all parts, that are
    there at the peak (``live``), and that the node at the floor needs (``pinned``).

    The floor is what recomputation may come to: the most that a node needs beside the graph outputs
    that stand before it, as gradients are held while others are computed. It is no bound: in
    another order there are fewer.
    """

    peak_bytes: int
    floor_bytes: int
    live: tuple[int, ...] = ()
    pinned: tuple[int, ...] = ()


class Outline:
    """A graph as it is, of which parts may run in chunks. ``timeline``: its simulation."""

    def __init__(self, graph: Graph, timeline: Timeline) -> None:
        self.graph, self.timeline = graph, timeline
        steps = np.asarray(timeline.allocation.step_of, dtype=np.int64)
        self.extra = timeline.workspace[steps] if len(steps) else timeline.workspace
        for node, nbytes in timeline.inside.nbytes.items():
            self.extra[node] += nbytes
        needs = Needs(graph, timeline)
        self.needs = list(needs)
        self.root = needs.root
        self.outputs = [t for t in needs.outputs if graph.tensors[t].producer >= 0]
        self.buffers = [b for b in timeline.allocation.buffers if b.nbytes]
        tensors = graph.tensors
        readers = [[r for t in b.members for r in tensors[t].readers] for b in self.buffers]
        self.makers = np.array([tensors[b.root].producer for b in self.buffers], dtype=np.int64)
        self.nbytes = np.array([b.nbytes for b in self.buffers], dtype=np.float64)
        self.kept = np.array(
            [b.is_output or not r for b, r in zip(self.buffers, readers, strict=True)], dtype=bool
        )
        self.readers = np.array([r for each in readers for r in each or [0]], dtype=np.int64)
        lengths = [max(1, len(each)) for each in readers]
        self.starts = np.cumsum([0, *lengths], dtype=np.int64)[:-1]
        self.buffer_of = {t: k for k, b in enumerate(self.buffers) for t in b.members}
        self._layouts: dict[tuple[Region, ...], _Layout | None] = {}

    def estimate(self, parts: Sequence[Part]) -> Estimate | None:
        """What the graph takes with these parts, which share no node, in chunks; None where their
        blocks would wait for each other."""
        key = tuple(region for part in parts for region in part.regions)
        if key not in self._layouts:
            chunked = Chunked(self.graph, parts)
            order = chunked.order()
            self._layouts[key] = _Layout(self, chunked, parts, order) if order else None
        layout = self._layouts[key]
        return None if layout is None else layout.estimate([part.count for part in parts])


class _Layout:
    """Nodes and blocks in their order, a step for every node, the last chunk of each block for all
    of its chunks, and behind it one for every tensor that is put together."""

    def __init__(
        self, outline: Outline, chunked: Chunked, parts: Sequence[Part], order: Sequence[int]
    ) -> None:
        self.outline, self.chunked, self.graph = outline, chunked, outline.graph
        self.region = chunked.region
        self.part = {n: k for k, p in enumerate(parts) for r in p.regions for n in r.uses}
        self.step = np.zeros(len(self.graph.nodes), dtype=np.int64)
        self.opens: dict[int, int] = {}
        self.closes: dict[int, int] = {}
        self.join: dict[int, int] = {}
        self.late: dict[int, int] = {}
        steps = 0
        for item in order:
            if item < 0:
                members = chunked.blocks[-1 - item]
                self.opens[-1 - item] = steps
                self.step[members] = np.arange(steps, steps + len(members))
                steps += len(members)
                self.closes[-1 - item] = steps
                for made in (t for m in members for t in self.graph.nodes[m].writes):
                    if self.region.axis[made] >= 0 and chunked.joined(made):
                        self.join[made] = steps
                        steps += 1
            elif item in self.region.late:
                self.late[item] = steps
                steps += 1
            else:
                self.step[item] = steps
                steps += 1
        self.steps = steps
        self.change = np.zeros((1 + len(parts), steps + 1))
        """Bytes that begin or end at a step: those that stay, and those of each part."""
        self.floor: list[tuple[int, float, float, int, int]] = []
        """What nodes need at once: the part (0: none), bytes that stay and that are divided, the
        node and its step."""
        self.held = np.zeros(steps + 1)
        """Bytes of graph outputs that are there before a step."""
        for tensor in outline.outputs:
            made = self.step[self.graph.tensors[tensor].producer]
            self.held[made + 1 :] += self.graph.tensors[tensor].nbytes
        self.scratch = np.zeros((1 + len(parts), steps))
        """Bytes that kernels and bodies take, likewise: most go by the elements that they see."""
        part = [1 + self.part.get(node, -1) for node in range(len(self.step))]
        self.scratch[part, self.step] = outline.extra
        self._lifetimes()
        self._slices()
        self._needs()
        rows = np.array(self.floor or [(0, 0.0, 0.0, 0, 0)])
        self.parts = rows[:, 0].astype(np.int64)
        self.whole = rows[:, 1] + self.held[rows[:, 4].astype(np.int64)]
        self.divided = rows[:, 2]

    def estimate(self, counts: Sequence[int]) -> Estimate:
        outline = self.outline
        shares = np.array([1.0, *(1.0 / count for count in counts)])
        used = np.cumsum(shares @ self.change)[:-1] + shares @ self.scratch
        peak = int(used.argmax()) if len(used) else 0
        needed = self.whole + self.divided * shares[self.parts]
        most = int(needed.argmax()) if len(needed) else 0
        resident = outline.timeline.resident_bytes
        pinned = outline.needs[self.floor[most][3]].tensors if self.floor else set()
        return Estimate(
            resident + int(used.max(initial=0)),
            resident + int(max(needed.max(initial=0), self.held[-1])),
            tuple(
                outline.buffers[k].root
                for k in np.flatnonzero((self.born <= peak) & (peak < self.dead))
                if k not in self.touched
            ),
            tuple(t for t in pinned if self.graph.tensors[t].producer not in self.region.uses),
        )

    def _live(self, row: int, first: int, behind: int, nbytes: float) -> None:
        self.change[row, first] += nbytes
        self.change[row, behind] -= nbytes

    def _lifetimes(self) -> None:
        """All buffers: those without a tensor of a region as ever, in another order."""
        outline, tensors = self.outline, self.graph.tensors
        self.touched = {outline.buffer_of[t] for t in self.region.axis if t in outline.buffer_of}
        self.born = self.step[outline.makers]
        self.dead = np.maximum.reduceat(self.step[outline.readers], outline.starts) + 1
        self.dead[outline.kept] = self.steps
        for node, step in self.late.items():
            added = self.graph.nodes[node].inputs[self.region.uses[node].addend]
            if (place := outline.buffer_of.get(added)) is not None:
                self.dead[place] = max(self.dead[place], step + 1)
        whole = np.ones(len(outline.buffers), dtype=bool)
        whole[list(self.touched)] = False
        np.add.at(self.change[0], self.born[whole], outline.nbytes[whole])
        np.add.at(self.change[0], self.dead[whole], -outline.nbytes[whole])
        for place in self.touched:
            buffer = outline.buffers[place]
            among: dict[int, list[int]] = {}
            for t in buffer.members:
                among.setdefault(self.region.block.get(tensors[t].producer, -1), []).append(t)
            for block, members in among.items():
                if block < 0:
                    self._outside(members, buffer.nbytes)
                else:
                    self._made(block, members, buffer.nbytes)

    def _end(self, tensors: Iterable[int], readers: Sequence[int]) -> int:
        """The step behind the last that needs some tensors."""
        every = self.graph.tensors
        if not readers or any(every[t].is_output for t in tensors):
            return self.steps
        return int(max(self.step[r] for r in readers)) + 1

    def _outside(self, members: Sequence[int], nbytes: int) -> None:
        tensors = self.graph.tensors
        readers = [r for t in members for r in tensors[t].readers]
        made = int(self.step[tensors[members[0]].producer])
        self._live(0, made, max(self._end(members, readers), made + 1), nbytes)

    def _made(self, block: int, members: Sequence[int], nbytes: int) -> None:
        """Tensors of a block that share a buffer."""
        tensors, step = self.graph.tensors, self.step
        producer = tensors[members[0]].producer
        opens, closes, made = self.opens[block], self.closes[block], int(step[producer])
        if self.region.axis[members[0]] == SUM:
            readers = [r for t in members for r in tensors[t].readers]
            self._live(0, opens, max(self._end(members, readers), closes), nbytes)
            self._live(0, made, made + 1, nbytes)  # the sum before it, or what is added to it
            return
        pieces = [r for t in members for r in tensors[t].readers if self.chunked.handed_on(t, r)]
        last = int(max((step[r] for r in pieces), default=made)) + 1
        for t in members:
            if t in self.join:
                others = [r for r in tensors[t].readers if not self.chunked.handed_on(t, r)]
                joined = self.join[t]
                self._live(0, joined, max(self._end([t], others), joined + 1), nbytes)
                last = max(last, joined + 1)
        if last > closes:
            self._live(0, opens, last, nbytes)
        else:
            self._live(1 + self.part[producer], made, last, nbytes)

    def _slices(self) -> None:
        """What nodes of a block read of tensors that come whole."""
        tensors = self.graph.tensors
        found: dict[tuple[int, int, int], tuple[int, int]] = {}
        for index in self.region.uses:
            step, block = int(self.step[index]), self.region.block[index]
            for tensor, axis in self._cut(index):
                key = tensor, axis, block
                found[key] = found.get(key, (step, step))[0], step
        for (tensor, _, block), (first, last) in found.items():
            node, nbytes = self.chunked.blocks[block][0], tensors[tensor].nbytes
            row = 1 + self.part[node]
            self._live(row, first, last + 1, nbytes)
            whole = nbytes if tensor in self.outline.buffer_of else 0  # else it is resident
            self.floor.append((row, whole, nbytes, node, first))

    def _cut(self, index: int) -> Iterable[tuple[int, int]]:
        """The tensors that a node of a region reads as slices of a whole, with their axes."""
        node, use = self.graph.nodes[index], self.region.uses[index]
        for slot, (tensor, axis) in enumerate(zip(node.inputs, use.reads, strict=True)):
            whole = axis == WHOLE or tensor < 0 or slot == use.shape_slot
            if not whole and not self.chunked.handed_on(tensor, index):
                yield tensor, axis

    def _needs(self) -> None:
        """What every node needs at once."""
        tensors, root, needs = self.graph.tensors, self.outline.root, self.outline.needs
        for need in needs:
            node = need.node
            if node.id not in self.region.uses:
                whole = need.nbytes + need.workspace - need.held
                self.floor.append((0, whole, 0, node.id, int(self.step[node.id])))
                continue
            use, axes = self.region.uses[node.id], dict[int, int]()
            for slot, tensor in enumerate(node.inputs):
                if tensor >= 0 and slot != use.shape_slot:
                    axes[root.get(tensor, tensor)] = use.reads[slot]
            for slot, tensor in enumerate(node.outputs):
                if tensor >= 0:
                    axes[root.get(tensor, tensor)] = use.makes[slot]
            whole, divided = 0, need.workspace
            for tensor, axis in axes.items():
                nbytes = tensors[tensor].nbytes
                if axis >= 0 and (tensor in need.tensors or tensor not in self.outline.buffer_of):
                    divided += nbytes
                elif axis < 0 and tensor in need.tensors:
                    whole += nbytes * (2 if axis == SUM else 1)
            step = int(self.step[node.id])
            self.floor.append((1 + self.part[node.id], whole, divided, node.id, step))
            for t in node.writes:
                if t in self.join:
                    self.floor.append((0, 2 * tensors[t].nbytes, 0, node.id, self.join[t]))
