"""What changes from step to step by somebody's will: the learning rate and its like."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.errors import UsageError
from memplan.training.initial import fitting
from memplan.training.step_file import Slot

Array = npt.NDArray[Any]
Rate = float | Callable[[int], float]
"""A number, or a function of the number of the step (the first is 1)."""

_RATES = ("lr", "learning_rate", "eta")


class Knobs:
    """The hyperparameters of a step, and their values.

    Args:
        slots: the inputs that are hyperparameters.
        values: first values; of what is not among ``slots``, none is taken.
    """

    def __init__(self, slots: Sequence[Slot], values: Mapping[str, float]) -> None:
        self._slots = {slot.name: slot for slot in slots}
        self._values: dict[str, Rate] = {}
        words = {name: name.lower().replace("/", ".").split(".")[-1] for name in self._slots}
        rates = [name for name, word in words.items() if word in _RATES]
        self.rate = next(iter(rates or (self._slots if len(self._slots) == 1 else ())), None)
        """The input that is the learning rate."""
        self.adopt(values)

    @property
    def rate_value(self) -> Rate | None:
        """The learning rate; None where the step takes none, or has no value for it."""
        if self.rate is None:
            return None
        if self.rate in self._values:
            return self._values[self.rate]
        default = self._slots[self.rate].default
        return None if default is None else float(default.reshape(-1)[0])

    @property
    def numbers(self) -> dict[str, float]:
        """The values that are numbers, not functions."""
        return {name: float(v) for name, v in self._values.items() if not callable(v)}

    def set(self, name: str, value: Rate) -> None:
        """Give one a value.

        Raises:
            UsageError: there is none of that name, or it takes no such number.
        """
        if name not in self._slots:
            raise UsageError(f"the step has no hyperparameter '{name}'", f"it has {self._listed}")
        if not callable(value):
            _number(self._slots[name], value)
        self._values[name] = value

    def set_rate(self, value: Rate) -> None:
        """Give the learning rate a value.

        Raises:
            UsageError: the step has none as an input.
        """
        if self.rate is None:
            raise UsageError(
                "the step has no learning rate as an input", f"its hyperparameters: {self._listed}"
            )
        self.set(self.rate, value)

    def adopt(self, values: Mapping[str, float]) -> None:
        """Take over the numbers of a checkpoint; functions stay.

        Raises:
            UsageError: one takes no such number.
        """
        functions = {name: value for name, value in self._values.items() if callable(value)}
        numbers = {name: value for name, value in values.items() if name in self._slots}
        for name, value in numbers.items():
            _number(self._slots[name], value)
        self._values = {**numbers, **functions}

    def require_all(self) -> None:
        """Refuse a hyperparameter that has no value.

        Raises:
            UsageError: one has none.
        """
        for name, slot in self._slots.items():
            if name not in self._values and slot.default is None:
                how = "lr=NUMBER, or --lr" if name == self.rate else "hyperparameters={...}"
                raise UsageError(f"the step takes '{name}', and has no value for it", f"give {how}")

    def taken_from(
        self, given: dict[str, Any], step: int, names: Mapping[str, object]
    ) -> dict[str, Array]:
        """The values for step number ``step``. What ``given`` has of them holds for that step, and
        is taken out of it; ``lr`` is the learning rate where ``names`` has no input of that name.

        Raises:
            UsageError: one takes no such number.
        """
        if "lr" in given and "lr" not in names and self.rate is not None:
            given[self.rate] = given.pop("lr")
        found: dict[str, Array] = {}
        for name, slot in self._slots.items():
            value = given.pop(name, self._values.get(name))
            if callable(value):
                value = value(step)
            if value is None:
                assert slot.default is not None
                found[name] = slot.default
            else:
                found[name] = _number(slot, value)
        return found

    @property
    def _listed(self) -> str:
        return ", ".join(self._slots) or "none"


def _number(slot: Slot, value: Any) -> Array:
    """A hyperparameter's value as an array."""
    try:
        number = float(np.asarray(value).reshape(()))
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"'{slot.name}' takes a number, not {value!r:.80}") from None
    if not math.isfinite(number):
        raise UsageError(f"'{slot.name}' takes a finite number, not {number}")
    try:
        with np.errstate(over="raise"):
            typed = np.asarray(number).astype(np.float32 if slot.dtype.names else slot.dtype)
    except FloatingPointError:
        raise UsageError(f"'{slot.name}' is {slot.words}, which has no {number:g}") from None
    return fitting(replace(slot, shape=()), typed).reshape(slot.static_shape)
