"""What a trainer tells of itself: its steps, and where its state lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from memplan.units import counted, format_bytes

if TYPE_CHECKING:
    from memplan.training.trainer import Trainer

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step: its number (the first is 1), the loss (nan where the step has none), seconds and
    the learning rate, if there is one.

    ``loss_scale`` is what its gradients began with, None where the loss is not scaled; ``skipped``:
    one of them was not finite, and parameters and optimizer state are as they were. ``metrics``
    are the numbers beside the loss, by name.
    """

    step: int
    loss: float
    seconds: float
    lr: float | None
    loss_scale: float | None = None
    skipped: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Binding:
    """Where the next value of an input goes: over the old one (``in_place``), or into a second
    buffer of ``nbytes``, because of ``reason``."""

    output: str
    input: str
    nbytes: int
    in_place: bool
    reason: str = ""


def description(trainer: Trainer) -> str:
    """The lines of ``repr``."""
    bindings = trainer.bindings
    own = [each for each in bindings if each.in_place]
    other = [each for each in bindings if not each.in_place]
    batch = ", ".join(f"{slot.name} {slot.words}" for slot in trainer.batch_slots)
    lines = [
        f"Trainer of {trainer.file.path}: {counted(trainer.steps, 'step')} taken",
        f"  loss         {trainer.loss_name or 'none'}",
        f"  batch        {batch}",
        f"  session      {trainer.request.session} on {trainer.request.provider}",
        f"  in place     {_sum(own)}",
        f"  two buffers  {_sum(other)}",
    ]
    reasons: dict[str, list[str]] = {}
    for each in other:
        reasons.setdefault(each.reason, []).append(each.output)
    for reason, outputs in reasons.items():
        more = f" and {len(outputs) - 1} more" if len(outputs) > 1 else ""
        lines.append(f"    '{outputs[0]}'{more}: {reason}")
    return "\n".join([*lines, *(f"  {note}" for note in trainer.notes)])


def _sum(bindings: Sequence[Binding]) -> str:
    total = sum(binding.nbytes for binding in bindings)
    return f"{counted(len(bindings), 'output')}, {format_bytes(total)}"
