"""A training graph of onnxruntime-training in memory → one in standard operators: its forward part,
differentiated as ``grad`` does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from memplan.api.grad.check_outcome import GradientCheck, skipped
from memplan.api.grad.gradient_check import checked
from memplan.api.grad.step_contract import contract_of
from memplan.autodiff.backward import GradientSink, build_gradients
from memplan.autodiff.finished_graph import finished
from memplan.autodiff.forward.annotate import flat_checked
from memplan.autodiff.forward.expand import emitter_for
from memplan.autodiff.forward.foreign import written_out
from memplan.autodiff.lowering.differentiation import Differentiation, differentiation_of
from memplan.autodiff.lowering.ort_checkpoint import Checkpoint, apply_checkpoint
from memplan.autodiff.lowering.strip import strip
from memplan.autodiff.optimizers.optimizer import Optimizer
from memplan.autodiff.optimizers.updates import Updates, members_of
from memplan.autodiff.statistics import Statistics, renew_statistics
from memplan.errors import ModelError
from memplan.ir.contract import Contract
from memplan.ir.roles import Role
from memplan.proto.edit import copied
from memplan.proto.metadata import APART, STATE, get_metadata, set_metadata
from memplan.shapes.tensor_type import FLOATS, Types
from memplan.units import counted


@dataclass(frozen=True, slots=True)
class Lowered:
    """A training graph in standard operators.

    ``replaced`` counts the foreign operators by name. ``fed`` are gradients of outputs that are
    graph inputs, ``seeded`` is the output whose gradient is 1 by ORTModule's boundary.
    """

    model: onnx.ModelProto
    contract: Contract
    replaced: Mapping[str, int]
    fed: tuple[str, ...]
    seeded: str | None
    notes: tuple[str, ...]
    check: GradientCheck | None


def lower_model(
    model: onnx.ModelProto,
    path: Path,
    loss: str | None = None,
    optimizer: Optimizer | None = None,
    checkpoint: Checkpoint | None = None,
    *,
    check: bool = True,
) -> Lowered:
    """Lower a model; it is not changed.

    Args:
        model: the training graph.
        path: where it lies, and weights beside it.
        loss: the loss, where a user names it.
        optimizer: what becomes of the gradients; None: they are outputs.
        checkpoint: values of parameters.
        check: hold the gradients against central differences of the forward part.

    Raises:
        GradientsDifferError: they are not its gradients.
        ModelError: an operator is not known, does not fit its inputs, or there is no gradient for
            the optimizer.
        UsageError: the loss is not a scalar output of the forward part.
    """
    stripped = strip(model)
    flat = flat_checked(written_out(stripped.model))
    statistics = renew_statistics(flat.graph)
    if checkpoint is not None:
        apply_checkpoint(flat.graph, checkpoint)
    types = dict(emitter_for(flat, ()).types)
    if optimizer is not None:  # which updates nothing that the graph computes
        given = {value.name for value in (*flat.graph.input, *flat.graph.initializer)}
        stripped = replace(stripped, trained=tuple(filter(given.__contains__, stripped.trained)))
    asked = differentiation_of(flat.graph, stripped, types, loss)
    sink = _sink(asked, optimizer, types)
    request = asked.request
    built = flat if request is None else build_gradients(flat, request, sink)
    result = finished(copied(built))
    _order(result.graph, asked, sink)
    outcome = None
    if check and request is None:
        outcome = skipped("it has no gradients of a loss")
    elif check and request is not None:
        outcome = checked(flat, result, request, sink, path, {})
    fed = tuple(str(seed) for seed in request.grad_ys) if request is not None else ()
    contract = _contract(result.graph, asked, sink, statistics, checkpoint, fed)
    told = {**contract.as_metadata(), STATE: APART}  # as its own sessions were fed
    set_metadata(result, {**get_metadata(result), **told})
    notes = tuple(_notes(asked, fed, statistics))
    return Lowered(result, contract, stripped.replaced, fed, asked.seeded, notes, outcome)


def _order(graph: onnx.GraphProto, asked: Differentiation, sink: GradientSink) -> None:
    """Let the loss be the first output, and gradients the last, as their parameters are."""
    xs = asked.request.xs if asked.request is not None else ()
    places = {name: xs.index(x) + 1 for name, x in sink.gradients.items()} | {asked.loss: -1}
    outputs = sorted(map(copied, graph.output), key=lambda value: places.get(value.name, 0))
    del graph.output[:]
    graph.output.extend(outputs)


def _sink(asked: Differentiation, optimizer: Optimizer | None, types: Types) -> GradientSink:
    """What becomes of the gradients.

    Raises:
        ModelError: there are none for the optimizer.
    """
    if optimizer is None:
        return GradientSink()
    if asked.request is None:
        raise ModelError(
            "the optimizer has nothing to update: the file has no gradient of a graph input",
            "give the training model, not the evaluation model",
        )
    return Updates(members_of(optimizer, asked.request.xs), types)


def _contract(
    graph: onnx.GraphProto,
    asked: Differentiation,
    sink: GradientSink,
    statistics: Statistics,
    checkpoint: Checkpoint | None,
    fed: tuple[str, ...],
) -> Contract:
    """The contract. Without a checkpoint, floats behind the first parameter count as such: the
    exporter puts all weights, frozen ones too, behind what a user feeds."""
    parameters = set(asked.request.xs) if asked.request is not None else set()
    if checkpoint is not None:
        parameters |= checkpoint.values.keys()
    known = {
        **dict.fromkeys(statistics.renewed, Role.RUNNING_STATISTIC),
        **dict.fromkeys(fed, Role.GRADIENT),
        **sink.roles(),
    }
    behind = False
    for value in graph.input:
        behind = behind or value.name in parameters
        floats = value.type.tensor_type.elem_type in FLOATS
        weight = value.name in parameters or (behind and floats and checkpoint is None)
        known.setdefault(value.name, Role.PARAMETER if weight else Role.BATCH)
    latest = statistics.new_values | sink.new_values
    outputs = [value.name for value in graph.output]
    new_values = {name: latest[name] for name in outputs if name in latest}
    given = {value.name for value in graph.input}
    made = {name: sink.gradients[name] for name in outputs if name in sink.gradients}
    gradients = {name: x for name, x in made.items() if x in given}
    return contract_of(graph, known, new_values, gradients, asked.loss)


def _notes(asked: Differentiation, fed: tuple[str, ...], statistics: Statistics) -> Iterator[str]:
    """What a user should know of a lowered graph."""
    if asked.seeded is not None:
        yield f"the gradient of '{asked.seeded}' is 1: it is taken for the loss"
    if fed:
        yield (
            f"{counted(len(fed), 'gradient')} of outputs to be fed ('{fed[0]}'): where "
            "one of the outputs is the loss, --loss NAME makes its gradient 1 and the others' 0"
        )
    if asked.still:
        yield (
            f"{counted(len(asked.still), 'gradient')} left out ('{asked.still[0]}'): what is "
            "differentiated does not depend on it"
        )
    if asked.request is None:
        yield "this graph has no gradients: it is a forward graph"
    yield from statistics.notes
