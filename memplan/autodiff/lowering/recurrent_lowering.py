"""``LSTMTraining`` and ``GRUTraining`` with their gradients: ONNX's layer, as ``grad`` has it.

The foreign layer saves its gates for the foreign gradient. What is saved here is what the rules of
``grad`` read, in the ``Scan`` that they write the layer as. So both nodes are lowered together, to
the training graph of one layer: its forward part stands for the layer, its backward part for the
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from memplan.autodiff.backward import Request, build_gradients
from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.lowering.lowering_registry import LoweringEntry, Results
from memplan.errors import ModelError
from memplan.ir.graph import Phase
from memplan.proto.edit import copied
from memplan.proto.metadata import PHASE_KEY, node_metadata
from memplan.proto.nodes import subgraphs
from memplan.shapes.tensor_type import UNKNOWN, TensorType, read_type, value_info

_GRADED = (0, 1, 2, 3, 5, 6)  # input slots that have a gradient: all but the sequence lengths


@dataclass(frozen=True, slots=True)
class _Kind:
    """A layer of onnxruntime-training: ONNX's operator, how many outputs are its own, the slot of
    the gates, and the operator that reads them."""

    op: str
    outputs: int
    gates: int
    gradient: str


_KINDS = {
    "LSTMTraining": _Kind("LSTM", 3, 4, "LSTMGrad"),
    "GRUTraining": _Kind("GRU", 2, 2, "GRUGrad"),
}
RECURRENT = frozenset(_KINDS) | {kind.gradient for kind in _KINDS.values()}
"""The operators that :class:`Recurrent` lowers."""


@dataclass(frozen=True, slots=True)
class _Gradient:
    """The gradient of a layer, which reads the gates at ``slot``; behind them come the gradients of
    the outputs."""

    node: onnx.NodeProto
    slot: int

    def of_output(self, output: int) -> str:
        """The tensor that is the gradient of an output of the layer; empty if there is none."""
        place = self.slot + 1 + output
        return self.node.input[place] if place < len(self.node.input) else ""

    def of_inputs(self) -> dict[int, str]:
        """The gradients that it gives, by input slot of the layer."""
        pairs = zip(_GRADED, self.node.output, strict=False)
        return {slot: name for slot, name in pairs if name}


@dataclass(frozen=True, slots=True)
class _Part:
    """Nodes that wait for their place, types of what they make, and results by input slot."""

    nodes: tuple[onnx.NodeProto, ...]
    types: Mapping[str, TensorType]
    results: Mapping[int, str]


class Recurrent:
    """The lowerings of recurrent layers of one file."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.readers = {
            name: _Gradient(node, slot)
            for node in graph.node
            if node.op_type in RECURRENT and node.op_type not in _KINDS
            for slot, name in enumerate(node.input)
            if name
        }
        self.waiting: dict[str, _Part] = {}

    @property
    def entries(self) -> dict[str, LoweringEntry]:
        """What the walk takes it for."""
        layers = dict.fromkeys(_KINDS, LoweringEntry(self.layer, 3))
        return layers | {k.gradient: LoweringEntry(self.gradient, 3) for k in _KINDS.values()}

    def layer(self, ctx: Context) -> Results:
        """The forward part; ONNX's own operator, if there is no gradient."""
        kind = _KINDS[ctx.node.op_type]
        gates = ctx.node.output[kind.gates] if kind.gates < len(ctx.node.output) else ""
        found = self.readers.get(gates)
        if found is None or found.node.op_type != kind.gradient:
            return _plain(ctx, kind)
        model = _differentiated(ctx, kind, found)
        names = _names(ctx, found)
        _rename(model.graph, names)
        types = {v.name: read_type(v.type) for v in (*model.graph.value_info, *model.graph.output)}
        ctx.emitter.initializers.update({t.name: t for t in model.graph.initializer})
        for tensor in model.graph.initializer:
            ctx.emitter.types[tensor.name] = TensorType(tensor.data_type, tuple(tensor.dims))
        sides: dict[bool, list[onnx.NodeProto]] = {False: [], True: []}
        for node in model.graph.node:
            behind = node_metadata(node).get(PHASE_KEY) == Phase.BACKWARD
            del node.metadata_props[:]
            sides[behind].append(copied(node))
        _add(ctx.emitter, sides[False], types)
        results = {slot: names(f"x{slot}_grad") for slot in found.of_inputs()}
        self.waiting[found.node.name] = _Part(tuple(sides[True]), types, results)
        made = [
            ctx.tensor(names(f"y{k}")) if name else None
            for k, name in enumerate(ctx.node.output[: kind.outputs])
        ]
        # Nobody but the gradient reads what else the layer saved: it is not there any more.
        return [*made, *[ctx.const(0.0, ctx.tensors[0].dtype)] * (len(ctx.outputs) - len(made))]

    def gradient(self, ctx: Context) -> Results:
        """The backward part.

        Raises:
            ModelError: there is no layer before it.
        """
        part = self.waiting.pop(ctx.node.name, None)
        if part is None:
            raise ModelError(
                f"{ctx.node.op_type} '{ctx.node.name}' does not read the gates of a layer",
                "it is lowered together with the layer that it is the gradient of",
            )
        _add(ctx.emitter, part.nodes, part.types)
        slots = zip(_GRADED, ctx.node.output, strict=False)
        return [ctx.tensor(part.results[slot]) if name else None for slot, name in slots]


def _plain(ctx: Context, kind: _Kind) -> Results:
    attributes = {item.name: helper.get_attribute_value(item) for item in ctx.node.attribute}
    return ctx.ops(kind.op, *ctx.inputs, outputs=kind.outputs, **attributes)


def _differentiated(ctx: Context, kind: _Kind, gradient: _Gradient) -> onnx.ModelProto:
    """The training graph of one layer: inputs ``x0``, ``x1``, ..., outputs ``y0``, ..., gradients
    of these ``dy0``, ..., and of those ``x0_grad``, ...

    Raises:
        ModelError: ``grad`` has no gradient of such a layer.
    """
    node = ctx.node
    inputs = [f"x{k}" if name else "" for k, name in enumerate(node.input)]
    outputs = [f"y{k}" for k in range(kind.outputs)]
    layer = helper.make_node(kind.op, inputs, outputs, name=node.name)
    layer.attribute.extend(node.attribute)
    given = [
        value_info(f"x{k}", value.type) for k, value in enumerate(ctx.inputs) if value is not None
    ]
    stated = onnx.NodeProto(op_type=kind.op, input=node.input, output=outputs)
    stated.attribute.extend(node.attribute)
    made = [
        value_info(name, found)
        for name, found in zip(outputs, ctx.emitter.infer(stated), strict=True)
    ]
    graph = helper.make_graph([layer], "layer", given, made)
    imports = [helper.make_opsetid("", ctx.opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=ctx.emitter.ir_version)
    ys = [k for k in range(kind.outputs) if gradient.of_output(k)]
    xs = tuple(f"x{slot}" for slot in gradient.of_inputs())
    if not ys or not xs:
        raise ModelError(
            f"{kind.gradient} '{gradient.node.name}' reads no gradient, or gives none",
            "export the model again; the file is damaged or was edited",
        )
    seeds = tuple(f"dy{k}" for k in ys)
    return build_gradients(model, Request(tuple(f"y{k}" for k in ys), xs, seeds))


def _names(ctx: Context, gradient: _Gradient) -> Callable[[str], str]:
    """What the tensors of a layer's training graph are called in the file."""
    known = {f"x{k}": value.name for k, value in enumerate(ctx.inputs) if value is not None}
    known |= {f"dy{k}": gradient.of_output(k) for k in range(3)}

    def name_of(name: str) -> str:
        if name and name not in known:
            own = name.startswith(f"{ctx.node.name}/")
            known[name] = ctx.emitter.fresh(name if own else f"{ctx.node.name}/{name}")
        return known.get(name, "")

    return name_of


def _rename(graph: onnx.GraphProto, rename: Callable[[str], str]) -> None:
    """Give every tensor of a graph and of its bodies another name, in place."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = rename(value.name)
    for tensor in graph.initializer:
        tensor.name = rename(tensor.name)
    for node in graph.node:
        node.input[:] = [rename(name) for name in node.input]
        node.output[:] = [rename(name) for name in node.output]
        for body in subgraphs(node):
            _rename(body, rename)


def _add(
    emitter: Emitter, nodes: Sequence[onnx.NodeProto], types: Mapping[str, TensorType]
) -> None:
    for node in nodes:
        node.name = emitter.fresh(node.name)
        emitter.add(node, tuple(types.get(name, UNKNOWN) for name in node.output))
