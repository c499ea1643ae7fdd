"""From an exported graph to a training graph, without weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx

from memplan.autodiff.activity import find_activity
from memplan.autodiff.backward import GradientSink, Request, build_gradients
from memplan.autodiff.counter_dropouts import Counted, CounterDropout, from_counter
from memplan.autodiff.finished_graph import finished
from memplan.autodiff.forward.annotate import flat_copy
from memplan.autodiff.forward.expand import emitter_for
from memplan.proto.surrogates import without_surrogates
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


def differentiated(
    forward: onnx.ModelProto,
    loss: str,
    trainable: Sequence[str],
    make_sink: Sink,
    counter: CounterDropout | None = None,
    *,
    portable: bool = False,
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
    built = build_gradients(flat, Request((loss,), wrt, portable=portable), sink)
    without_surrogates(built)
    counted = from_counter(built, counter)
    return Trained(finished(counted.model, portable=portable), wrt, sink, counted)
