"""How far a captured step may be from PyTorch's, and how far it is.

Two correct steps differ by rounding, by how much depends on the network. PyTorch itself says it:
the same step in float64 shows what its own float32 (or float16) is off by. A tensor may differ by
:data:`FACTOR` times

- what PyTorch's is off by in this very tensor,
- what PyTorch's gradients are off by in the middle (the median, relative to their largest entries),

or by so many units of float32 in its largest entry as kernels that add up in plain float32 were
seen to be off by (:data:`UNITS`), whichever is most. What is off by more is looked at again
(:mod:`memplan.api.capture.doubts`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.api.capture.capture_check import Difference
from memplan.pytorch.eager import EagerStep
from memplan.pytorch.values import numbers, precision

Array = npt.NDArray[Any]
Key = tuple[str, str]
"""The kind of a tensor, and its name."""
Values = Mapping[Key, Any]
"""Tensors of PyTorch, or arrays of the runtime."""
Sides = tuple[Callable[[Key], Any], Values, Values]
"""Of one step: what gives the graph's tensors, one at a time: all in float64 are twice the model;
PyTorch's, and its exact ones as far as there are any."""
FACTOR = 8.0
GRADIENT_UNITS, UNITS = 2.0**13, 2.0**10
"""In float32, of the largest entry: 1e-3 for gradients, 1e-4 for the loss and what else a step
gives. Of the sample models on ONNX Runtime 1.31.1, gradients were off by up to 5.4e-4 (group norms
of a U-Net, sums over 65,536 pixels), where PyTorch's were by 5e-6, and losses by 2.7e-5."""
ZERO_UNITS = 2.0**6
"""What is zero but for rounding is granted these, of the largest of all gradients."""
_TYPICAL = 16.0
_LEAST = float(np.finfo(np.float64).tiny)
_UNIT = float(np.finfo(np.float32).eps)
_UPDATE_SHARE = 1e-4
"""Of the largest change of a parameter: what an update may be off by, beside rounding."""
_ROUGH_SHARE = 0.1
"""The same by norm, where it is computed in bfloat16: Muon's is within 0.04 of PyTorch's."""
DOUBTFUL = 0.05
"""Relative error of PyTorch's own gradients from which on a comparison says little."""


class Tolerance:
    """What the tensors of a step may be off by.

    ``own`` is what PyTorch's are off by, absolute, in entries that are finite both times;
    ``typical`` the same of gradients in the middle, relative; ``largest`` the largest entry of all
    gradients; ``rough`` are tensors that are judged by norm.
    """

    def __init__(self, first: Values, exact: Values | None, narrowest: float = _UNIT) -> None:
        """Learn from PyTorch's own errors.

        Args:
            first: PyTorch's tensors.
            exact: the same computed in float64; None where the step does not run in it.
            narrowest: the unit of the narrowest float type in the step.
        """
        self.largest = 0.0
        self.own: dict[Key, float] = {}
        self.rough: Mapping[Key, float] = {}
        self.typical = 0.0 if exact is not None else _TYPICAL * narrowest
        sizes: dict[Key, float] = {}
        for key, value in first.items():  # one at a time: all in float64 are twice the model
            given = numbers(value)
            if given.dtype.kind != "f":
                continue
            if key[0] == "gradient":
                self.largest = max(self.largest, largest_of(given))
            if exact is not None and key in exact:
                right = numbers(exact[key])
                self.own[key] = finite_distance(given, right)
                if key[0] == "gradient":
                    sizes[key] = largest_of(right)
        if exact is not None:
            apart = [self.own[k] / size for k, size in sizes.items() if size > _UNIT * self.largest]
            self.typical = median(apart or [0.0])

    def noise(self, kind: str) -> float:
        """What a tensor of this kind that is zero but for rounding may hold."""
        # A loss near 0 is a difference of terms of some size, and rounds as these do.
        return ZERO_UNITS * _UNIT * {"gradient": self.largest, "loss": 1.0}.get(kind, 0.0)

    def of(self, key: Key, scale: float) -> float:
        """The absolute error that a tensor with this largest entry may have."""
        units = GRADIENT_UNITS if key[0] == "gradient" else UNITS
        least = scale * max(FACTOR * self.typical, units * _UNIT)
        return max(FACTOR * self.own.get(key, 0.0), least, self.noise(key[0]))


class UpdateTolerance(Tolerance):
    """What new parameters and state may be off by, where PyTorch's optimizer had the same
    gradients; nothing is granted to others. ``rough``: an update that is computed in bfloat16, and
    is judged by norm."""

    def __init__(self, before: Values, after: Values, rough: Collection[str] = ()) -> None:
        """Take note of what has changed.

        Args:
            before: what parameters were.
            after: what PyTorch made of them, and of the state.
            rough: names of parameters whose update is rough.
        """
        self.units = {key: precision(tensor) for key, tensor in after.items()}
        self.moved: dict[Key, float] = {}
        norms: dict[Key, float] = {}
        for key, tensor in after.items():
            with np.errstate(invalid="ignore"):
                change = numbers(tensor) - (numbers(before[key]) if key in before else 0.0)
            self.moved[key] = largest_of(change)
            if key in before and key[1] in rough:
                norms[key] = _ROUGH_SHARE * float(np.linalg.norm(change))
        self.rough = norms

    def noise(self, kind: str) -> float:
        """See :class:`Tolerance`."""
        return 0.0

    def of(self, key: Key, scale: float) -> float:
        """See :class:`Tolerance`."""
        moved = _UPDATE_SHARE * self.moved.get(key, 0.0)
        return 4 * self.units.get(key, 0.0) * scale + moved + self.rough.get(key, 0.0)


@dataclass(slots=True)
class Compared:
    """What was seen: the largest relative error by kind, and the gradient that has it; what
    differs; and the tensors of which PyTorch has no finite entry."""

    errors: dict[str, float] = field(default_factory=dict)
    worst: str = ""
    differences: list[Difference] = field(default_factory=list)
    empty: set[str] = field(default_factory=set)

    def note(self, key: Key, error: float) -> None:
        """Take note of an error."""
        kind, name = key
        if error >= self.errors.get(kind, 0.0):
            self.errors[kind] = error
            self.worst = name if kind == "gradient" else self.worst

    def join(self, other: Compared) -> None:
        """Take note of what another has seen."""
        for kind, error in other.errors.items():
            self.note((kind, other.worst), error)
        self.differences += other.differences
        self.empty |= other.empty


def compare(step: int, sides: Sides, tolerance: Tolerance) -> Compared:
    """Hold a graph's tensors against PyTorch's, or against its exact ones, each entry against the
    nearer. One that is not finite must be so in PyTorch; whole numbers are equal or not."""
    found, wanted, exact = sides
    result = Compared()
    for key, given in wanted.items():
        want, got = numbers(given), numbers(found(key))
        right = numbers(exact[key]) if key in exact else want
        whole = want.dtype.kind != "f"
        apart, scale = distance(got, want, right), max(largest_of(right), largest_of(want))
        if want.size and not (np.isfinite(want) & np.isfinite(right)).any():
            result.empty.add(key[1])
        if key in tolerance.rough and np.isfinite(apart):
            apart = float(np.linalg.norm(got - want))
        allowed, scale = (0.0, max(scale, 1.0)) if whole else (tolerance.of(key, scale), scale)
        error = apart / scale if scale else (0.0 if apart <= allowed else float("inf"))
        if apart > allowed:
            bound = allowed / scale if scale else 0.0
            result.differences.append(Difference(*key, error, bound, step))
        if not whole and scale > tolerance.noise(key[0]):
            result.note(key, error)
    return result


def unlike(one: EagerStep, other: EagerStep) -> str:
    """What two steps of PyTorch on the same values do not have in common, but for kernels that add
    up in no fixed order; or nothing. A tensor that one does not give is 0."""
    first, second = one.values, other.values
    for key in {**first, **second}:
        given = [numbers(held[key]) for held in (first, second) if key in held]
        a, b = given if len(given) > 1 else (given[0], np.zeros_like(given[0]))
        if distance(a, b) > UNITS * _UNIT * max(largest_of(a), largest_of(b)):
            kind, name = key
            of = "gradient of" if kind == "gradient" else kind
            return "the loss" if kind == "loss" else f"the {of} '{name}'"
    return ""


def largest_of(array: Array) -> float:
    """The largest magnitude of the finite entries of an array."""
    largest = float(np.abs(array).max()) if array.size else 0.0
    if np.isfinite(largest):
        return largest
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def distance(one: Array, *others: Array) -> float:
    """The largest difference of an array from others, each entry from the nearest of them; infinite
    where one alone is not finite, or shapes are others."""
    if any(one.shape != other.shape for other in others):
        return float("inf")
    if not one.size:
        return 0.0
    gaps = [_gaps(one, other) for other in others]
    return float(np.min(gaps, axis=0).max())


def _gaps(one: Array, other: Array) -> Array:
    """What every entry is apart; infinite where one alone is not finite."""
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    # Large whole numbers may be one number in float64, and are not the same for that.
    apart = np.where(np.isnan(apart), np.inf, np.maximum(apart, _LEAST))
    return np.where(same, 0.0, apart)


def finite_distance(one: Array, other: Array) -> float:
    """The largest difference of two arrays in entries that are finite in both; 0 without any."""
    finite = np.isfinite(one) & np.isfinite(other)
    return float(np.abs(one[finite] - other[finite]).max(initial=0.0))
