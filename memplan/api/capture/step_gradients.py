"""The two roads from an exported graph to a training graph, without weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx

from memplan.autodiff.activity import find_activity
from memplan.autodiff.assemble import append
from memplan.autodiff.backward import GradientSink, Request, build_gradients
from memplan.autodiff.counter_dropouts import Counted, CounterDropout, from_counter
from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.value import Value
from memplan.autodiff.finished_graph import finished
from memplan.autodiff.forward.annotate import flat_copy
from memplan.autodiff.forward.expand import emitter_for
from memplan.autodiff.optimizers.updates import Updates
from memplan.proto.edit import drop_named, live_nodes, rename_reads, replace_nodes
from memplan.proto.surrogates import without_surrogates
from memplan.pytorch.program import ExportedGraph
from memplan.pytorch.torch_errors import nothing_trained
from memplan.shapes.tensor_type import TensorType

Sink = Callable[[Collection[str], Mapping[str, TensorType]], GradientSink]
"""Makes what takes the gradients of some parameters, given the types of all tensors."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A training graph whose weights are inputs without a default, what it is trained by, what took
    the gradients, and which of its masks come from a counter."""

    model: onnx.ModelProto
    wrt: tuple[str, ...]
    sink: GradientSink
    counted: Counted


def by_grad(
    forward: onnx.ModelProto,
    loss: str,
    trainable: Sequence[str],
    make_sink: Sink,
    counter: CounterDropout | None = None,
) -> Trained:
    """Differentiate a forward graph by memplan's own rules.

    Raises:
        ModelError: an operator on the way has no gradient, or no parameter leads to the loss.
    """
    flat = flat_copy(forward)
    types = dict(emitter_for(flat, ()).types)
    active = find_activity(list(flat.graph.node), types, [loss], trainable).tensors
    wrt = tuple(name for name in trainable if name in active)
    if not wrt:
        raise nothing_trained()
    sink = make_sink(wrt, types)
    built = build_gradients(flat, Request((loss,), wrt), sink)
    without_surrogates(built)
    return _trained(built, wrt, sink, counter)


def by_autograd(
    joint: ExportedGraph, make_sink: Sink, counter: CounterDropout | None = None
) -> Trained:
    """Put an update behind the gradients of a joint graph. Where the gradient of its loss is an
    input, the sink says what it is."""
    gradients = joint.gradients
    wrt = tuple(gradients.values())
    flat = flat_copy(joint.model)
    emitter = emitter_for(flat, ())
    sink = make_sink(wrt, emitter.types)
    sink.taken.update({parameter: output for output, parameter in gradients.items()})
    outputs: dict[str, Value] = {}
    _begin(flat.graph, emitter, sink, joint.loss, joint.seed)
    if isinstance(sink, Updates):
        _hide(flat.graph, gradients)
        for output, parameter in gradients.items():
            outputs.update(sink.take(emitter, parameter, emitter.tensor(output)))
        outputs.update(sink.finish(emitter))
    else:
        sink.gradients.update(gradients)
    append(flat, emitter, outputs)
    nodes = list(flat.graph.node)
    nodes = _early(nodes, len(nodes) - len(emitter.nodes))
    replace_nodes(flat.graph, live_nodes(nodes, [value.name for value in flat.graph.output]))
    return _trained(flat, wrt, sink, counter)


def _trained(
    model: onnx.ModelProto,
    wrt: tuple[str, ...],
    sink: GradientSink,
    counter: CounterDropout | None,
) -> Trained:
    counted = from_counter(model, counter)
    return Trained(finished(counted.model), wrt, sink, counted)


def _begin(
    graph: onnx.GraphProto, emitter: Emitter, sink: GradientSink, loss: str, seed: str
) -> None:
    """Let the backward part begin with what the sink wants, in place of an input."""
    if all(value.name != seed for value in graph.input):
        return
    with emitter.placed_behind(""):
        begun = sink.seed(emitter, emitter.tensor(loss)).name
    for node in graph.node:
        rename_reads(node, {seed: begun})
    drop_named(graph.input, {seed})


def _hide(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Let these be outputs no more."""
    graph.value_info.extend(value for value in graph.output if value.name in names)
    drop_named(graph.output, names)


def _early(nodes: list[onnx.NodeProto], first: int) -> list[onnx.NodeProto]:
    """The nodes from index ``first`` on, each right behind the last that it reads from: a gradient
    is not held until the end. What reads inputs and constants alone (a moment times its decay) goes
    before its first reader: nor are such products held from the beginning."""
    place: dict[str, int] = {}
    places: list[int | None] = []
    for index, node in enumerate(nodes):
        made = [place[name] for name in node.input if name in place]
        at = index if index < first else max(made, default=None)
        places.append(at)
        if at is not None:
            place.update(dict.fromkeys(node.output, at))
    needed: dict[str, int] = {}
    for index in reversed(range(first, len(nodes))):
        node = nodes[index]
        at = places[index]
        if at is None:
            at = min((needed[n] for n in node.output if n in needed), default=len(nodes))
            places[index] = at
        for name in node.input:
            needed[name] = min(at, needed.get(name, at))
    keys = [(at, index) for index, at in enumerate(places) if at is not None]
    return [nodes[index] for _, index in sorted(keys)]
