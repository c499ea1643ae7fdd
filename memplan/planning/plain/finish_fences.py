"""Make a planned model keep its budget in a plain session: fences and pins.

A plain ``InferenceSession(path)`` merges equal nodes, runs a depth-first order and reuses dead
buffers; from the second run on it holds a block for all (docs/how/rewriting.md). The file
itself undoes the first three: *fences* keep recomputed nodes apart from what they repeat, and on
graph inputs and constants (*input fences*) hide shapes from buffer reuse; *pins* (``Size`` nodes
that nobody reads, at the end of the file) decide what the depth-first search visits when. The
fewest that keep the budget are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from memplan.deadline import Deadline
from memplan.ir.build_graph import build_graph
from memplan.ir.graph import Graph
from memplan.planning.plain.fences import (
    fence_clones,
    fence_maker,
    hide_dimensions,
    is_ours,
    marked,
    read_instead,
)
from memplan.planning.plain.input_fences import (
    InputFence,
    fewest_input_fences,
    input_fences_for,
    visible_with,
)
from memplan.planning.plain.plain_problem import plain_session, seen_as
from memplan.planning.plan import Rejected
from memplan.proto.edit import copied
from memplan.proto.metadata import get_metadata, set_metadata
from memplan.proto.nodes import is_constant
from memplan.proto.opset import allow_initializers
from memplan.shapes.hidden import HIDDEN_KEY, hidden_shapes
from memplan.shapes.tensor_type import TensorType, Types
from memplan.shapes.visible import with_visibility
from memplan.simulate.pattern import LaterRuns, later_runs
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.timeline import Timeline, resident_bytes, simulate
from memplan.solver.pins import Peaks, fewest_pins, free_pins, plain_peaks, within


@dataclass(frozen=True, slots=True)
class PlainModel:
    """A model for plain sessions, and what it does there.

    ``timeline`` is the first run's, ``later`` what every later run needs, ``tuned_peak_bytes`` what
    the file takes in a tuned session, workspace included. ``fences``, ``input_fences`` and ``pins``
    count what was added: input fences on the graph inputs and constants ``fenced``, pins that read
    the tensors ``pinned``. ``notes``: what to know about it. ``held``: the nodes that the runtime
    makes of it at load, if it was asked; where they differ, ``timeline`` and ``later`` are theirs,
    and ``own`` is that of the file's nodes.
    """

    model: onnx.ModelProto
    timeline: Timeline
    later: LaterRuns
    tuned_peak_bytes: int
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
        return Peaks(self.timeline.peak_with_workspace_bytes, self.later.peak_with_workspace_bytes)

    @property
    def added_nodes(self) -> int:
        """Nodes that compute nothing of the model."""
        return sum(is_ours(node) for node in self.model.graph.node)


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets in bytes, resident ones included: for the first run and for every later one."""

    first: int
    later: int

    def excess(self, peaks: Peaks, resident: int) -> int:
        """Bytes over the limits; not positive where they hold."""
        return resident + max(peaks.first - self.first, peaks.later - self.later)

    def without(self, resident: int) -> Peaks:
        """What is left for dynamic bytes and workspace."""
        return Peaks(self.first - resident, self.later - resident)


class Draft:
    """A planned model with all fences, whose peaks can be looked at."""

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
        self.whole = self.written(self.input_fences)
        self.graph = self.graph_of(self.whole)
        self.session = plain_session(self.graph, kind)
        self.resident = resident_bytes(self.graph)

    def peaks(self) -> Peaks:
        """With every input fence and every pin: order as planned, hardly any reuse.

        Without resident bytes, and without what pins take themselves: few of them will be left.
        """
        return plain_peaks(free_pins(self.session), self.session.pin_of >= 0, False)

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

    def fewest_input_fences(self, budget: Peaks, deadline: Deadline) -> list[InputFence]:
        """The input fences that cannot be spared when every node is pinned."""
        every = self.session.pin_of >= 0

        def fits(visible: frozenset[str]) -> bool:
            session = free_pins(seen_as(self.session, self.graph, visible))
            return within(plain_peaks(session, every, False), budget)

        seen = visible_with(self.whole, self.types, self.input_fences)
        return fewest_input_fences(self.input_fences, fits, seen, deadline)


def finish(
    draft: Draft, limits: Limits, deadline: Deadline, needed: frozenset[str] = frozenset()
) -> PlainModel:
    """Give up input fences and pins while the limits hold, and check the rest by simulation.

    Args:
        draft: a draft whose peaks keep the limits.
        limits: budgets for the first run and for later ones.
        deadline: of the search; where it ends early, more stand than are needed.
        needed: names of nodes that keep their pins.

    Raises:
        Rejected: search and simulation disagree. That is our bug.
    """
    budget = limits.without(draft.resident)
    input_fences = draft.fewest_input_fences(budget, deadline.share(0.5))
    model = draft.written(input_fences)
    graph = draft.graph_of(model)
    session = plain_session(graph, draft.kind)
    stay = np.asarray([node.name in needed for node in graph.nodes], dtype=np.bool_)
    pinned, expected = fewest_pins(session, budget, deadline.left, stay & (session.pin_of >= 0))
    names = [graph.tensors[int(session.pin_of[i])].name for i in np.flatnonzero(pinned)]
    result = finished_with(draft, input_fences, names)
    _check(result.timeline, result.later, expected)
    return result


def finished_with(
    draft: Draft, input_fences: Sequence[InputFence], pinned: Sequence[str]
) -> PlainModel:
    """The model with these input fences, and pins that read the tensors ``pinned``, simulated."""
    model = draft.written(input_fences, _pins(pinned, draft.maker.prefix))
    graph = draft.graph_of(model)
    timeline = simulate(graph, draft.kind)
    _note_types(model, draft)
    tuned = simulate(graph, session_kind("tuned", draft.kind.provider))
    return PlainModel(
        model,
        timeline,
        later_runs(timeline),
        tuned.peak_with_workspace_bytes,
        draft.fences,
        tuple(fence.sources[0] for fence in input_fences),
        tuple(pinned),
    )


def _pins(names: Sequence[str], prefix: str) -> list[onnx.NodeProto]:
    """A node per pin, in plan order: ``Size``, which is never folded, unlike ``Shape``."""
    return [
        marked("pin", "Size", [name], f"{prefix}pin_{count}/{name}")
        for count, name in enumerate(names)
    ]


def _check(timeline: Timeline, later: LaterRuns, expected: Peaks) -> None:
    """The search's peaks against those of a simulation that knows nothing of it."""
    resident = timeline.resident_bytes
    found = (
        timeline.peak_with_workspace_bytes - resident,
        later.peak_with_workspace_bytes - resident,
    )
    if found != tuple(expected):
        raise Rejected(
            f"search and simulator disagree on the plain session: {tuple(expected)} and {found} B"
        )


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
