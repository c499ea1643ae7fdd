"""The groups of a torch.optim instance as members of an update."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from memplan.api.capture.gradients import Sink
from memplan.autodiff.build import GradientSink
from memplan.autodiff.optimizers.base import Member
from memplan.autodiff.optimizers.parse import KINDS
from memplan.autodiff.optimizers.updates import Updates
from memplan.pytorch.optimizer import Group, OptimizerSettings
from memplan.shapes.tensor_type import TensorType


def sink_maker(settings: OptimizerSettings | None) -> Sink:
    """What is to take the gradients: the update of the settings, or outputs."""

    def made(parameters: Collection[str], types: Mapping[str, TensorType]) -> GradientSink:
        if settings is None:
            return GradientSink()
        return Updates(members_by_group(settings, parameters), types)

    return made


def members_by_group(settings: OptimizerSettings, parameters: Iterable[str]) -> dict[str, Member]:
    """How each of these parameters is updated."""
    made: dict[Group, Member] = {}
    found = {}
    for name in parameters:
        group = settings.groups[name]
        if group not in made:
            options = {"lr": settings.lr, **dict(group.options)}
            made[group] = Member(KINDS[group.kind](**options), group.factor)
        found[name] = made[group]
    return found
