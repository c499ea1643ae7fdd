"""One step of a pair as a problem of its own: what may be stored, what may run again, at what cost.

The nodes are those of the forward body, without copies, and projections: products of inputs and
weights before the loop, a slice of which a step can make from a slice of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import helper

from memplan.ir.graph import Graph, TensorKind
from memplan.loops.call import LoopCall, Slices
from memplan.loops.cell import Cell, constant_tensors
from memplan.loops.pairs import RecurrentPair
from memplan.ops.memory import EFFECT_OPS, RANDOM_OPS
from memplan.proto.nodes import subgraphs
from memplan.shapes.tensor_type import TensorType

Seconds = Callable[[Graph], list[float]]
"""Estimated seconds of every node of a graph."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pair.

    ``weights`` are bytes per step that the backward part holds if a tensor is stored; 0 for what
    it holds anyway. ``seconds`` (by a node's first output) are those of running it again.
    ``formals`` are names that projections read slices of ``Slices`` under. ``fixed`` are outputs
    of nodes that cannot run again.
    """

    pair: RecurrentPair
    cell: Cell
    weights: Mapping[str, int]
    seconds: Mapping[str, float]
    formals: Mapping[str, Slices]
    fixed: frozenset[str]

    @property
    def constants(self) -> set[str]:
        """Tensors that are the same at every step: made again without being asked for."""
        return constant_tensors(self.cell)


@dataclass(slots=True)
class _Draft:
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    formals: dict[str, Slices] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    types: dict[str, TensorType] = field(default_factory=dict)


def read_step(
    pair: RecurrentPair,
    graph: Graph,
    nodes: Sequence[onnx.NodeProto],
    estimate: Seconds,
    exact: bool,
) -> Step:
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
    held = _Held(graph, pair)
    for name, found in call.slices.items():
        made = _projection(graph, nodes, found, name) if exact else None
        if made is None:
            draft.inputs.append(name)
        else:
            node, source, seconds = made
            draft.nodes.append(node)
            draft.formals[node.input[0]] = Slices(source, 0, found.reversed_)
            draft.inputs.append(node.input[0])
            draft.weights[node.input[0]] = held.weight(source, call.steps)
            whole = graph.tensor_named(source)
            assert whole is not None
            draft.types[node.input[0]] = TensorType(whole.dtype, whole.shape[1:])
            draft.seconds[name] = seconds(call.steps, estimate(graph))
        draft.weights[name] = held.weight(found.name, call.steps)
    draft.inputs += [state.before for state in call.states]
    if call.counter:
        draft.inputs.append(call.counter)
        draft.weights[call.counter] = 0
    _add_body(call, draft, estimate(call.graph))
    _weigh(call, draft, held)
    reads = set(pair.reads.values())
    cell = Cell(
        nodes=draft.nodes,
        inputs=tuple(draft.inputs),
        needed=frozenset(reads),
        stacked=frozenset(n for n, weight in draft.weights.items() if not weight) - {*draft.inputs},
        types=draft.types,
    )
    return Step(pair, cell, draft.weights, draft.seconds, draft.formals, frozenset(draft.fixed))


def _add_body(call: LoopCall, draft: _Draft, seconds: Sequence[float]) -> None:
    """The nodes of the forward body, reading roots."""
    cost = {
        call.graph.tensors[t].name: seconds[node.id]
        for node in call.graph.nodes
        for t in node.writes
    }
    for node in call.body.node:
        outputs = [name for name in node.output if name]
        if not outputs or outputs[0] in call.copies or outputs[0] in call.slices:
            continue
        clone = onnx.NodeProto.FromString(node.SerializeToString())
        for slot, name in enumerate(clone.input):
            clone.input[slot] = call.root(name)
        draft.nodes.append(clone)
        draft.seconds[outputs[0]] = cost.get(outputs[0], 0.0)
        key = f"{'' if node.domain == 'ai.onnx' else node.domain}:{node.op_type}"
        if key in RANDOM_OPS | EFFECT_OPS or any(True for _ in subgraphs(node)):
            draft.fixed.update(outputs)


def _weigh(call: LoopCall, draft: _Draft, held: _Held) -> None:
    """Bytes of what the body computes, and of the states before the step."""
    for name, tensor in call.tensors.items():
        draft.types[name] = TensorType(tensor.dtype, tensor.shape)
        draft.weights.setdefault(name, tensor.nbytes)
    for inner, found in call.stacked:
        if held.anyway(found.name):
            draft.weights[inner] = 0
    for state in call.states:
        homes = [
            found.name for inner, found in call.stacked if inner in (state.before, state.after)
        ]
        if any(held.anyway(name) for name in homes):
            draft.weights[state.before] = 0


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

    def weight(self, name: str, steps: int) -> int:
        """Bytes of one slice; 0 if it is held anyway."""
        tensor = self.graph.tensor_named(name)
        assert tensor is not None
        return 0 if self.anyway(name) else tensor.nbytes // steps

    def _end(self, node: int) -> int:
        """The last node that reads a tensor through views of it."""
        found = self.graph.nodes[node]
        if found.op not in ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"):
            return node
        readers = [r for t in found.writes for r in self.graph.tensors[t].readers]
        outputs = any(self.graph.tensors[t].is_output for t in found.writes)
        return len(self.graph.nodes) if outputs else max(map(self._end, readers), default=node)


_Product = tuple[onnx.NodeProto, str, Callable[[int, list[float]], float]]


def _projection(
    graph: Graph, nodes: Sequence[onnx.NodeProto], found: Slices, inner: str
) -> _Product | None:
    """How a step makes its slice ``inner`` of a product; None where the sequence is none.

    ``MatMul(X, W)``, or ``Reshape(Gemm(Reshape(X), W, b))`` as LSTM, GRU and RNN are written out,
    of float32 and at least two rows.
    """
    whole = graph.tensor_named(found.name)
    if whole is None or whole.producer < 0 or found.axis != 0 or len(whole.shape) != 3:
        return None
    maker = nodes[whole.producer]
    product, source, others = maker, maker.input[0], list(maker.input[1:])
    if maker.op_type == "Reshape":
        flat = _maker(graph, nodes, maker.input[0])
        before = flat and flat.op_type == "Gemm" and _maker(graph, nodes, flat.input[0])
        if not flat or not before or before.op_type != "Reshape":
            return None
        product, source, others = flat, before.input[0], list(flat.input[1:])
        if any(a.name == "transA" and a.i for a in flat.attribute):
            return None
    elif maker.op_type != "MatMul":
        return None
    given = graph.tensor_named(source)
    ranks = [len(t.shape) for t in map(graph.tensor_named, others) if t is not None]
    if given is None or len(given.shape) != 3 or given.shape[:2] != whole.shape[:2]:
        return None
    if ranks[:1] != [2] or ranks[1:] not in ([], [1]) or whole.shape[1] < 2 or whole.dtype != 1:
        return None
    formal = f"{inner}/source"
    node = helper.make_node(
        product.op_type, [formal, *others], [inner], name=f"{product.name}/step"
    )
    node.attribute.extend(product.attribute)
    made = graph.tensor_named(product.output[0])
    assert made is not None
    return node, source, lambda steps, seconds: seconds[made.producer] / steps


def _maker(graph: Graph, nodes: Sequence[onnx.NodeProto], name: str) -> onnx.NodeProto | None:
    tensor = graph.tensor_named(name)
    return nodes[tensor.producer] if tensor is not None and tensor.producer >= 0 else None
