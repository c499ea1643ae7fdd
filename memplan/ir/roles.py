"""The roles of graph inputs and outputs in a training step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a graph input or output is to a training step.

    ``FROZEN``: a weight or buffer that the step reads and neither trains nor renews. ``AVERAGE``: a
    moving average of a parameter, which gets no gradient (``X.ema``, or a teacher's weight).
    """

    PARAMETER = "parameter"
    FROZEN = "frozen"
    AVERAGE = "average"
    OPTIMIZER_STATE = "optimizer-state"
    RUNNING_STATISTIC = "running-statistic"
    STEP_COUNTER = "step-counter"
    BATCH = "batch"
    HYPERPARAMETER = "hyperparameter"
    LOSS = "loss"
    GRADIENT = "gradient"
    NEW_VALUE = "new-value"
    OUTPUT = "output"


LOSS_SCALE, FOUND_INF = "loss_scale", "found_inf"
"""Of a step whose loss is scaled: the input that gradients begin with, and the output that says
that one of them is not finite, so that the scale has a new value, and what its optimizer updates
keeps the old one."""
EMA_DECAY = "ema_decay"
"""Of a step that keeps averages of its weights: the share of the old average in the next one."""
_EMA = ".ema"
SHARED = frozenset({Role.PARAMETER, Role.FROZEN, Role.AVERAGE, Role.RUNNING_STATISTIC})
"""The roles of state that is the model's: steps of one model have it in common."""
STATE = SHARED | {Role.OPTIMIZER_STATE, Role.STEP_COUNTER}
"""The roles of inputs that live from one step to the next."""
RENEWED = STATE - {Role.FROZEN}
"""The roles of inputs that have a next value."""
OF_INPUTS = STATE | {Role.BATCH, Role.HYPERPARAMETER, Role.GRADIENT}
OF_OUTPUTS = frozenset({Role.LOSS, Role.GRADIENT, Role.NEW_VALUE, Role.OUTPUT})


def average_of(parameter: str) -> str:
    """The name of the average of a parameter that stands beside the model."""
    return f"{parameter}{_EMA}"


def averaged_by(name: str) -> str | None:
    """The parameter whose average stands beside the model under this name."""
    return name.removesuffix(_EMA) if name.endswith(_EMA) else None


@dataclass(frozen=True, slots=True)
class Averages:
    """Which tensors of a step are moving averages of its parameters.

    ``sources`` maps them to the parameters that they follow; None: every trained parameter ``X``
    has an average ``X.ema``, an input of its own.
    """

    decay: float
    sources: Mapping[str, str] | None = None

    def following(self, updated: Iterable[str]) -> Mapping[str, str]:
        """The parameter that each follows, where some are updated."""
        if self.sources is not None:
            return self.sources
        return {average_of(name): name for name in updated}
