"""Which nodes and tensors of one graph are which of another: by structure, whatever their names.

1. Copies that a rewrite made (``memplan.role``) stand for what they are copies of.
2. Nodes whose whole past and whole future are equal, names apart, are the same node.
3. Of the rest: those equal within four edges, then two, then one; then the same without sizes and
   without types, which is how a graph looks that is built for another batch or precision; then
   neighbors of what was found; then what makes tensors of one type and shape by one operator.
4. Then tensors of one name, type and shape, which another operator may make since a fusion.
5. Of several candidates those with equal names go together where most names are in both graphs,
   then, where one graph has more of them, those with an equal past; the others in the order of the
   file.

Signatures are numbers that are given out in order of first use, not hashes: equal numbers mean
equal structure.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass

from memplan.ir.graph import ABSENT, Graph, Node, Tensor

_ROUNDS = (4, 2, 1)
_COPY = re.compile(r"(.+)/recompute(?:_[0-9]+)?")
_COPIES = frozenset({"recompute", "offload", "reload"})
Description = Callable[[Tensor], Hashable]
_Signatures = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Counterparts:
    """Ids in the old graph → ids in the new one, one to one. ``copies`` are the copies in each of
    the graphs: tensor → the tensor that it is a copy of."""

    nodes: Mapping[int, int]
    tensors: Mapping[int, int]
    copies: tuple[Mapping[int, int], Mapping[int, int]]


def find_counterparts(old: Graph, new: Graph) -> Counterparts:
    """The counterparts of two graphs. Takes a fraction of a second for 10,000 nodes."""
    return _Search(old, new).run()


class _Side:
    """One of the graphs, without the copies in it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.copy_of, left_out = _copies(graph)
        self.nodes = [node for node in graph.nodes if node.id not in left_out]
        self.left = {node.id for node in self.nodes}
        self.reads = {n.id: [self.copy_of.get(t, t) for t in n.reads] for n in self.nodes}
        self.readers: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for node in self.nodes:
            for slot, tensor in enumerate(self.reads[node.id]):
                self.readers[tensor].append((node.id, slot))

    def maker(self, tensor: int) -> Node | None:
        """The node that makes a tensor, if one does."""
        producer = self.graph.tensors[tensor].producer
        return None if producer == ABSENT else self.graph.nodes[producer]


def _copies(graph: Graph) -> tuple[dict[int, int], set[int]]:
    """Tensors that are copies, of which tensor, and the nodes that only serve copies."""
    by_name = {node.name: node for node in graph.nodes}
    copies: dict[int, int] = {}
    nodes: set[int] = set()
    for node in graph.nodes:
        told = graph.metadata[node.id]
        if told.get("memplan.role") not in _COPIES:
            continue
        nodes.add(node.id)
        origin, of = by_name.get(told.get("memplan.of", "")), told.get("memplan.of", "")
        for slot, tensor in enumerate(node.outputs):
            if tensor == ABSENT:
                continue
            source = ABSENT
            if origin is not None and origin is not node and slot < len(origin.outputs):
                source = origin.outputs[slot]
            elif told["memplan.role"] == "reload":
                source = _id_of(graph, of)
            elif match := _COPY.fullmatch(graph.tensors[tensor].name):
                source = _id_of(graph, match[1])
            if source != ABSENT and source != tensor:
                copies[tensor] = source
    return {tensor: _end(tensor, copies) for tensor in copies}, nodes


def _id_of(graph: Graph, name: str) -> int:
    found = graph.tensor_named(name)
    return ABSENT if found is None else found.id


def _end(tensor: int, copies: Mapping[int, int]) -> int:
    """Where a chain of copies ends; names in a file may also run in a circle."""
    seen = {tensor}
    while (following := copies.get(tensor, ABSENT)) not in (ABSENT, *seen):
        tensor = following
        seen.add(tensor)
    return tensor


class _Numbers:
    """Equal keys get equal numbers."""

    def __init__(self) -> None:
        self._given: dict[Hashable, int] = {}

    def of(self, key: Hashable) -> int:
        """The number of a key."""
        return self._given.setdefault(key, len(self._given))


def _exact(tensor: Tensor) -> Hashable:
    return tensor.dtype, tensor.shape


def _without_sizes(tensor: Tensor) -> Hashable:
    return tensor.dtype, len(tensor.shape)


def _rank(tensor: Tensor) -> Hashable:
    return len(tensor.shape)


class _Search:
    """What was found so far. ``back``: new tensor → its old counterpart."""

    def __init__(self, old: Graph, new: Graph) -> None:
        self.sides = _Side(old), _Side(new)
        self.nodes: dict[int, int] = {}
        self.tensors: dict[int, int] = {}
        self.back: dict[int, int] = {}
        self.past: tuple[_Signatures, _Signatures] = {}, {}
        names = [{node.name for node in side.nodes} for side in self.sides]
        self.by_name = 2 * len(names[0] & names[1]) >= min(map(len, names))

    def run(self) -> Counterparts:
        """One way of looking after the other, as long as something is left."""
        for signatures in self._ways():
            self._pair_equal(signatures)
            if not all(side.left for side in self.sides):
                break
        self._pair_readers()
        self._pair_makers()
        self._pair_equal(self._alone())
        self._pair_resident()
        if self.by_name:
            self._pair_names()
        copies = self.sides[0].copy_of, self.sides[1].copy_of
        return Counterparts(self.nodes, self.tensors, copies)

    def _ways(self) -> Iterator[tuple[_Signatures, _Signatures]]:
        """Signatures of the nodes of both graphs, from the most exact to the least."""
        old, new = self.sides
        numbers = _Numbers()
        past = self.past = _past(old, numbers), _past(new, numbers)
        future = _future(old, numbers), _future(new, numbers)
        yield _joined(past[0], future[0], numbers), _joined(past[1], future[1], numbers)
        for describe in (_exact, _without_sizes, _rank):
            for rounds in _ROUNDS:
                numbers = _Numbers()
                first = _within(old, rounds, describe, numbers)
                yield first, _within(new, rounds, describe, numbers)

    def _alone(self) -> tuple[_Signatures, _Signatures]:
        old, new = self.sides
        numbers = _Numbers()
        return _within(old, 0, _exact, numbers), _within(new, 0, _exact, numbers)

    def _pair_equal(self, found: tuple[_Signatures, _Signatures]) -> None:
        groups: defaultdict[int, tuple[list[Node], list[Node]]] = defaultdict(lambda: ([], []))
        for which, (side, signatures) in enumerate(zip(self.sides, found, strict=True)):
            for node in side.nodes:
                if node.id in side.left:
                    groups[signatures[node.id]][which].append(node)
        for olds, news in groups.values():
            for old, new in self._paired(olds, news):
                self._take(old, new)

    def _paired(self, olds: list[Node], news: list[Node]) -> Iterator[tuple[Node, Node]]:
        """Candidates, two by two: by name where that says something, else in order."""
        named = {node.name: node for node in news}
        shared = {node.name: node for node in olds if node.name in named}
        # Where as many are left of both, and their numbers moved, names would cross them.
        if self.by_name and (len(olds) != len(news) or 2 * len(shared) > len(olds)):
            yield from ((node, named[name]) for name, node in shared.items())
            olds = [node for node in olds if node.name not in shared]
            news = [node for node in news if node.name not in shared]
        if len(olds) != len(news):
            past: defaultdict[int, deque[Node]] = defaultdict(deque)
            for node in news:
                past[self.past[1][node.id]].append(node)
            pairs = [
                (node, same.popleft()) for node in olds if (same := past[self.past[0][node.id]])
            ]
            yield from pairs
            known = {each.id for each, _ in pairs}, {each.id for _, each in pairs}
            olds = [node for node in olds if node.id not in known[0]]
            news = [node for node in news if node.id not in known[1]]
        yield from zip(olds, news, strict=False)

    def _take(self, old: Node, new: Node) -> None:
        self.nodes[old.id] = new.id
        self.sides[0].left.discard(old.id)
        self.sides[1].left.discard(new.id)
        for before, after in zip(old.outputs, new.outputs, strict=False):
            if ABSENT not in (before, after):
                self._take_tensor(before, after)

    def _take_tensor(self, old: int, new: int) -> None:
        self.tensors[old], self.back[new] = new, old

    def _pair_readers(self) -> None:
        """Nodes of one operator that read counterparts in the same slot."""
        before, after = self.sides
        beside: defaultdict[tuple[int, int, str], list[Node]] = defaultdict(list)
        for node in reversed(before.nodes):
            if node.id in before.left:
                for slot, tensor in enumerate(before.reads[node.id]):
                    beside[tensor, slot, node.key].append(node)
        for node in after.nodes:
            if node.id not in after.left:
                continue
            for slot, tensor in enumerate(after.reads[node.id]):
                found = beside[self.back.get(tensor, ABSENT), slot, node.key]
                while found and found[-1].id not in before.left:
                    found.pop()
                if found:
                    self._take(found.pop(), node)
                    break

    def _pair_makers(self) -> None:
        """Nodes of one operator that make what counterparts read in the same slot."""
        before, after = self.sides
        twins = sorted(self.nodes.items(), reverse=True)
        for old, new in twins:
            for mine, other in zip(before.reads[old], after.reads[new], strict=False):
                maker, its = before.maker(mine), after.maker(other)
                if maker is None or its is None or maker.key != its.key:
                    continue
                if maker.id in before.left and its.id in after.left:
                    self._take(maker, its)
                    twins.append((maker.id, its.id))

    def _pair_names(self) -> None:
        """Tensors of one name, type and shape that other operators make: fused, or no longer."""
        before, after = self.sides
        for tensor in after.graph.tensors:
            if tensor.id in self.back or tensor.id in after.copy_of:
                continue
            twin = before.graph.tensor_named(tensor.name)
            known = twin is None or twin.id in self.tensors or twin.id in before.copy_of
            if twin is not None and not known and _exact(twin) == _exact(tensor):
                self._take_tensor(twin.id, tensor.id)

    def _pair_resident(self) -> None:
        """Inputs and initializers: by who reads them, by name, by type and shape."""
        before, after = self.sides
        for old, new in self.nodes.items():
            for mine, other in zip(before.reads[old], after.reads[new], strict=False):
                known = mine in self.tensors or other in self.back
                if not known and before.maker(mine) is None and after.maker(other) is None:
                    self._take_tensor(mine, other)
        for key in (lambda t: t.name, _exact, _without_sizes, _rank):
            free: defaultdict[Hashable, deque[int]] = defaultdict(deque)
            for tensor in after.graph.tensors:
                if tensor.producer == ABSENT and tensor.id not in self.back:
                    free[tensor.kind, key(tensor)].append(tensor.id)
            for tensor in before.graph.tensors:
                if tensor.producer != ABSENT or tensor.id in self.tensors:
                    continue
                if found := free[tensor.kind, key(tensor)]:
                    self._take_tensor(tensor.id, found.popleft())


def _past(side: _Side, numbers: _Numbers) -> _Signatures:
    """By everything that a node depends on."""
    graph = side.graph
    past = [numbers.of((tensor.kind, _exact(tensor))) for tensor in graph.tensors]
    nodes: dict[int, int] = {}
    for node in side.nodes:
        made = tuple(_exact(graph.tensors[t]) for t in node.writes)
        nodes[node.id] = numbers.of((node.key, made, tuple(past[t] for t in side.reads[node.id])))
        for slot, tensor in enumerate(node.writes):
            past[tensor] = numbers.of((nodes[node.id], slot))
    return nodes


def _future(side: _Side, numbers: _Numbers) -> _Signatures:
    """By everything that depends on a node."""
    future: dict[int, int] = {}
    for node in reversed(side.nodes):
        readers = tuple(
            tuple(sorted((future.get(reader, -1), slot) for reader, slot in side.readers[t]))
            for t in node.writes
        )
        future[node.id] = numbers.of((node.key, readers))
    return future


def _joined(first: _Signatures, second: _Signatures, numbers: _Numbers) -> _Signatures:
    return {node: numbers.of((first[node], second[node])) for node in first}


def _within(side: _Side, rounds: int, describe: Description, numbers: _Numbers) -> _Signatures:
    """By what lies within some edges of a node."""
    tensors = side.graph.tensors
    found = {
        node.id: numbers.of((node.key, tuple(describe(tensors[t]) for t in node.writes)))
        for node in side.nodes
    }
    outside = {t.id: numbers.of((t.kind, describe(t))) for t in tensors if t.producer == ABSENT}
    for _ in range(rounds):
        around = dict[int, int]()
        for node in side.nodes:
            past = tuple(
                outside[t] if t in outside else found.get(tensors[t].producer, -1)
                for t in side.reads[node.id]
            )
            future = tuple(
                tuple(sorted((found[reader], slot) for reader, slot in side.readers[t]))
                for t in node.writes
            )
            around[node.id] = numbers.of((found[node.id], past, future))
        found = around
    return found
