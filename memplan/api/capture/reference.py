"""What a captured step is held against: the step as PyTorch takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from memplan.api.capture.capture_check import NotComparableError, Skip
from memplan.api.capture.compare_steps import Tolerance, unlike
from memplan.autodiff.optimizers.scaling import LossScale
from memplan.errors import ModelError, RuntimeUnavailableError
from memplan.pytorch.eager import Eager, EagerStep
from memplan.pytorch.hidden_state import HiddenState
from memplan.pytorch.installed_torch import own_failure
from memplan.pytorch.reading import Reading
from memplan.pytorch.torch_errors import ran_out_of_memory, reason_of
from memplan.pytorch.twin import Twin
from memplan.runtime.room import available_bytes
from memplan.units import format_bytes

_FREE_SHARE = 0.8
"""Of the memory that is free: what a check may need."""
_STEP_SHARE = 1.5
"""What PyTorch's step takes, of what the graph is predicted to: it keeps more."""
_COPIES = 8
"""How often as much as the model is held at once: gradients of two steps, an optimizer with its
state, new values of the graph."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A step that PyTorch has taken, the same in float64 where it runs in that, and what gradients
    may be off by for that reason."""

    outcome: EagerStep
    exact: EagerStep | None
    tolerance: Tolerance


class Reference:
    """PyTorch's own step; taken when it is asked for, and once for all graphs."""

    def __init__(self, reading: Reading) -> None:
        """Take note of the step; nothing is run yet."""
        self.reading = reading
        self.eager = Eager(reading.prepared, reading.state)
        self._after_first = reading.state
        self._typical = 0.0
        self.why_not_exact = ""

    def require_room(self, peak_bytes: int) -> None:
        """Check that there is something to compute with, and memory for it. The step in float64
        may take more, and is left out where that is not there.

        Args:
            peak_bytes: what the captured graph is predicted to take.

        Raises:
            NotComparableError: there is not.
        """
        if not self.eager.has_values:
            raise NotComparableError(Skip.NO_VALUES, "the model has no values (meta device)")
        needed = int(_STEP_SHARE * peak_bytes) + _COPIES * self.eager.resident_bytes
        free = available_bytes()
        if free and needed > _FREE_SHARE * free:
            raise NotComparableError(
                Skip.MEMORY,
                f"it needs about {format_bytes(needed)}, and {format_bytes(free)} are free; a "
                "smaller example batch would do",
            )

    @cached_property
    def first(self) -> EagerStep:
        """The step on the values that are there.

        Raises:
            ModelError: PyTorch cannot take it.
            NotComparableError: it says nothing, or there is no memory for it.
        """
        self.eager.go_to(self.reading.state)
        found = self.run(watched=True, advance=True)
        self._after_first = self.eager.state
        self.eager.go_to(self.reading.state)
        if not np.isfinite(found.loss):
            raise NotComparableError(
                Skip.LOSS, f"PyTorch's own loss is {found.loss} on the example batch"
            )
        if found.unknown:
            names = ", ".join(sorted(set(found.unknown)))
            raise NotComparableError(Skip.DRAWS, f"no draws can be given to {names}")
        return found

    def run(
        self, number: int = 0, values: Mapping[str, Any] | None = None, **how: bool
    ) -> EagerStep:
        """The step once (:meth:`~memplan.pytorch.eager.Eager.run`).

        Raises:
            ModelError: PyTorch cannot take it.
            RuntimeUnavailableError: what memplan does around it does not fit this PyTorch.
            NotComparableError: there is no memory for it.
        """
        try:
            return self.eager.run(number, values, **how)
        except RuntimeUnavailableError:
            raise
        except Exception as error:
            own = own_failure(error)
            if own is not None:
                raise own from error
            reason = reason_of(error)
            if ran_out_of_memory(error):
                raise NotComparableError(
                    Skip.MEMORY, f"PyTorch ran out of memory: {reason}"
                ) from error
            found = None if self.eager.plain else self._alone(number, values, how)
            if found is not None:
                return found
            raise ModelError(
                f"PyTorch itself cannot take this step: {reason}",
                "call backward() on its loss to see where it fails; --no-check (check=False) "
                "captures the step all the same",
            ) from error

    def _alone(
        self, number: int, values: Mapping[str, Any] | None, how: Mapping[str, bool]
    ) -> EagerStep | None:
        """The step where nothing looks on, as all further ones then are taken; None if it does not
        run like that, either."""
        self.eager.plain = True
        try:
            return self.eager.run(number, values, **how)
        except Exception:
            self.eager.plain = False
            return None

    @property
    def after_first(self) -> HiddenState:
        """What the first step leaves in Python."""
        assert self.first
        return self._after_first

    @cached_property
    def unsteady(self) -> str:
        """What the step gives otherwise when it is taken again, on the same values and from the
        same state; or nothing."""
        first = self.first
        self.eager.go_to(self.reading.state)
        return unlike(first, self.run())

    def begin(self) -> Taken:
        """The step on the values that are there."""
        first = self.first
        self.eager.go_to(self.reading.state)
        return self._beside_exact(first, 0, {})

    def again(self, number: int, values: Mapping[str, Any]) -> Taken:
        """The step on other values, from what it finds in Python.

        Args:
            number: tells its draws from those of other steps.
            values: parameters and buffers by name.
        """
        return self._beside_exact(self.run(number, values), number, values)

    def advanced(self, number: int, values: Mapping[str, Any]) -> tuple[Taken, HiddenState]:
        """The same, and what the step leaves in Python; nothing of that is there yet."""
        before, batch = self.eager.state, self.eager.batch
        outcome = self.run(number, values, advance=True)
        after = self.eager.state
        self.eager.go_to(before, batch)
        return self._beside_exact(outcome, number, values), after

    def _beside_exact(self, outcome: EagerStep, number: int, values: Mapping[str, Any]) -> Taken:
        exact = self._exact(number, values)
        right = None if exact is None else exact.values
        tolerance = Tolerance(outcome.values, right, self.reading.narrowest)
        # A step is one sample of how much the network makes of rounding: the largest one counts.
        tolerance.typical = self._typical = max(self._typical, tolerance.typical)
        return Taken(outcome, exact, tolerance)

    def _exact(self, number: int, values: Mapping[str, Any]) -> EagerStep | None:
        """The step in float64, unless it does not run so or there is no room for it."""
        needed = 2 * (self.first.peak_bytes + self.eager.resident_bytes)
        free = available_bytes()
        if free and needed > _FREE_SHARE * free:
            self.why_not_exact = (
                f"in float64 it needs about {format_bytes(needed)}, and {format_bytes(free)} are "
                "free"
            )
        if not self.why_not_exact:
            try:
                return self.eager.run(number, values, wide=True)
            except Exception as error:
                said = "ran out of memory" if ran_out_of_memory(error) else "does not run"
                self.why_not_exact = f"the step {said} in float64"
        return None

    def twin(self, scale: LossScale | None) -> Twin | None:
        """A copy of the step's optimizer, if there is one, with a scaler of this scale."""
        optimizer = self.reading.prepared.step.optimizer
        if optimizer is None:
            return None
        names = {id(p): name for name, p in self.eager.parameters.items()}
        options = None if scale is None else asdict(scale)
        return Twin(optimizer, names, self.reading.treatment, options)
