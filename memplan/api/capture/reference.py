"""What a captured step is held against: steps as PyTorch takes them.

A graph is one function of parameters, buffers, optimizer state and batch. Where PyTorch's step
reads what an earlier call has changed in Python (:mod:`memplan.pytorch.hidden_state`), it is not.
Two steps are taken where nothing changed, else six in a row, each but the first on another batch,
from what the last one has left in Python. Numbers that count are then set ahead, to what they will
be in steps far off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from memplan.api.capture.capture_check import Difference, NotComparableError, Skip
from memplan.api.capture.compare_steps import Tolerance, unlike
from memplan.autodiff.optimizers.scaling import LossScale
from memplan.errors import ModelError, RuntimeUnavailableError
from memplan.pytorch.eager import Eager, EagerStep, other_batch
from memplan.pytorch.hidden_state import Counter, counters
from memplan.pytorch.installed_torch import own_failure
from memplan.pytorch.reading import Reading
from memplan.pytorch.torch_errors import ran_out_of_memory, reason_of
from memplan.pytorch.twin import Twin
from memplan.pytorch.values import as_array
from memplan.runtime.room import available_bytes
from memplan.units import format_bytes, listed

_FREE_SHARE = 0.8
"""Of the memory that is free: what a check may need."""
_STEP_SHARE = 1.5
"""What PyTorch's step takes, of what the graph is predicted to: it keeps more."""
_COPIES = 8
"""How often as much as the model is held at once: gradients of two steps, an optimizer with its
state, new values of the graph."""
LATER = "later"
"""The kind of a difference that lies in what is kept from step to step."""
_FEW, _SEVERAL = 2, 6
_AHEAD = (10, 100, 1_000, 10_000, 1_000_000)
"""Steps far off."""
_NAMED = 4
CAUSE = (
    "a graph is the same in every step: what one step hands on to the next belongs in a buffer "
    "(register_buffer), what follows a schedule in the batch"
)


@dataclass(frozen=True, slots=True)
class Taken:
    """A step that PyTorch has taken, the same in float64 where it runs in that, and what gradients
    may be off by for that reason."""

    outcome: EagerStep
    exact: EagerStep | None
    tolerance: Tolerance


class Reference:
    """PyTorch's own steps; nothing is run before it is asked for. ``states`` are what the steps
    found in Python, the last one what the next will. A step that was taken can be taken again: what
    it found is there until the next one is."""

    def __init__(self, reading: Reading) -> None:
        """Take note of the step."""
        self.reading = reading
        self.eager = Eager(reading.prepared, reading.state)
        self.states = [reading.state]
        self.said: list[str] = []
        self.why_not_exact = ""
        self._typical = 0.0

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
        begun = self.reading.state
        self.eager.go_to(begun)
        found = self.run(watched=True, advance=True)
        self.states = [begun, self.eager.state]
        self.eager.go_to(begun)
        if not math.isfinite(found.loss):
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
        return self._beside_exact(first, {})

    @property
    def number(self) -> int:
        """What tells the draws of the last step from those of others: 0 of the first."""
        return len(self.states) - 2

    def again(self, values: Mapping[str, Any]) -> Taken:
        """The last step on other values of parameters and buffers, by name."""
        return self._beside_exact(self.run(self.number, values), values)

    def _beside_exact(self, outcome: EagerStep, values: Mapping[str, Any]) -> Taken:
        exact = self._exact(values)
        right = None if exact is None else exact.values
        tolerance = Tolerance(outcome.values, right, self.reading.narrowest)
        # A step is one sample of how much the network makes of rounding: the largest one counts.
        tolerance.typical = self._typical = max(self._typical, tolerance.typical)
        return Taken(outcome, exact, tolerance)

    def _exact(self, values: Mapping[str, Any]) -> EagerStep | None:
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
                return self.eager.run(self.number, values, wide=True)
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

    # -- behind the first -------------------------------------------------------------------------

    @property
    def most(self) -> int:
        """How many steps are compared."""
        return _SEVERAL if self.changed else _FEW

    @property
    def changed(self) -> tuple[str, ...]:
        """What steps have changed so far, by path."""
        assert self.first  # which leaves something, too
        first, *others = self.states
        return tuple(dict.fromkeys(path for each in others for path in first.changed(each)))

    def take(self, values: Mapping[str, Any]) -> Taken | Difference:
        """The next step, on another batch and these values of parameters and buffers; what keeps
        PyTorch from it is a difference."""
        example, begun, number = self.reading.prepared.batch, self.states[-1], len(self.states)
        for batch in (other_batch(example, number), example):
            self.eager.go_to(begun, batch)
            try:
                outcome = self.run(number - 1, values, advance=True)
            except ModelError as error:  # of a batch that we have made, perhaps
                failure = error.message
                continue
            if math.isfinite(outcome.loss) or batch is example:
                self.states.append(self.eager.state)
                self.eager.go_to(begun, batch)
                return self._of_one_kind(self._beside_exact(outcome, values))
        return Difference(LATER, f"in step {number}: {failure}", math.inf, 0.0, number)

    def arrays(self) -> dict[str, Any]:
        """The batch of the last step as the runtime takes it."""
        return {name: as_array(tensor) for name, tensor in self.eager.batch.items()}

    def _of_one_kind(self, taken: Taken) -> Taken | Difference:
        """The last step, if it gives and draws what the first does."""
        first, outcome, number = self.first, taken.outcome, self.number + 1
        text = ""
        apart = first.values.keys() ^ outcome.values.keys()
        if names := sorted(name for kind, name in apart if kind == "metric"):
            text = f"step {number} has other metrics than the first: '{names[0]}'"
        elif _kinds(first) != _kinds(outcome):
            text = f"other random numbers are drawn in step {number} than in the first"
        if not text:
            return taken
        return Difference(LATER, self.with_names(text), math.inf, 0.0, number)

    def run_once(self, values: Mapping[str, Any]) -> EagerStep:
        """The last step once more, without running anew what is checkpointed.

        Raises:
            Exception: the step does not run so.
        """
        return self.eager.run(self.number, values, marked=True)

    def blamed(self) -> Difference:
        """That the last step differs where something was changed before it."""
        number = self.number + 1
        text = self.with_names(f"step {number} is not what the first is")
        return Difference(LATER, text, math.inf, 0.0, number)

    def with_names(self, text: str) -> str:
        """A text with what steps change."""
        return f"{text}: steps change {quoted(self.changed)}" if self.changed else text

    def ahead(self) -> Difference | None:
        """What happens far off: the step in which numbers that count make another loss."""
        found = counters(self.states)
        for number in _AHEAD if found else ():
            if not self._differs(number, found):
                continue
            alone = [each for each in found if self._differs(number, (each,))] or found
            names = quoted([each.path for each in alone])
            text = f"step {number:,} is not what the first is: steps change {names}"
            return Difference(LATER, text, math.inf, 0.0, number)
        return None

    def _differs(self, number: int, found: Sequence[Counter]) -> str:
        """What is not as in the first step, where counters are as before a later one."""
        self.eager.go_to(self.states[-1])
        taken = len(self.states) - 1
        try:
            for each in found:
                each.write(each.value + each.by * (number - 1 - taken))
            outcome = self.eager.run()
        except Exception as error:
            self.eager.go_to(self.states[-1])
            self.said.append(
                f"step {number:,} and those behind it: with {quoted([f.path for f in found])} "
                f"set ahead, PyTorch says {reason_of(error)}"
            )
            return ""
        return unlike(self.first, outcome)

    def notes(self) -> tuple[str, ...]:
        """What the check leaves open."""
        said = list(dict.fromkeys(self.said[:1]))
        if self.changed:
            said.append(
                f"what {quoted(self.changed)} may do behind step {len(self.states) - 1}: steps "
                "change it, which has mattered in none of them, and the graph has it as it is "
                "before the first"
            )
        if self.states[0].limited:
            said.append("what steps change in Python beyond the first 100,000 objects")
        return tuple(said)


def _kinds(outcome: EagerStep) -> list[tuple[str, tuple[int, ...]]]:
    return [(draw.family, draw.shape) for draw in outcome.draws]


def quoted(names: Sequence[str]) -> str:
    """The first of some paths, in quotes, which those of closures and globals have themselves."""
    return listed([f"'{name}'" if "'" not in name else name for name in names], _NAMED)
