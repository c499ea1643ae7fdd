"""What fewer wanted gradients would free of the peak: for ``rewrite --wrt``.

Groups are modules of parameters (``blocks.3`` of ``blocks.3.attn.qkv.weight``), frozen one after
the other in order of the forward part, as people freeze networks. For each: the bytes in memory at
the peak that only its gradients and updates hold, and those of the modules before it. The peak
falls by that at most: with less at this step, another one may be the highest.

A node serves nothing any more once the last group that it serves is frozen, so that is all that is
kept of it: time linear in nodes and readers for all groups together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate

from memplan.ir.graph import Graph, TensorKind
from memplan.ir.phases import Phases
from memplan.ir.reach import trained_outputs
from memplan.ops.book import operator
from memplan.simulate.allocation import Buffer, is_resident
from memplan.simulate.explain import Explainer, TensorClass
from memplan.simulate.timeline import Timeline

_NOBODY = -1  # before the first group


@dataclass(frozen=True, slots=True)
class Narrowing:
    """A module whose parameters might be frozen, those of all modules before it too, and what that
    would free of the peak.

    ``freed_with_earlier_bytes`` in all, ``freed_bytes`` beyond what the modules before it free;
    ``stashes`` are names and bytes of the stashes among the latter.
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
    last, wanted = _served(graph, owners, list(groups.values()))
    explainer = Explainer(timeline, phases, ("",) * len(graph.nodes))
    change = [0] * (len(groups) + 1)
    stashes: list[list[tuple[str, int]]] = [[] for _ in groups]
    for buffer in timeline.live_at(explainer.peak_step):
        for start, end in _gone(buffer, timeline, last, wanted, len(groups)):
            change[start] += buffer.nbytes
            change[end] -= buffer.nbytes
            if explainer.buffer_class(buffer) is TensorClass.STASH:
                stashes[start].append((graph.tensors[buffer.root].name, buffer.nbytes))
    for tensor in graph.tensors:
        if tensor.kind is TensorKind.INPUT and is_resident(tensor):
            # Optimizer state that only what is frozen reads.
            reads = max((last[reader] for reader in tensor.readers), default=_NOBODY)
            if _NOBODY < reads < len(groups):
                change[reads] += tensor.nbytes
    return tuple(
        Narrowing(
            module,
            tuple(graph.tensors[p].name for p in parameters),
            max(change[index], 0),
            freed,
            tuple(stashes[index]),
        )
        for index, ((module, parameters), freed) in enumerate(
            zip(groups.items(), accumulate(change[:-1]), strict=True)
        )
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


def _served(
    graph: Graph, owners: Mapping[int, frozenset[int]], groups: Sequence[Sequence[int]]
) -> tuple[list[int], dict[int, int]]:
    """The last group that every node serves, and that every graph output is of: one behind the last
    for what is always wanted."""
    group_of = {p: index for index, group in enumerate(groups) for p in group}
    wanted = {
        t: max(group_of[p] for p in owners[t]) if t in owners else len(groups)
        for t in graph.outputs
    }
    last = [_NOBODY] * len(graph.nodes)
    for node in reversed(graph.nodes):
        for t in node.writes:
            readers = (last[reader] for reader in graph.tensors[t].readers)
            last[node.id] = max(last[node.id], wanted.get(t, _NOBODY), *readers)
    return last, wanted


def _gone(
    buffer: Buffer, timeline: Timeline, last: Sequence[int], wanted: Mapping[int, int], count: int
) -> Iterator[tuple[int, int]]:
    """From which group on, up to which other, a buffer of the peak goes.

    It goes if nobody is left whom its producer serves, or if no wanted output lies in it and no
    reader that is left comes at the peak or later. One that loses all readers is held to the end,
    unless its node need not make it.
    """
    graph, step_of = timeline.graph, timeline.allocation.step_of
    tensors = [graph.tensors[t] for t in buffer.members]
    readers = [r for t in tensors for r in t.readers]
    made = last[tensors[0].producer]
    held = max((wanted.get(t.id, _NOBODY) for t in tensors), default=_NOBODY)
    read = max((last[r] for r in readers), default=_NOBODY)
    late = (last[r] for r in readers if step_of[r] >= timeline.peak_step)
    read_late = max(late, default=_NOBODY)
    node = graph.nodes[tensors[0].producer]
    optional = node.outputs.index(buffer.root) in operator(node.key).optional_outputs
    starts = {0, *(each for each in (made, held, read, read_late) if 0 <= each < count)}
    begun: int | None = None
    for start in (*sorted(starts), count):
        unread = read_late <= start if read > start else optional
        goes = start < count and (made <= start or (held <= start and unread))
        if goes and begun is None:
            begun = start
        elif not goes and begun is not None:
            yield begun, start
            begun = None
