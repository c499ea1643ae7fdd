"""A training graph of onnxruntime-training → its forward part, and what it trained.

Its gradients are left out, to be made anew: what they are gradients of, names tell. ``X_grad`` is
that of X, where it is a graph output, or added to the buffer ``X_grad.accumulation.buffer`` in
place by ``InPlaceAccumulatorV2``. At ``YieldOp`` ORTModule handed the outputs of the PyTorch module
to PyTorch, whose own autograd brought their gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import helper

from memplan.autodiff.forward.convert import ADOPTED, ATEN, in_own_domain, is_foreign
from memplan.autodiff.forward.foreign import is_known
from memplan.autodiff.lowering.optimizer_model import OPTIMIZERS
from memplan.errors import ModelError
from memplan.proto.edit import copied, drop_named, live_nodes, remove_unread, replace_nodes
from memplan.proto.names import defined_names
from memplan.proto.nodes import all_nodes, domain_of, names_read
from memplan.proto.opset import default_opset
from memplan.shapes.prepare import FUNCTION_OPS, inline_functions, name_nodes
from memplan.shapes.training_ops import differentiated

ACCUMULATOR, YIELD = "InPlaceAccumulatorV2", "YieldOp"
_BUFFER = "_grad.accumulation.buffer"
_BESIDE = frozenset({ACCUMULATOR, YIELD, "BroadcastGradientArgs"})
"""Operators of a backward part that are no gradients, and need not be known."""


@dataclass(frozen=True, slots=True)
class Stripped:
    """A forward graph, and what the training graph said of it.

    Attributes:
        model: the forward graph.
        trained: what the training graph had gradients of.
        brought: outputs that PyTorch was handed → the gradient that it brought, which is read.
        handed: whether there was such a boundary.
        begun: outputs of which the file stores a gradient: 1, that of a loss.
        replaced: foreign operators of the training graph, with how often.
    """

    model: onnx.ModelProto
    trained: tuple[str, ...]
    brought: Mapping[str, str]
    handed: bool
    begun: frozenset[str]
    replaced: Mapping[str, int]


def strip(model: onnx.ModelProto) -> Stripped:
    """The forward part of a training graph, which is not changed.

    Raises:
        ModelError: there is no forward part, or a foreign operator is not known; all are named.
    """
    flat, _ = inline_functions(model, frozenset(FUNCTION_OPS))
    result = copied(in_own_domain(flat))
    graph = result.graph
    name_nodes(graph)
    sums = [node for node in graph.node if node.op_type == ACCUMULATOR]
    ends = [node for node in graph.node if node.op_type == YIELD]
    own = {name for node in sums for name in node.output}
    outputs = [value.name for value in graph.output if value.name not in own]
    defined = set(defined_names(graph, bodies=False))
    trained = list(dict.fromkeys([*_accumulated(sums), *_named(outputs, defined)]))
    handed = list(dict.fromkeys(name for node in ends for name in node.input))
    plain = [name for name in outputs if differentiated(name) not in trained]
    if (trained or plain) and not handed and all(map(differentiated, plain)):
        raise ModelError(
            "the file holds a backward part alone: all that it computes are gradients",
            "give the training graph, with its forward part and its loss",
        )
    forward = live_nodes(graph.node, [*handed, *plain])
    _require_known(result, forward)
    read = names_read(graph.node)
    stored = {tensor.name for tensor in graph.initializer}
    found = Stripped(
        result,
        tuple(trained),
        {y: dy for y, dy in _brought(ends) if dy in read},
        bool(handed),
        frozenset(name for name in plain if f"{name}_grad" in stored),
        _counted(result),
    )
    _keep(graph, forward, [name for name in handed if name not in plain] + plain)
    lost = {name for node in sums for name in (node.input[0], *node.input[2:])}
    drop_named(graph.input, lost - names_read(graph.node))
    return found


def _accumulated(sums: Collection[onnx.NodeProto]) -> Iterator[str]:
    """What the gradients are of that are added up in place.

    Raises:
        ModelError: an accumulator does not say it.
    """
    for node in sums:
        buffer, gradient = (*node.input, "", "")[:2]
        known = buffer.removesuffix(_BUFFER) if buffer.endswith(_BUFFER) else None
        name = known or differentiated(gradient)
        if name is None or not gradient:
            raise ModelError(
                f"{ACCUMULATOR} '{node.name}' adds '{gradient}' to '{buffer}', and neither name "
                "says which parameter the gradient is of",
                f"buffers are named NAME{_BUFFER}",
            )
        yield name


def _named(outputs: Collection[str], defined: Collection[str]) -> Iterator[str]:
    """What the outputs are gradients of, by their names."""
    bases = (differentiated(name) for name in outputs)
    return (name for name in bases if name is not None and name in defined)


def _brought(ends: Collection[onnx.NodeProto]) -> Iterator[tuple[str, str]]:
    """What a boundary hands out, and its gradient."""
    for node in ends:
        constant = {
            slot
            for item in node.attribute
            if item.name == "non_differentiable_outputs"
            for slot in item.ints
        }
        moving = [name for slot, name in enumerate(node.input) if slot not in constant]
        yield from zip(moving, node.output, strict=False)


def _keep(
    graph: onnx.GraphProto, forward: Collection[onnx.NodeProto], outputs: Collection[str]
) -> None:
    """Leave nothing but the forward part, and what it hands out."""
    stated = {value.name: copied(value) for value in (*graph.value_info, *graph.output)}
    replace_nodes(graph, forward)
    del graph.output[:]
    graph.output.extend(stated.get(name, onnx.ValueInfoProto(name=name)) for name in outputs)
    remove_unread(graph)


# -- foreign operators -------------------------------------------------------------------------


def _operator_of(node: onnx.NodeProto) -> str:
    """The operator's name, or ``aten::NAME`` of the operator of PyTorch that it calls."""
    if domain_of(node) != ATEN:
        return node.op_type
    for item in node.attribute:
        if item.name == "operator":
            name = helper.get_attribute_value(item)
            return f"aten::{name.decode(errors='replace') if isinstance(name, bytes) else name}"
    return node.op_type


def _counted(model: onnx.ModelProto) -> dict[str, int]:
    opset = default_opset(model)
    same = ADOPTED | {ACCUMULATOR}
    foreign = (node for node in model.graph.node if is_foreign(node, opset))
    return dict(Counter(_operator_of(node) for node in foreign if node.op_type not in same))


def _is_gradient(node: onnx.NodeProto) -> bool:
    """Whether a foreign node of a backward part does nothing but gradients, which are made anew."""
    known = node.op_type in _BESIDE or is_known(node)
    return known or any(word in _operator_of(node) for word in ("Grad", "_backward"))


def _require_known(model: onnx.ModelProto, forward: Collection[onnx.NodeProto]) -> None:
    """Check that the foreign operators of the forward part are known, and that those of the
    backward part do nothing but gradients: what else they do would be lost.

    Raises:
        ModelError: all others, with how often and where.
    """
    opset = default_opset(model)
    places = {node.name for node in forward}
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for outer in model.graph.node:
        for node in all_nodes([outer]):
            before = outer.name in places
            known = is_known if before else _is_gradient
            if not is_foreign(node, opset) or (known(node) and (node is outer or not before)):
                continue
            domain = domain_of(node)
            what = f"{domain}:{_operator_of(node)}" if domain else _operator_of(node)
            what += " in a body" if node is not outer else ""
            counts[what] += 1
            first.setdefault(what, node.name)
    if not counts:
        return
    shown = ", ".join(
        f"{what} ({count}x, first '{first[what]}')" for what, count in counts.most_common()
    )
    hint = "compute these by standard operators before the gradient graph is built"
    if any(op in what for what in counts for op in OPTIMIZERS):
        hint = "of an optimizer: give the training model, and this one by --optimizer-model"
    elif any("PythonOp" in what for what in counts):
        hint = "PythonOp runs Python code: 'memplan capture' takes such a step from PyTorch"
    raise ModelError(f"no lowering to standard operators is known for: {shown}", hint)
