"""Regions: nodes that can run together, chunk after chunk, around a large tensor.

**Why chunks.** Recomputation never goes below the floor: what one node reads and makes must be in
memory at once. In a language model that is the logits, whose rows and classes multiply: GPT-2 small
with 8 x 1024 tokens has a floor of 5.07 GiB, and no order, budget or planner changes that. But a
slice of the rows can go through logits, loss and both gradients before the next slice begins.
Forward and backward of a chunk stand together, so nothing is computed twice: the floor falls to
0.93 GiB at the FLOPs of before.

**What may run in chunks** is a question about axes, not about operators. A *use* of a node
(:func:`uses`) names an axis of every tensor that it touches, such that the same
range along all of them computes that range of the output, or a summand of it. Rows of a product,
any axis of an elementwise operator, all axes of a softmax but its own, both inner axes of a product
(a summand), a ``Reshape`` with as many elements before both axes. An operator without such a rule
has no use and ends the region: batch statistics, random numbers, bodies.

**Growth.** A region grows from a tensor along one axis, over every tensor that is large: its
producer and its readers join if they have a use that agrees with those that did. Where tensors are
small, it ends. What it reads from outside is sliced; what others read of it is joined, or summed:
the gradient of a weight is a sum over chunks.

**Cycles and blocks.** The region is to become one place in the graph, and a way from it through
nodes outside back into it would be a cycle. Where such nodes are few and small they join: the row
sums of a softmax, computed in parts. Else the region falls into *blocks*, one behind the other:
forward and backward of attention lie far apart, with the rest of the network between them. A block
runs all its chunks before the next begins, and hands on *pieces*, which are never joined: the stash
of a block stays in pieces, and the planner keeps or recomputes them one by one.

**What it does not reach.** The rest of a peak is the stash that layers hand to their backward part.
No region around one large tensor gets at it, as forward and backward of a layer are far apart. A
batch axis, however, goes through nearly every node, so all nodes around the loss are a region as
well: :mod:`memplan.passes.chunk.turn` finds it with the same uses over tensors of every size, and
takes 82% off the peak of that GPT-2. ``Dropout``, batch statistics and convolutions are not cut, so
classifiers of images gain little: 3.5% for a ViT-B/16, nothing for an EfficientNet-B0.

**Who decides.** Not this module. Regions of all kinds are tried by simulation
(:mod:`memplan.passes.chunk.choose_chunks`), and the planner takes the cheapest plan of those
without chunks, with regions and with layers. And not on its word: the proof follows slices, parts
and sums by axis rules that it reads from the same operator book, and the result of a sum in another
order is equal up to rounding, which reports say (:mod:`memplan.equivalence.parts`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ir.graph_facts import Facts
from memplan.ops.book import operator
from memplan.ops.facets import WHOLE, Use
from memplan.ops.instance import in_graph

# A region that grows beyond is most of the network: forward and backward are far apart then.
_MOST_NODES = 200
# So many nodes between parts of a region may join it; more are another part of the network.
_MOST_BETWEEN = 40


def uses(facts: Facts, node: Node) -> tuple[Use, ...]:
    """Every way to run ``node`` in chunks, by shapes that hold in every run; empty if there is
    none, or none is known."""
    rule = operator(node.key).axes
    if rule is None or facts.graph.bodies.get(node.id):
        return ()
    tensors, marked = facts.graph.tensors, facts.graph.checkpoints
    if not all(tensors[t].counted and tensors[t].static for t in (*node.reads, *node.writes)):
        return ()
    if any(t in marked for t in node.writes):
        return ()
    found = rule(in_graph(facts.graph, node, values=facts.values))
    return tuple(use for use in found if _is_split(use))


def _is_split(use: Use) -> bool:
    """Whether anything is chunked: of what is made alone, it may be the shape."""
    return any(axis != WHOLE for axis in (*use.reads, *use.makes))


@dataclass(frozen=True, slots=True, eq=False)  # a key by identity
class Region:
    """``uses`` by node id in order; ``axis`` of every tensor that is made (SUM: a sum); ``block``
    of every node; ``late``: nodes with a sum whose addend is only there behind the region."""

    uses: Mapping[int, Use]
    axis: Mapping[int, int]
    block: Mapping[int, int]
    late: frozenset[int]

    def divisor(self, graph: Graph) -> int:
        """What the number of chunks must divide."""
        found = 0
        for tensor, axis in _labels(graph, self.uses):
            found = gcd(found, graph.tensors[tensor].shape[axis])
        return found

    def most_chunks(self, graph: Graph) -> int:
        """Into how many chunks every product is computed as in the whole, element by element."""
        most = self.divisor(graph)
        for node, use in self.uses.items():
            if use.least > 1:
                rows = min(
                    graph.tensors[t].shape[axis]
                    for t, axis in _reads(graph.nodes[node], use)
                    if axis != WHOLE
                )
                most = min(most, rows // use.least)
        return most


def merged(regions: Sequence[Region]) -> Region:
    """Regions without a common node as one, each with blocks of its own."""
    uses: dict[int, Use] = {}
    axis: dict[int, int] = {}
    block: dict[int, int] = {}
    late: set[int] = set()
    first = 0
    for region in regions:
        uses |= region.uses
        axis |= region.axis
        block |= {node: first + own for node, own in region.block.items()}
        late |= region.late
        first += max(region.block.values()) + 1
    return Region(dict(sorted(uses.items())), axis, dict(sorted(block.items())), frozenset(late))


def _reads(node: Node, use: Use) -> Iterable[tuple[int, int]]:
    """The tensors that a node reads, with their axes, by slot; a shape operand is left out."""
    for slot, (tensor, axis) in enumerate(zip(node.inputs, use.reads, strict=True)):
        if tensor != ABSENT and slot != use.shape_slot:
            yield tensor, axis


def _labels(graph: Graph, chosen: Mapping[int, Use]) -> Iterable[tuple[int, int]]:
    """All tensors with an axis along which they are chunked."""
    for index, use in chosen.items():
        node = graph.nodes[index]
        yield from ((t, axis) for t, axis in _reads(node, use) if axis != WHOLE)
        made = zip(node.outputs, use.makes, strict=True)
        yield from ((t, axis) for t, axis in made if t != ABSENT and axis >= 0)


def grow(facts: Facts, seed: int, axis: int, smallest: int) -> Region | None:
    """The region around the tensor ``seed`` along ``axis``; None if there is none.

    ``smallest``: tensors of at most so many bytes are not followed.
    """
    growth = Growth(facts, smallest)
    return growth.region() if growth.start(seed, axis, _MOST_NODES) else None


class Growth:
    """A region as it grows; ``uses`` by node id, ``axis`` of every tensor that is made."""

    def __init__(self, facts: Facts, smallest: int) -> None:
        self.facts, self.graph, self.smallest = facts, facts.graph, smallest
        self.uses: dict[int, Use] = {}
        self.axis: dict[int, int] = {}
        self.wanted: dict[int, int] = {}  # axes that readers in the region read a tensor along
        self.whole: set[int] = set()  # what nodes in the region read whole
        self.waiting: list[tuple[int, int]] = []

    def start(self, seed: int, axis: int, most: int) -> bool:
        """Grow from a tensor to about ``most`` nodes; False if its producer does not join."""
        self.wanted[seed] = axis
        producer = self.graph.tensors[seed].producer
        if producer < 0 or not self.join(producer):
            return False
        while self.waiting and len(self.uses) < most:
            _, tensor = heapq.heappop(self.waiting)
            self.follow(tensor)
        return True

    def follow(self, tensor: int) -> None:
        """Let the producer and the readers of a tensor join."""
        made = self.graph.tensors[tensor]
        if made.producer >= 0 and made.producer not in self.uses:
            self.join(made.producer)
        if tensor in self.axis:
            for reader in dict.fromkeys(made.readers):
                if reader not in self.uses:
                    self.join(reader)

    def join(self, index: int, *, follow: bool = True) -> bool:
        """Let a node join, if a use of it agrees with the region."""
        node = self.graph.nodes[index]
        made = [self.graph.tensors[t] for t in node.writes]
        if not any(tensor.readers or tensor.is_output for tensor in made):
            return False
        use = next((use for use in uses(self.facts, node) if self.fits(node, use)), None)
        if use is None:
            return False
        touched = self.add(index, use)
        for tensor in touched if follow else ():
            nbytes = self.graph.tensors[tensor].nbytes
            if nbytes > self.smallest:
                heapq.heappush(self.waiting, (-nbytes, tensor))
        return True

    def add(self, index: int, use: Use) -> list[int]:
        """Take a node in, by a use that agrees; the tensors that it is chunked along."""
        node = self.graph.nodes[index]
        self.uses[index] = use
        touched: list[int] = []
        for tensor, axis in _reads(node, use):
            if axis == WHOLE:
                self.whole.add(tensor)
            else:
                self.wanted.setdefault(tensor, axis)
                touched.append(tensor)
        for tensor, axis in zip(node.outputs, use.makes, strict=True):
            if tensor != ABSENT:
                self.axis[tensor] = axis
                touched += [tensor] if axis >= 0 else []
        return touched

    def among(self, nodes: Iterable[int]) -> Growth:
        """What is left of it among some nodes, which grows no more."""
        found = Growth(self.facts, self.smallest)
        for index in nodes:
            if index in self.uses:
                found.add(index, self.uses[index])
        return found

    def fits(self, node: Node, use: Use) -> bool:
        """Whether a use agrees with the region, and shares a chunked tensor with it."""
        shared = False
        for tensor, axis in _reads(node, use):
            if tensor in self.axis and self.axis[tensor] != axis:
                return False
            shared |= axis != WHOLE and (tensor in self.axis or self.wanted.get(tensor) == axis)
        for tensor, axis in zip(node.outputs, use.makes, strict=True):
            if tensor == ABSENT:
                continue
            if tensor in self.whole or self.wanted.get(tensor, axis) != axis:
                return False
            shared |= tensor in self.wanted
        return shared

    def region(self) -> Region | None:
        """The region, with what joins it because it lies between, in blocks."""
        late = self.late_addends()
        block = self.blocks(late)
        if max(block.values()) > 0:
            kept = dict(self.uses), dict(self.axis), dict(self.wanted), set(self.whole)
            inside = self.between(late)
            if len(inside) <= _MOST_BETWEEN and all(
                self.join(node, follow=False) for node in inside
            ):
                late = self.late_addends()
                block = self.blocks(late)
            else:
                self.uses, self.axis, self.wanted, self.whole = kept
        ordered = dict(sorted(self.uses.items()))
        if self.repeats():
            return None
        return Region(ordered, dict(self.axis), block, frozenset(late))

    def repeats(self) -> set[int]:
        """Nodes that would compute the same in all chunks, with nothing but repeated values, and
        those that make these values."""
        made_by: dict[int, int] = {}
        found: set[int] = set()
        for index in sorted(self.uses):
            node = self.graph.nodes[index]
            cut = [tensor for tensor, axis in _reads(node, self.uses[index]) if axis != WHOLE]
            if all(tensor in made_by for tensor in cut):
                made_by.update(dict.fromkeys(node.writes, index))
                if cut:
                    found |= {index, *(made_by[tensor] for tensor in cut)}
        return found

    def late_addends(self) -> set[int]:
        """Nodes with a sum to which something is added that depends on the region itself."""
        behind = self.descendants()
        return {
            node
            for node, use in self.uses.items()
            if use.addend >= 0
            and self.graph.tensors[self.graph.nodes[node].inputs[use.addend]].producer in behind
        }

    def span(self) -> Sequence[Node]:
        """The nodes from the first of the region to its last: nothing else lies between any two."""
        return self.graph.nodes[min(self.uses) : max(self.uses) + 1]

    def descendants(self) -> set[int]:
        """Nodes of the span that depend on the region, itself included."""
        found = set(self.uses)
        for node in self.span():
            if node.id not in found and any(
                self.graph.tensors[t].producer in found for t in node.reads
            ):
                found.add(node.id)
        return found

    def sources(self, index: int, late: set[int]) -> Iterable[int]:
        """Producers of what a node of the region reads; a late addend is none of it."""
        node, use = self.graph.nodes[index], self.uses[index]
        for slot, tensor in enumerate(node.inputs):
            if tensor == ABSENT or slot == use.shape_slot:
                continue
            if not (slot == use.addend and index in late):
                producer = self.graph.tensors[tensor].producer
                if producer >= 0:
                    yield producer

    def between(self, late: set[int]) -> list[int]:
        """Nodes outside that depend on the region and that the region depends on, in order."""
        behind = self.descendants() - self.uses.keys()
        ahead: set[int] = set()
        waiting = [p for index in self.uses for p in self.sources(index, late)]
        while waiting:
            index = waiting.pop()
            if index in ahead or index in self.uses:
                continue
            ahead.add(index)
            waiting += [
                producer
                for t in self.graph.nodes[index].reads
                if (producer := self.graph.tensors[t].producer) >= 0
            ]
        return sorted(ahead & behind)

    def blocks(self, late: set[int]) -> dict[int, int]:
        """The block of every node of the region. It must run behind as many others as the way to it
        leaves the region; where only later blocks read it, it may run in one of these, and does if
        its place in the file is nearer to it."""
        earliest = self.earliest_blocks(late)
        latest: dict[int, int] = {}
        for index in sorted(self.uses, reverse=True):
            latest[index] = self.latest_block(index, earliest[index], latest)
        fixed = {n: block for n, block in earliest.items() if latest[n] == block}
        chosen: dict[int, int] = {}
        for index in sorted(self.uses, reverse=True):
            last = self.latest_block(index, earliest[index], chosen)
            chosen[index] = _nearest(index, range(earliest[index], last + 1), fixed)
        return {index: chosen[index] for index in sorted(self.uses)}

    def latest_block(self, index: int, earliest: int, chosen: Mapping[int, int]) -> int:
        """The first block of those that read a node, if nothing else does."""
        made = [self.graph.tensors[t] for t in self.graph.nodes[index].writes]
        readers = [r for tensor in made for r in tensor.readers]
        inside = all(r in self.uses for r in readers) and not any(t.is_output for t in made)
        return max(min(chosen[r] for r in readers), earliest) if inside and readers else earliest

    def earliest_blocks(self, late: set[int]) -> dict[int, int]:
        """How often the way to each node of the region leaves it."""
        depth: dict[int, int] = {}
        for node in self.span():
            if node.id in self.uses:
                producers = list(self.sources(node.id, late))
                steps = [depth.get(p, 0) for p in producers]
            else:
                producers = [p for t in node.reads if (p := self.graph.tensors[t].producer) >= 0]
                steps = [depth.get(p, 0) + (p in self.uses) for p in producers]
            deepest = max(steps, default=0)
            if deepest or node.id in self.uses:
                depth[node.id] = deepest
        return {node: depth[node] for node in self.uses}


def _nearest(index: int, blocks: range, fixed: Mapping[int, int]) -> int:
    """Of the blocks that a node may run in, that of the node nearest to it which has no choice."""
    if len(blocks) == 1:
        return blocks[0]
    among = [n for n, block in fixed.items() if block in blocks]
    near = min(among, key=lambda n: abs(n - index), default=None)
    return blocks[0] if near is None else fixed[near]
