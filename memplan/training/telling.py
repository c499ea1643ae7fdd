"""What a trainer tells of itself: its steps, and where its state lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.units import counted, format_bytes

if TYPE_CHECKING:
    from memplan.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step: its number (the first is 1), the loss (nan where the step has none), seconds and
    the learning rate, if there is one."""

    step: int
    loss: float
    seconds: float
    lr: float | None


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
