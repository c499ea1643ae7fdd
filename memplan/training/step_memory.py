"""The state of one step in the memory of its session."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memplan.ir.roles import Role
from memplan.training.step_file import StepFile

if TYPE_CHECKING:
    from memplan.runtime.training_session import TrainingSession

Array = npt.NDArray[Any]


class StepMemory:
    """State by name. ``steps``: how many were taken; ``broken``: why the state is not that of a
    whole step, empty where it is.

    Args:
        session: where it lies.
        file: the step.
        values: first values of all state; taken out one by one, as each would be there twice.
        steps: after how many steps these are.
    """

    def __init__(
        self,
        session: TrainingSession,
        file: StepFile,
        values: MutableMapping[str, Array],
        steps: int,
    ) -> None:
        self.session, self.steps, self.broken = session, steps, ""
        renewed = set(file.contract.new_values.values())
        # Counters that the step does not renew are counted here.
        self.counters = {
            slot.name: (values[slot.name] - steps).astype(slot.dtype)
            for slot in file.named(Role.STEP_COUNTER)
            if slot.name not in renewed
        }
        for name in list(values):
            session.set(name, values.pop(name))
        self.renewed = renewed | self.counters.keys()
        """The state that steps change."""

    def get(self, name: str) -> Array:
        """A copy of a present value."""
        if name in self.counters:
            first = self.counters[name]
            return np.asarray((first + self.steps).astype(first.dtype))
        return self.session.get(name)

    def set(self, name: str, value: Array) -> None:
        """Give state a new value of its type and shape; a counter is counted on from there."""
        if name in self.counters:
            self.counters[name] = (value - self.steps).astype(value.dtype)
        else:
            self.session.set(name, value)

    def give_counters(self) -> None:
        """Let the session have the counters' present values."""
        for name in self.counters:
            self.session.set(name, self.get(name))
