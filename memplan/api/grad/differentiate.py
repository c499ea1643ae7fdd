"""``grad``: a forward graph → a training graph. :func:`gradients` is the same for Python."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from memplan.api.grad.check_outcome import SKIPPED
from memplan.api.grad.gradient_check import checked
from memplan.api.grad.notes import notes_of
from memplan.api.grad.step_contract import contract_of, state_contract
from memplan.api.grad.training_graph import TrainingGraph, UpdateFile
from memplan.api.source import Model, as_file, shown_path
from memplan.autodiff.backward import GradientSink, Request, Seed, build_gradients
from memplan.autodiff.counter_dropouts import from_counter, parse_dropout
from memplan.autodiff.finished_graph import finished
from memplan.autodiff.forward.annotate import flat_checked
from memplan.autodiff.forward.expand import emitter_for
from memplan.autodiff.forward.foreign import opened
from memplan.autodiff.optimizers.formulas import parse_optimizer
from memplan.autodiff.optimizers.optimizer import Optimizer
from memplan.autodiff.optimizers.scaling import LossScale, ScaledGradients, parse_loss_scale
from memplan.autodiff.optimizers.updates import Updates, build_update, members_of
from memplan.autodiff.parameters import choose, find_candidates
from memplan.autodiff.stated_losses import KINDS as LOSSES
from memplan.autodiff.stated_losses import add_loss
from memplan.autodiff.statistics import Statistics, renew_statistics
from memplan.errors import ModelError, UsageError
from memplan.ir.roles import Role
from memplan.options import GradOptions
from memplan.proto.edit import copied, drop_named
from memplan.proto.metadata import get_metadata, set_metadata
from memplan.proto.paths import as_output
from memplan.proto.read import check_structure, read_model
from memplan.proto.weights import NO_WEIGHTS, plan_weights, write_with_weights
from memplan.proto.write import check_target, write_model
from memplan.shapes.tensor_type import UNKNOWN, TensorType

_LOG = logging.getLogger(__name__)


def gradients(
    model: onnx.ModelProto | Path | str,
    ys: str | Sequence[str],
    xs: str | Sequence[str],
    grad_ys: Seed | Sequence[Seed] = None,
    *,
    dims: Mapping[str, int] | None = None,
    check: bool = True,
) -> onnx.ModelProto:
    """``model`` with further outputs ``<x>_grad``: the gradients of the sum of ``ys`` by each x.

    Args:
        model: a forward graph or its path; it is not changed.
        ys: names of float tensors.
        xs: names of float tensors; initializers among them become graph inputs with a default.
        grad_ys: what each y's gradient is (an array, or the name of a tensor, which becomes a graph
            input if there is none of that name); default: ones.
        dims: values for symbolic dimensions, for the check.
        check: hold the gradients against central differences of ``model``, see
            :mod:`memplan.api.grad.gradient_check`; where that cannot be, a warning is logged.

    Raises:
        GradientsDifferError: they are not its gradients.
        ModelError: an operator on the way has no gradient; a y does not depend on the xs, or the ys
            do not depend on an x.
        UsageError: a name is not in the graph, or not a float tensor.
    """
    path = shown_path(model)
    if isinstance(model, onnx.ModelProto):
        check_structure(model, path)
    else:
        model = read_model(path)
    flat = flat_checked(opened(model))
    seeds = grad_ys if isinstance(grad_ys, list | tuple) else (grad_ys,)
    request = Request(_names(ys), _names(xs), () if grad_ys is None else tuple(seeds))
    sink = GradientSink()
    result = finished(build_gradients(flat, request, sink))
    if check:
        found = checked(flat, result, request, sink, path, dims or {})
        if found.verdict == SKIPPED:
            _LOG.warning(found.lines[0])
    return result


def grad(
    path: Model,
    options: GradOptions | str,
    output: Path | str | None = None,
    *,
    update_output: Path | str | None = None,
    dims: Mapping[str, int] | None = None,
    force: bool = False,
    check: bool = True,
) -> TrainingGraph:
    """Differentiate the loss of the forward graph in ``path``.

    Args:
        path: a forward graph: a path or a ``ModelProto``.
        options: the loss, and what to differentiate by; or the name of the loss.
        output: where to write; None: nowhere.
        update_output: where to write the optimizer as a graph of its own; given, there is one
            (:attr:`GradOptions.own_update`).
        dims: values for symbolic dimensions, for the check; the file keeps its symbols.
        force: overwrite ``output``.
        check: hold the gradients against central differences of the forward graph.

    Raises:
        GradientsDifferError: they are not its gradients; nothing is written.
        ModelError: the model cannot be read or differentiated; the loss is no scalar.
        UsageError: bad option or output path.
    """
    if not isinstance(options, GradOptions):
        options = GradOptions(loss=options)
    if update_output is not None:
        options = replace(options, own_update=True)
    targets = _Targets(as_output(output), as_output(update_output), force)
    with as_file(path) as file:
        found = _grad(file, options, targets, dims or {}, check)
    return replace(found, path=shown_path(path))


@dataclass(frozen=True, slots=True)
class _Targets:
    """Where to write the training graph and the graph of updates; None: nowhere."""

    step: Path | None
    update: Path | None
    force: bool

    def check(self, source: Path) -> None:
        """Fail early.

        Raises:
            UsageError: one of them cannot be written, or they are one.
        """
        for target, other in ((self.step, self.update), (self.update, self.step)):
            if target is not None:
                check_target(target, self.force, source, others=(other,))


def _grad(
    path: Path, options: GradOptions, targets: _Targets, dims: Mapping[str, int], check: bool
) -> TrainingGraph:
    """The same for a file."""
    targets.check(path)
    optimizer, scale = _update_of(options)
    counter = parse_dropout(options.dropout)
    model = read_model(path)
    placement = NO_WEIGHTS
    if targets.step is not None:
        planned = (model, path, targets.step, options.weights, targets.force)
        placement = plan_weights(*planned, others=(targets.update,))
    flat = flat_checked(opened(model))
    given = {value.name for value in (*flat.graph.input, *flat.graph.output)}
    loss, class_axis = _loss(flat, options)
    statistics = Statistics() if options.forward_only else renew_statistics(flat.graph)
    types = dict(emitter_for(flat, ()).types)
    _check_loss(loss, flat.graph, types.get(loss, UNKNOWN))
    candidates = find_candidates(flat.graph, types, [loss], statistics.names)
    wrt = () if options.forward_only else choose(candidates, options.wrt)
    members = members_of(optimizer, wrt) if optimizer is not None and wrt else {}
    apart = Updates(members, types, scaled=True, scale=scale) if options.own_update else None
    sink = ScaledGradients(scale)
    if members and apart is None:
        sink = Updates(members, types, scale=scale)
    request = Request((loss,), wrt, portable=options.portable)
    built = build_gradients(flat, request, sink) if wrt else flat
    _require_output(built.graph, loss, types[loss].dtype)
    counted = from_counter(built, counter)
    result = finished(counted.model, portable=options.portable)
    outcome = checked(flat, result, request, sink, path, dims) if check and wrt else None
    parts = (sink, statistics, candidates, counted)
    contract = state_contract(result.graph, loss, wrt, *parts)
    if wrt or contract.new_values:
        set_metadata(result, {**get_metadata(result), **contract.as_metadata()})
    update = None
    if apart is not None:
        update = _update_file(result, sink.gradients, types, apart, targets.update)
    if targets.step is not None:
        placement = write_with_weights(result, path, targets.step, placement, force=targets.force)
    if update is not None and update.output is not None:
        write_model(update.model, update.output, force=targets.force)
    return TrainingGraph(
        path=path,
        output=targets.step,
        options=options,
        loss=loss,
        wrt=wrt,
        candidates=candidates,
        model=result,
        new_inputs=tuple(v.name for v in result.graph.input if v.name not in given),
        new_outputs=tuple(v.name for v in result.graph.output if v.name not in given),
        class_axis=class_axis,
        contract=contract,
        hyperparameters=sink.hyperparameters,
        not_decayed=tuple(name for name, member in members.items() if not member.decays),
        update=update,
        statistics=statistics,
        notes=notes_of(flat.graph, options, wrt, sink, statistics, counted),
        placement=placement,
        counted_masks=counted.masks,
        check=outcome,
    )


def _update_of(options: GradOptions) -> tuple[Optimizer | None, LossScale | None]:
    """The optimizer and the loss scale that are asked for.

    Raises:
        UsageError: there are none of these names, or something is asked for that needs an update,
            and there is none.
    """
    optimizer, scale = parse_optimizer(options.optimizer), parse_loss_scale(options.loss_scale)
    updates = optimizer is not None and not options.forward_only
    if options.own_update and not updates:
        raise UsageError(
            "--update-output is the file of an optimizer",
            "name one with --optimizer, and leave --forward-only out",
        )
    if scale is not None and not updates:
        raise UsageError(
            f"--loss-scale {options.loss_scale}: gradients are unscaled where they are used, and "
            "without an optimizer there is no update",
            "name an optimizer (--optimizer), and leave --forward-only out",
        )
    return optimizer, scale


def _update_file(
    step: onnx.ModelProto,
    gradients: Mapping[str, str],
    types: Mapping[str, TensorType],
    updates: Updates,
    output: Path | None,
) -> UpdateFile:
    """The graph of updates, and where it is to be written."""
    result = finished(build_update(step, gradients, types, updates))
    roles = dict(updates.roles()) | dict.fromkeys(gradients.values(), Role.PARAMETER)
    roles |= dict.fromkeys(gradients, Role.GRADIENT)
    contract = contract_of(result.graph, roles, updates.new_values, gradients)
    set_metadata(result, {**get_metadata(result), **contract.as_metadata()})
    return UpdateFile(result, output, contract, updates.hyperparameters)


def _loss(flat: onnx.ModelProto, options: GradOptions) -> tuple[str, int | None]:
    """The loss's name, built first if a kind is named, and the axis of its classes.

    Raises:
        ModelError, UsageError: see :func:`memplan.autodiff.stated_losses.add_loss`.
    """
    if options.logits is None:
        if options.class_axis is not None:
            raise UsageError("--class-axis is for a loss that is built", "give --logits, too")
        if options.loss in LOSSES and not _computed(flat.graph, options.loss):
            raise UsageError(
                f"--loss {options.loss} is built behind logits or predictions",
                "name them: --logits NAME",
            )
        return options.loss, None
    if options.loss not in LOSSES:
        raise UsageError(
            f"--loss {options.loss}: --logits is for losses that are built",
            "those are " + ", ".join(LOSSES),
        )
    return add_loss(flat, options.loss, options.logits, options.class_axis)


def _computed(graph: onnx.GraphProto, name: str) -> bool:
    return any(name in node.output for node in graph.node)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _check_loss(loss: str, graph: onnx.GraphProto, found: TensorType) -> None:
    """Check that the loss is a float tensor that the graph computes, with one element.

    Raises:
        ModelError: it is not.
    """
    if not _computed(graph, loss):
        outputs = ", ".join(value.name for value in graph.output[:8])
        raise ModelError(
            f"--loss {loss}: no node of the graph computes it", f"graph outputs: {outputs}"
        )
    if found.elements != 1 or not found.is_float:
        raise ModelError(
            f"the loss '{loss}' is not a float scalar",
            "reduce it first, for example by ReduceMean; or let --loss cross-entropy or mse build "
            "one behind --logits; memplan.gradients takes tensors of any shape",
        )


def _require_output(graph: onnx.GraphProto, name: str, dtype: int) -> None:
    """Make the loss a graph output, as the first, if it is none."""
    if any(value.name == name for value in graph.output):
        return
    outputs = [onnx.helper.make_tensor_value_info(name, dtype, None)]
    outputs = [copied(value) for value in graph.value_info if value.name == name] or outputs
    outputs += map(copied, graph.output)
    del graph.output[:]
    graph.output.extend(outputs)
    drop_named(graph.value_info, {name})
