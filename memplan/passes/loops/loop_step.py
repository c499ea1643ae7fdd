"""One step of a pair as a problem of its own: what may be stored or recomputed, at what cost.

The nodes are those of the forward body, without copies, and projections: products of inputs and
weights before the loop, a slice of which a step can make from a slice of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from memplan.errors import UsageError
from memplan.ir.graph import Graph, TensorKind
from memplan.ops.book import SAME_ELEMENTS
from memplan.passes.loops.call import LoopCall
from memplan.passes.loops.cell import Cell, CellPlan, constant_tensors, decide, require_matches
from memplan.passes.loops.loop_pairs import RecurrentPair
from memplan.passes.loops.sequences import Projection, projection_of
from memplan.proto.edit import copied
from memplan.proto.loop_node import Slices
from memplan.proto.nodes import subgraphs
from memplan.shapes.tensor_type import TensorType

OPTION = "--scan-recompute"
Seconds = Callable[[Graph], list[float]]
"""Estimated seconds of every node of a graph."""


@dataclass(frozen=True, slots=True)
class PairStep:
    """One step of a pair.

    ``seconds`` (by a node's first output) are those of recomputing it. ``formals`` are names that
    projections read slices of ``Slices`` under.
    """

    pair: RecurrentPair
    cell: Cell
    seconds: Mapping[str, float]
    formals: Mapping[str, Slices]

    @property
    def constants(self) -> set[str]:
        """Tensors that are the same at every step: recomputed without being asked for."""
        return constant_tensors(self.cell)


@dataclass(slots=True)
class _Draft:
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    formals: dict[str, Slices] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    types: dict[str, TensorType] = field(default_factory=dict)


def read_step(
    pair: RecurrentPair,
    graph: Graph,
    nodes: Sequence[onnx.NodeProto],
    estimate: Seconds,
    exact: bool,
) -> PairStep:
    """The step of a pair.

    Args:
        pair: the pair.
        graph: the graph around it.
        nodes: its nodes, by id.
        estimate: seconds of nodes.
        exact: whether a slice of a product has the bits of the product of slices (on the CPU it
            has, but for a single row).
    """
    call, draft = pair.forward, _Draft()
    held, seconds = _Held(graph, pair), estimate(graph)
    for name, found in call.slices.items():
        made = _projection(graph, nodes, found) if exact else None
        if made is None:
            draft.inputs.append(name)
        else:
            projection, product = made
            formal, source = f"{name}/source", projection.source
            draft.nodes.append(
                projection.step_node(formal, name, f"{projection.product.name}/step")
            )
            draft.formals[formal] = Slices(source, 0, found.reversed_)
            draft.inputs.append(formal)
            whole = graph.tensor_named(source)
            assert whole is not None
            draft.types[formal] = TensorType(whole.dtype, whole.shape[1:])
            draft.seconds[name] = seconds[product] / pair.steps
            if held.anyway(found.name):
                draft.held.add(name)
    draft.inputs += [state.before for state in call.states]
    if call.counter:
        draft.inputs.append(call.counter)
    body = graph.bodies[call.index][0].graph
    assert body is not None
    _add_body(call, body, draft, estimate(body))
    draft.types.update(call.types)
    draft.held.update(inner for inner, item in call.stacked if held.anyway(item.name))
    reads = set(pair.reads.values())
    cell = Cell(
        nodes=draft.nodes,
        inputs=tuple(draft.inputs),
        needed=frozenset(reads),
        stacked=frozenset(draft.held) - {*draft.inputs},
        types=draft.types,
        fixed=frozenset(draft.fixed),
        called=_called(call),
    )
    return PairStep(pair, cell, draft.seconds, draft.formals)


def _called(call: LoopCall) -> dict[str, tuple[str, ...]]:
    """The names of tensors that have copies or are stacked. A slice of a product before the loop is
    no tensor of the body, and has none."""
    found: dict[str, tuple[str, ...]] = {}
    for tensor, name in (
        *((call.root(copy), copy) for copy in call.copies),
        *((inner, item.name) for inner, item in call.stacked),
    ):
        found[tensor] = (*found.get(tensor, (tensor,)), name)
    return found | dict.fromkeys(call.slices, ())


def _add_body(call: LoopCall, body: Graph, draft: _Draft, seconds: Sequence[float]) -> None:
    """The nodes of the forward body, reading roots."""
    cost = {body.tensors[t].name: seconds[node.id] for node in body.nodes for t in node.writes}
    for node in call.body.node:
        outputs = [name for name in node.output if name]
        if not outputs or outputs[0] in call.copies or outputs[0] in call.slices:
            continue
        clone = copied(node)
        for slot, name in enumerate(clone.input):
            clone.input[slot] = call.root(name)
        draft.nodes.append(clone)
        draft.seconds[outputs[0]] = cost.get(outputs[0], 0.0)
        if subgraphs(node):
            draft.fixed.update(outputs)


@dataclass(frozen=True, slots=True)
class _Held:
    """What the backward part holds, whatever is decided for the pair."""

    graph: Graph
    pair: RecurrentPair

    def anyway(self, name: str) -> bool:
        """Whether the tensor is resident, an output, or read when the backward loop has run."""
        tensor = self.graph.tensor_named(name)
        assert tensor is not None
        last = max((self._end(reader) for reader in tensor.readers), default=-1)
        resident = tensor.kind is not TensorKind.COMPUTED
        return resident or tensor.is_output or last > self.pair.backward.index

    def _end(self, node: int) -> int:
        """The last node that reads a tensor through views of it."""
        found = self.graph.nodes[node]
        if found.key not in SAME_ELEMENTS:
            return node
        readers = [r for t in found.writes for r in self.graph.tensors[t].readers]
        outputs = any(self.graph.tensors[t].is_output for t in found.writes)
        return len(self.graph.nodes) if outputs else max(map(self._end, readers), default=node)


def _projection(
    graph: Graph, nodes: Sequence[onnx.NodeProto], found: Slices
) -> tuple[Projection, int] | None:
    """The product that a sequence is, if its slices have the same bits: of float32 and at least two
    rows; and the id of the product's node. None for other sequences."""

    def makers(name: str) -> onnx.NodeProto | None:
        tensor = graph.tensor_named(name)
        return nodes[tensor.producer] if tensor is not None and tensor.producer >= 0 else None

    def shape(name: str) -> tuple[int, ...] | None:
        tensor = graph.tensor_named(name)
        return None if tensor is None else tensor.shape

    whole, maker = graph.tensor_named(found.name), makers(found.name)
    if whole is None or maker is None or found.axis != 0 or len(whole.shape) != 3:
        return None
    if whole.shape[1] < 2 or whole.dtype != onnx.TensorProto.FLOAT:
        return None
    projection = projection_of(maker, makers, shape)
    if projection is None:
        return None
    made = graph.tensor_named(projection.product.output[0])
    assert made is not None
    return projection, made.producer


def named(steps: Sequence[PairStep], text: str) -> list[CellPlan]:
    """The plan of every pair's cell if what ``text`` names is recomputed.

    ``text``: ``all``; ``auto``: what stores the fewest bytes without running a contraction twice
    (:mod:`memplan.passes.loops.cell`); or patterns with ``+`` between them, each for tensors of a
    forward body or for what the loop stacks of them.

    Raises:
        UsageError: there is no pair, a pattern matches nothing, or an operator cannot be
            recomputed: some of its outputs are not named, or it would give other values.
    """
    if not steps:
        raise UsageError(
            f"{OPTION} {text}: the graph has no forward Scan or Loop of which a backward one reads "
            "what it stacked, with shapes and number of steps known",
            "memplan analyze lists such pairs",
        )
    kept = [decide(step.cell, text) for step in steps]
    require_matches([step.cell for step in steps], text)
    return kept


def extra_seconds(step: PairStep, kept: CellPlan) -> float:
    """Those of all that a pair recomputes, at all steps together."""
    first = (next(name for name in node.output if name) for node in kept.recomputed)
    return step.pair.steps * sum(step.seconds[name] for name in first)
