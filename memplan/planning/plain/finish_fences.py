"""Make a planned model keep its budget in a plain session: fences and pins.

A plain ``InferenceSession(path)`` merges equal nodes, runs a depth-first order and reuses dead
buffers; from the second run on it holds a block for all (docs/how/rewriting.md). The file
itself undoes the first three: *fences* keep recomputed nodes apart from what they repeat, and on
graph inputs and constants (*input fences*) hide shapes from buffer reuse; *pins* (``Size`` nodes
that nobody reads, at the end of the file) decide what the depth-first search visits when. Which of
them the budget needs is found by simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NamedTuple

import onnx

from memplan.deadline import Deadline
from memplan.ir.build_graph import build_graph
from memplan.ir.graph import Graph, Node
from memplan.planning.plain.fences import (
    fence_clones,
    fence_maker,
    hide_dimensions,
    is_ours,
    marked,
    read_instead,
)
from memplan.planning.plain.input_fences import InputFence, input_fences_for
from memplan.proto.edit import copied
from memplan.proto.metadata import get_metadata, set_metadata
from memplan.proto.nodes import is_constant
from memplan.proto.opset import allow_initializers
from memplan.shapes.hidden import HIDDEN_KEY, hidden_shapes
from memplan.shapes.tensor_type import TensorType, Types
from memplan.shapes.visible import with_visibility
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.timeline import LaterRuns, Timeline, later_runs, simulate

_NEVER = Deadline()
_EVERY = (0, 64, 16, 4)
"""Behind one chain of nodes in so many there is a pin, if that is enough; 0: behind none."""
_STRETCHES, _TIMES = 8, 2
"""A plan is divided into so many stretches, and what is left of its pins once more."""


class Peaks(NamedTuple):
    """Bytes with workspace and resident ones: of the first run, and of every later one; or what
    these may be."""

    first: int
    later: int

    def over(self, limits: Peaks) -> int:
        """Bytes over the limits; not positive where they hold."""
        return max(self.first - limits.first, self.later - limits.later)

    @classmethod
    def of(cls, timeline: Timeline, later: LaterRuns) -> Peaks:
        """Those of a simulation."""
        return cls(timeline.peak_with_workspace_bytes, later.peak_with_workspace_bytes)


@dataclass(frozen=True, slots=True)
class PlainModel:
    """A model for plain sessions, and what it does there.

    ``timeline`` is the first run's, ``later`` what every later run needs. ``fences``,
    ``input_fences`` and ``pins`` count what was added: input fences on the graph inputs and
    constants ``fenced``, pins that read the tensors ``pinned``. ``notes``: what to know about it.
    ``held``: the nodes that the runtime makes of it at load, if it was asked; where they differ,
    ``timeline`` and ``later`` are theirs, and ``own`` is that of the file's nodes.
    """

    model: onnx.ModelProto
    timeline: Timeline
    later: LaterRuns
    fences: int
    fenced: tuple[str, ...]
    pinned: tuple[str, ...]
    notes: tuple[str, ...] = ()
    held: Graph | None = None
    own: Timeline | None = None

    @property
    def of_file(self) -> Timeline:
        """The simulation of the file's own nodes."""
        return self.timeline if self.own is None else self.own

    @property
    def tuned_peak_bytes(self) -> int:
        """What the file takes in a tuned session, workspace included."""
        tuned = session_kind("tuned", self.timeline.session.provider)
        return simulate(self.of_file.graph, tuned).peak_with_workspace_bytes

    @property
    def input_fences(self) -> int:
        """How many there are."""
        return len(self.fenced)

    @property
    def pins(self) -> int:
        """How many there are."""
        return len(self.pinned)

    @property
    def peaks(self) -> Peaks:
        """With workspace and resident bytes."""
        return Peaks.of(self.timeline, self.later)

    @property
    def added_nodes(self) -> int:
        """Nodes that compute nothing of the model."""
        return sum(is_ours(node) for node in self.model.graph.node)


class Draft:
    """A planned model with all fences, and what pins on its nodes would read.

    ``pinnable``: by node, in plan order. ``ends``: the nodes whose pins keep the plan's order.
    """

    def __init__(
        self, model: onnx.ModelProto, types: Types, dims: Mapping[str, int], kind: SessionKind
    ) -> None:
        """Fence a copy of ``model``.

        Args:
            model: in plan order, recomputed nodes marked.
            types: of every tensor, dimensions bound.
            dims: what symbolic dimensions are bound to.
            kind: a default session.

        Raises:
            UsageError: the model has no graph input.
        """
        self.original, self.dims, self.kind = model, dims, kind
        self.maker = fence_maker(model.graph)
        self.constants = [copied(node) for node in model.graph.node if is_constant(node)]
        nodes = [copied(node) for node in model.graph.node if not is_constant(node)]
        nodes = hide_dimensions(nodes, _outside(model.graph), self.maker)
        self.nodes, self.fences = fence_clones(nodes, self.maker)
        self.input_fences = input_fences_for(model.graph, types, self.maker)
        added = (*self.maker.nodes, *self.nodes, *(fence.node for fence in self.input_fences))
        self.types = _with_twins(types, added)
        self.types[self.maker.no_axes] = TensorType(onnx.TensorProto.INT64, (0,))
        graph = self.graph_of(self.written(self.input_fences))
        own = [node for node in graph.nodes if not node.name.startswith(self.maker.prefix)]
        self.pinnable = dict(_pinnable(graph, own))
        self.ends = [node for node in chain_ends(graph, own) if node in self.pinnable]

    def written(
        self, input_fences: Sequence[InputFence], pins: Sequence[onnx.NodeProto] = ()
    ) -> onnx.ModelProto:
        """The model with some of the input fences and with pins, which come in plan order.

        They stand at the end, the first one last: the runtime visits the last node first.
        """
        result = copied(self.original)
        del result.graph.node[:]
        del result.graph.value_info[:]
        nodes = read_instead(
            self.nodes, {name: fence.twin for fence in input_fences for name in fence.sources}
        )
        uses_axes = bool(input_fences) or any(
            node.op_type == "Unsqueeze" and is_ours(node) for node in nodes
        )
        result.graph.node.extend(self.constants)
        if uses_axes:
            # Fences of a further generation read further axes.
            axes = self.maker.nodes if self.fences else self.maker.nodes[:2]
            result.graph.node.extend(axes)
            allow_initializers(result)
            result.graph.initializer.extend(self.maker.constants())
        result.graph.node.extend((*(fence.node for fence in input_fences), *nodes, *reversed(pins)))
        return result

    def graph_of(self, model: onnx.ModelProto) -> Graph:
        """The graph as the runtime sees it."""
        types = _with_twins(self.types, (n for n in model.graph.node if is_ours(n)))
        visible = with_visibility(model, types)
        return build_graph(model, visible)

    def finished(self, count: int, nodes: Set[str]) -> PlainModel:
        """The model with the first so many input fences and pins on these nodes, simulated."""
        pinned = [tensor for node, tensor in self.pinnable.items() if node in nodes]
        return finished_with(self, self.input_fences[:count], pinned)


def finish(
    draft: Draft,
    limits: Peaks,
    needed: frozenset[str] = frozenset(),
    deadline: Deadline = _NEVER,
) -> PlainModel:
    """A file that keeps the limits, with few pins and few input fences; where none does, the one
    that breaks them by least.

    All of them come first, which is the order of the plan. Input fences are there in the order in
    which they are needed: the fewest are tried, and then how many is found by halving.

    Args:
        draft: what is planned, fenced.
        limits: budgets for the first run and for later ones.
        needed: names of nodes that keep their pins.
        deadline: for doing without what the limits do not need.
    """
    most, ends = len(draft.input_fences), draft.ends
    best = draft.finished(most, needed.union(ends))
    over = _excess(best, limits)
    for every in _EVERY:
        if deadline.passed:
            break
        fewer = draft.ends[::every] if every else []
        made = draft.finished(most, needed.union(fewer))
        excess = _excess(made, limits)
        if excess <= 0 or excess < over:
            best, over, ends = made, excess, fewer
        if excess <= 0:
            break
    if over > 0:
        return best
    count = least = sum(fence.fixed for fence in draft.input_fences)
    while least < most:
        made = draft.finished(count, needed.union(ends))
        if _excess(made, limits) <= 0:
            best, most = made, count
        else:
            least = count + 1
        if deadline.passed:
            break
        count = (least + most) // 2
    # Order matters where memory is full, and that is in few places.
    for _ in range(_TIMES):
        size = max(1, -(-len(ends) // _STRETCHES))
        for first in range(0, len(ends), size)[::-1]:
            if deadline.passed:
                return best
            fewer = ends[:first] + ends[first + size :]
            made = draft.finished(most, needed.union(fewer))
            if _excess(made, limits) <= 0:
                best, ends = made, fewer
    return best


def _excess(plain: PlainModel, limits: Peaks) -> int:
    """Bytes over the limits, in the order of the file as in the default one."""
    graph, kind = plain.timeline.graph, plain.timeline.session
    by_file = simulate(graph, replace(kind, priority_order=True))
    every = plain.peaks, Peaks.of(by_file, later_runs(by_file))
    return max(peaks.over(limits) for peaks in every)


def finished_with(
    draft: Draft, input_fences: Sequence[InputFence], pinned: Sequence[str]
) -> PlainModel:
    """The model with these input fences, and pins that read the tensors ``pinned``, simulated."""
    model = draft.written(input_fences, _pins(pinned, draft.maker.prefix))
    graph = draft.graph_of(model)
    timeline = simulate(graph, draft.kind)
    _note_types(model, draft)
    fenced = tuple(fence.sources[0] for fence in input_fences)
    return PlainModel(model, timeline, later_runs(timeline), draft.fences, fenced, tuple(pinned))


def _pins(names: Sequence[str], prefix: str) -> list[onnx.NodeProto]:
    """A node per pin, in plan order: ``Size``, which is never folded, unlike ``Shape``."""
    return [
        marked("pin", "Size", [name], f"{prefix}pin_{count}/{name}")
        for count, name in enumerate(names)
    ]


def chain_ends(graph: Graph, own: Sequence[Node]) -> Iterator[str]:
    """Names of the nodes whose pins make a plain session run all nodes in their order.

    The depth-first search goes from a node to the last one that it reads from first. So a node that
    the next one reads from needs no pin: the search gets to it from there, and from it to those
    before it, down to the first whose sources have all run. What memplan added is passed through:
    fences take no memory, wherever they run.

    Args:
        graph: in plan order.
        own: its nodes, without what memplan added.
    """
    places = {node.id for node in own}
    for node, reader in zip_longest(own, own[1:]):
        if reader is None or node.id not in _sources(graph, reader, places):
            yield node.name


def _sources(graph: Graph, node: Node, own: Set[int]) -> set[int]:
    """The nodes of ``own`` that make what ``node`` reads, if need be through fences."""
    found: set[int] = set()
    waiting = list(node.reads)
    while waiting:
        producer = graph.tensors[waiting.pop()].producer
        if producer in own:
            found.add(producer)
        elif producer >= 0:
            waiting += graph.nodes[producer].reads[:1]
    return found


def _pinnable(graph: Graph, own: Sequence[Node]) -> Iterator[tuple[str, str]]:
    """Nodes, and the output of each that a pin would read: one that nobody else reads, as it is
    freed then."""
    for node in own:
        counted = [graph.tensors[t] for t in node.writes if graph.tensors[t].counted]
        unread = [tensor for tensor in counted if not tensor.readers and not tensor.is_output]
        if counted:
            yield node.name, (*unread, *counted)[0].name


def _note_types(model: onnx.ModelProto, draft: Draft) -> None:
    """Shapes that the file no longer states, in its metadata."""
    hidden = hidden_shapes(draft.original)
    if not draft.dims:
        made = {name for node in model.graph.node for name in node.output if name}
        for name in sorted(made - set(hidden)):
            value = draft.types.get(name)
            if value is not None and value.dtype and value.shape is not None:
                hidden[name] = [value.dtype, list(value.shape)]
    set_metadata(model, {**get_metadata(model), HIDDEN_KEY: hidden})


def _with_twins(types: Types, nodes: Iterable[onnx.NodeProto]) -> dict[str, TensorType]:
    """``types``, and those of the nodes that were added."""
    result = dict(types)
    for node in nodes:
        if not is_ours(node) or node.output[0] in result:
            continue
        if node.op_type == "Unsqueeze" and node.input[0] in result:
            result[node.output[0]] = result[node.input[0]]
        elif node.op_type in ("Size", "Mul"):
            shape = () if node.op_type == "Size" else (0,)
            result[node.output[0]] = TensorType(onnx.TensorProto.INT64, shape)
    return result


def _outside(graph: onnx.GraphProto) -> set[str]:
    """Graph inputs and constants."""
    names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return names | {node.output[0] for node in graph.node if is_constant(node)}
