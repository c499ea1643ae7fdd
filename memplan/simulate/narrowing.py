"""What fewer wanted gradients would free of the peak: for ``rewrite --wrt``.

Groups are modules of parameters (``blocks.3`` of ``blocks.3.attn.qkv.weight``). For each of them:
the bytes in memory at the peak that only its gradients and updates hold, and what goes if the
modules before it, in order of the forward part, are frozen as well. The peak falls by that at most:
with less at this step, another one may be the highest.

All groups are answered together, in time linear in nodes and readers: a node serves nothing but
group g if g is both the first and the last group that it serves, and nothing but the groups up to
g if the last one is at most g. So a first and a last group per node is all that is kept, and a
buffer's answer is worked out once for each range of groups in which it is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise

from memplan.ir.graph import Graph, TensorKind
from memplan.ir.phases import Phases
from memplan.ir.reach import trained_outputs
from memplan.ops.book import operator
from memplan.simulate.allocation import Buffer, is_resident
from memplan.simulate.explain import Explainer, TensorClass
from memplan.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Narrowing:
    """A module whose parameters might be frozen, and what that would free of the peak.

    ``freed_bytes`` by itself, ``freed_with_earlier_bytes`` with all modules before it; ``stashes``
    are names and bytes of the stashes among ``freed_bytes``, the largest first.
    """

    module: str
    parameters: tuple[str, ...]
    freed_bytes: int
    freed_with_earlier_bytes: int
    stashes: tuple[tuple[str, int], ...]

    def as_json(self) -> dict[str, object]:
        """All fields, by name."""
        stashes = [{"name": name, "nbytes": nbytes} for name, nbytes in self.stashes]
        return {**asdict(self), "parameters": list(self.parameters), "stashes": stashes}


def narrowings(timeline: Timeline, phases: Phases) -> tuple[Narrowing, ...]:
    """What each module's gradients hold at the peak, in order of the forward part.

    Empty where the graph has no gradients, or those of one module only.
    """
    graph = timeline.graph
    owners = trained_outputs(graph, phases)
    groups = _groups(graph, {p for parameters in owners.values() for p in parameters})
    if len(groups) < 2:
        return ()
    freed = _Freed(_Served(graph, owners, list(groups.values())), timeline, phases)
    return tuple(
        Narrowing(
            module,
            tuple(graph.tensors[p].name for p in parameters),
            freed.alone[index],
            freed.with_earlier[index],
            tuple(freed.stashes[index]),
        )
        for index, (module, parameters) in enumerate(groups.items())
    )


def _groups(graph: Graph, parameters: Iterable[int]) -> dict[str, list[int]]:
    """Parameters by module, in order of their first reader."""
    ordered = sorted(parameters, key=lambda p: (min(graph.tensors[p].readers, default=-1), p))
    found: dict[str, list[int]] = {}
    for parameter in ordered:
        found.setdefault(_layer(graph.tensors[parameter].name), []).append(parameter)
    return found


def _layer(parameter: str) -> str:
    """The parameter's path up to its first index, or without its last part."""
    parts = parameter.split(".")
    index = next((k for k, part in enumerate(parts[:-1]) if part.isdigit()), None)
    return ".".join(parts[: index + 1] if index is not None else parts[:-1] or parts)


Span = tuple[int, int]
"""The first and the last of some groups. The last is below the first where there are none."""


class _Served:
    """Whom every node works for: its first and last group, one behind the last for what is always
    wanted."""

    def __init__(
        self, graph: Graph, owners: dict[int, frozenset[int]], groups: list[list[int]]
    ) -> None:
        self.graph = graph
        self.count = len(groups)
        self.nobody: Span = (self.count + 1, -1)
        group_of = {p: index for index, group in enumerate(groups) for p in group}
        self.wanted: dict[int, Span] = {}
        for t in graph.outputs:
            served = [group_of[p] for p in owners[t]] if t in owners else [self.count]
            self.wanted[t] = (min(served), max(served))
        self.of = [self.nobody] * len(graph.nodes)
        for node in reversed(graph.nodes):
            first, last = self.nobody
            for t in node.writes:
                spans = [self.of[reader] for reader in graph.tensors[t].readers]
                if t in self.wanted:
                    spans.append(self.wanted[t])
                for low, high in spans:
                    if low < first:
                        first = low
                    if high > last:
                        last = high
            self.of[node.id] = (first, last)


class _Tally:
    """Some spans, and how many of them are left when groups are frozen."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.last, self.some = -1, 0
        self.only: dict[int, int] = {}
        for first, last in spans:
            if last >= 0:
                self.some += 1
                self.last = max(self.last, last)
                if first == last:
                    self.only[first] = self.only.get(first, 0) + 1

    def without(self, group: int) -> bool:
        """Whether any serves somebody when ``group`` is frozen."""
        return self.some > self.only.get(group, 0)

    def after(self, group: int) -> bool:
        """Whether any serves somebody when all groups up to ``group`` are frozen."""
        return self.last > group


class _Freed:
    """Bytes of the peak that go with a group, and with it and all groups before it; and the stashes
    among the former."""

    def __init__(self, served: _Served, timeline: Timeline, phases: Phases) -> None:
        self.served, self.timeline, self.graph = served, timeline, timeline.graph
        self.explainer = Explainer(timeline, phases, ("",) * len(self.graph.nodes))
        count = served.count
        self.alone = [0] * count
        self.stashes: list[list[tuple[str, int]]] = [[] for _ in range(count)]
        self._change = [0] * (count + 1)
        for buffer in timeline.live_at(self.explainer.peak_step):
            self._buffer(buffer)
        for tensor in self.graph.tensors:
            if tensor.kind is TensorKind.INPUT and is_resident(tensor):
                self._state(tensor.nbytes, _Tally(served.of[r] for r in tensor.readers))
        self.with_earlier = list(accumulate(self._change[:-1]))

    def _buffer(self, buffer: Buffer) -> None:
        """Add a buffer where it goes.

        It goes if nobody is left whom its producer serves, or if no wanted output lies in it and
        no reader that is left comes at the peak or later. One that loses all readers is held to
        the end, unless its node need not make it.
        """
        tensors = [self.graph.tensors[t] for t in buffer.members]
        step_of, peak = self.timeline.allocation.step_of, self.explainer.peak_step
        readers = [r for t in tensors for r in t.readers]
        of, wanted = self.served.of, self.served.wanted
        made = _Tally([of[tensors[0].producer]])
        held = _Tally(wanted[t.id] for t in tensors if t.id in wanted)
        read = _Tally(of[r] for r in readers)
        late = _Tally(of[r] for r in readers if step_of[r] >= peak)
        node = self.graph.nodes[tensors[0].producer]
        optional = node.outputs.index(buffer.root) in operator(node.key).optional_outputs

        def goes(made: bool, held: bool, read: bool, late: bool) -> bool:
            if not made:
                return True
            return not held and (not late if read else optional)

        tallies = (made, held, read, late)
        count = self.served.count
        starts = {0, *(tally.last for tally in tallies if 0 <= tally.last < count)}
        for start, end in pairwise((*sorted(starts), count)):
            if goes(*(tally.after(start) for tally in tallies)):
                self._change[start] += buffer.nbytes
                self._change[end] -= buffer.nbytes
        singles = {group for tally in tallies for group in tally.only if group < count}
        dead = goes(*(tally.some > 0 for tally in tallies))
        gone = [
            group
            for group in (range(count) if dead else singles)
            if goes(*(tally.without(group) for tally in tallies))
        ]
        if not gone:
            return
        stash = self.explainer.buffer_class(buffer) is TensorClass.STASH
        for group in gone:
            self.alone[group] += buffer.nbytes
            if stash:
                self.stashes[group].append((self.graph.tensors[buffer.root].name, buffer.nbytes))

    def _state(self, nbytes: int, read: _Tally) -> None:
        """Add a graph input where only what is frozen reads it: optimizer state."""
        if 0 <= read.last < self.served.count:
            self._change[read.last] += nbytes
            for group in read.only:
                if not read.without(group):
                    self.alone[group] += nbytes
