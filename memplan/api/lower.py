"""``lower``: a training graph of onnxruntime-training → the same in standard operators: its forward
part, differentiated as ``grad`` does it.

It answers what stock ONNX Runtime can run of what its training package left behind. It takes a path
or a ``ModelProto`` and ``LowerOptions``; it gives a ``LoweredGraph``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from memplan.api.grad.check_outcome import GradientCheck, skipped
from memplan.api.grad.gradient_check import checked
from memplan.api.grad.step_contract import contract_of
from memplan.api.source import Model, as_file, shown_path
from memplan.api.summary import Summary, attributes_json, phase_counts
from memplan.autodiff.backward import GradientSink, build_gradients
from memplan.autodiff.finished_graph import finished
from memplan.autodiff.forward.annotate import flat_checked
from memplan.autodiff.forward.expand import emitter_for
from memplan.autodiff.forward.foreign import written_out
from memplan.autodiff.lowering.differentiation import Differentiation, differentiation_of
from memplan.autodiff.lowering.optimizer_model import optimizer_text, read_optimizer
from memplan.autodiff.lowering.ort_checkpoint import Checkpoint, apply_checkpoint, read_checkpoint
from memplan.autodiff.lowering.strip import strip
from memplan.autodiff.optimizers.optimizer import Optimizer
from memplan.autodiff.optimizers.updates import Updates, members_of
from memplan.autodiff.statistics import Statistics, renew_statistics
from memplan.errors import ModelError
from memplan.ir.contract import Contract
from memplan.ir.graph import Phase
from memplan.ir.roles import Role
from memplan.options import LowerOptions
from memplan.proto.edit import copied
from memplan.proto.metadata import APART, STATE, get_metadata, set_metadata
from memplan.proto.paths import as_output, as_path
from memplan.proto.read import read_model
from memplan.proto.weights import NO_WEIGHTS, Placement, plan_weights, write_with_weights
from memplan.proto.write import check_target
from memplan.shapes.tensor_type import FLOATS, Types
from memplan.units import counted

SCHEMA = "memplan.lower/1"


@dataclass(frozen=True, slots=True, repr=False)
class LoweredGraph(Summary):
    """The answer of ``lower``; ``output`` is None if nothing was written.

    ``replaced`` counts the operators that ONNX does not define, by name. ``fed`` are gradients that
    whoever runs the file brings, as inputs; ``seeded`` is the output whose gradient is 1 by
    ORTModule's boundary. ``check`` is None if it was not asked for.
    """

    path: Path
    output: Path | None
    options: LowerOptions
    model: onnx.ModelProto
    contract: Contract
    replaced: Mapping[str, int]
    optimizer: str = "none"
    fed: tuple[str, ...] = ()
    seeded: str | None = None
    notes: tuple[str, ...] = ()
    placement: Placement = field(default=NO_WEIGHTS)
    check: GradientCheck | None = None

    @property
    def loss(self) -> str | None:
        """The loss output."""
        return self.contract.loss

    @property
    def nodes(self) -> Mapping[Phase, int]:
        """How many nodes each part has; the loss counts as forward."""
        return phase_counts(self.model.graph)

    @property
    def trained(self) -> tuple[str, ...]:
        """Parameters that have a gradient, or a new value."""
        renewed = {*self.contract.gradients.values(), *self.contract.new_values.values()}
        return tuple(n for n in self.contract.named(Role.PARAMETER) if n in renewed)

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        return {
            "schema": SCHEMA,
            **attributes_json(self, "loss", "optimizer", "replaced", "nodes"),
            **attributes_json(self.contract, "roles", "gradients", "new_values"),
            "fed_gradients": list(self.fed),
            **attributes_json(self, "seeded", "notes"),
            "weights": self.placement.how,
            **attributes_json(self, "check", "output"),
        }


def lower(
    path: Model,
    output: Path | str | None = None,
    options: LowerOptions | None = None,
    *,
    force: bool = False,
    check: bool = True,
) -> LoweredGraph:
    """Lower the training graph in ``path``, one of onnxruntime-training, to standard operators.

    Args:
        path: a training model of its artifacts, or a graph that ORTModule saved: a path or a
            ``ModelProto``.
        output: where to write; None: nowhere.
        options: the loss, the optimizer model, the checkpoint, what becomes of weights.
        force: overwrite ``output``.
        check: hold the gradients against central differences of the graph's own forward part.

    Raises:
        GradientsDifferError: they are not its gradients; nothing is written.
        ModelError: a model cannot be read, or has operators that are not known; all are named.
        UsageError: bad option or output path.
    """
    target = as_output(output)
    with as_file(path) as file:
        found = _lower(file, options or LowerOptions(), target, force, check)
    return replace(found, path=shown_path(path))


def _lower(
    path: Path, options: LowerOptions, output: Path | None, force: bool, check: bool
) -> LoweredGraph:
    """The same for a file."""
    further = (options.optimizer_model, options.checkpoint)
    update, saved = (as_path(file) if file is not None else None for file in further)
    if output is not None:
        check_target(output, force, path, update, saved)
    optimizer = read_optimizer(read_model(update), str(update)) if update is not None else None
    checkpoint = read_checkpoint(saved) if saved is not None else None
    if optimizer is not None and checkpoint is not None and checkpoint.rate is not None:
        optimizer = replace(optimizer, lr=checkpoint.rate)
    model = read_model(path)
    placement = NO_WEIGHTS
    if output is not None:
        placement = plan_weights(model, path, output, options.weights, force, update, saved)
    found = lower_model(model, path, options.loss, optimizer, checkpoint, check=check)
    if output is not None:
        placement = write_with_weights(found.model, path, output, placement, force=force)
    return replace(found, output=output, options=options, placement=placement)


def lower_model(
    model: onnx.ModelProto,
    path: Path,
    loss: str | None = None,
    optimizer: Optimizer | None = None,
    checkpoint: Checkpoint | None = None,
    *,
    check: bool = True,
) -> LoweredGraph:
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
        outcome = skipped("no gradients were made")
    elif check and request is not None:
        outcome = checked(flat, result, request, sink, path, {})
    fed = tuple(str(seed) for seed in request.grad_ys) if request is not None else ()
    contract = _contract(result.graph, asked, sink, statistics, checkpoint, fed)
    told = {**contract.as_metadata(), STATE: APART}  # as its own sessions were fed
    set_metadata(result, {**get_metadata(result), **told})
    return LoweredGraph(
        path=path,
        output=None,
        options=LowerOptions(),
        model=result,
        contract=contract,
        replaced=stripped.replaced,
        optimizer=optimizer_text(optimizer) if optimizer is not None else "none",
        fed=fed,
        seeded=asked.seeded,
        notes=tuple(_notes(asked, fed, statistics)),
        check=outcome,
    )


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
        yield "no gradients of onnxruntime-training in this graph: none are made"
    yield from statistics.notes
