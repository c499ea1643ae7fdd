"""From an exported graph to a training graph without weights, which updates as the user's optimizer
does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from memplan.autodiff.activity import find_activity
from memplan.autodiff.backward import GradientSink, Request, build_gradients
from memplan.autodiff.counter_dropouts import Counted, CounterDropout, from_counter
from memplan.autodiff.finished_graph import finished
from memplan.autodiff.forward.annotate import flat_copy
from memplan.autodiff.forward.expand import emitter_for
from memplan.autodiff.optimizers.formulas import KINDS
from memplan.autodiff.optimizers.optimizer import Member
from memplan.autodiff.optimizers.scaling import parse_loss_scale
from memplan.autodiff.optimizers.updates import Updates
from memplan.errors import UsageError
from memplan.ir.roles import Averages
from memplan.proto.surrogates import without_surrogates
from memplan.pytorch.torch_errors import nothing_trained
from memplan.pytorch.torch_optimizer import Group, OptimizerSettings
from memplan.pytorch.update_settings import NO_SCALE, Treatment
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


def sink_maker(
    settings: OptimizerSettings | None,
    treatment: Treatment,
    averages: Averages | None = None,
) -> Sink:
    """What is to take the gradients: the update of the settings, or outputs.

    Args:
        settings: those of the optimizer.
        treatment: what is done to gradients first.
        averages: the averages of the weights that the update renews, too.

    Raises:
        UsageError: the scaler has settings with which it does not do what it is for.
    """
    scale = parse_loss_scale(treatment.scale)

    def made(parameters: Collection[str], types: Mapping[str, TensorType]) -> GradientSink:
        if settings is None:
            return GradientSink()
        members = members_by_group(settings, parameters, treatment)
        return Updates(members, types, scale=scale, averages=averages)

    return made


def members_by_group(
    settings: OptimizerSettings, parameters: Collection[str], treatment: Treatment
) -> dict[str, Member]:
    """How each of these parameters is updated.

    Raises:
        UsageError: the update counts steps, and some parameter has taken fewer than others.
    """
    fresh = sorted(settings.fresh.intersection(parameters)) if settings.step > 1 else ()
    if fresh:
        raise UsageError(
            f"the optimizer has taken steps, but none of '{fresh[0]}'"
            + (f" and {len(fresh) - 1} more" if len(fresh) > 1 else ""),
            "a captured step counts one for all; begin with a fresh optimizer",
        )
    clipping = {"clip_norm": treatment.clip_norm, "clip_value": treatment.clip_value}
    made: dict[Group, Member] = {}
    found = {}
    for name in parameters:
        group = settings.groups[name]
        if group not in made:
            options: dict[str, Any] = {"lr": settings.lr, **dict(group.options), **clipping}
            # A scaler skips the step of an optimizer for its own gradients.
            owner = group.owner if treatment.scale != NO_SCALE else 0
            made[group] = Member(KINDS[group.kind](**options), group.factor, owner=owner)
        found[name] = made[group]
    return found
