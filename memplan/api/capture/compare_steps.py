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

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FACTOR = 8.0
GRADIENT_UNITS, UNITS = 2.0**13, 2.0**10
"""In float32, of the largest entry: 1e-3 for gradients, 1e-4 for the loss and what else a step
gives. Of the sample models on ONNX Runtime 1.31.1, gradients were off by up to 5.4e-4 (group norms
of a U-Net, sums over 65,536 pixels), where PyTorch's were by 5e-6, and losses by 2.7e-5."""
ZERO_UNITS = 2.0**6
"""What is zero but for rounding is granted these, of the largest of all gradients."""
_TYPICAL = 16.0
_UNIT = float(np.finfo(np.float32).eps)
_UPDATE_SHARE = 1e-4
"""Of the largest change of a parameter: what an update may be off by, beside rounding."""
_ROUGH_SHARE = 0.1
"""The same by norm, where it is computed in bfloat16: Muon's is within 0.04 of PyTorch's."""
DOUBTFUL = 0.05
"""Relative error of PyTorch's own gradients from which on a comparison says little."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What is not as in PyTorch.

    ``kind`` is ``loss``, ``gradient``, ``metric``, ``buffer``, ``parameter`` or ``state`` (new
    values); or ``draws``, ``run`` or ``later``: then ``name`` says what was drawn, why the graph
    cannot run, or what a later step does. ``error`` and ``tolerance`` are relative to the largest
    entry of the tensor, ``place`` is its module and the line of the user's code that reads it
    first. ``step`` is the step in which it was seen.
    """

    kind: str
    name: str
    error: float
    tolerance: float
    step: int
    place: str = ""


class Tolerance:
    """What the tensors of a step may be off by.

    ``own`` is what PyTorch's is off by, absolute, by name, in entries that are finite both times;
    ``typical`` the same in the middle, relative; ``largest`` the largest entry of all; ``units``
    see :data:`UNITS`.
    """

    def __init__(
        self,
        first: Mapping[str, Array],
        exact: Mapping[str, Array] | None,
        narrowest: float = _UNIT,
        units: float = GRADIENT_UNITS,
    ) -> None:
        """Learn from PyTorch's own errors.

        Args:
            first: PyTorch's tensors by name, as float64 arrays.
            exact: the same computed in float64; None where the step does not run in it.
            narrowest: the unit of the narrowest float type in the step.
            units: those of float32 that are granted in any case.
        """
        self.units = units
        self.largest = max((largest_of(a) for a in first.values()), default=0.0)
        self.own: dict[str, float] = {}
        self.typical = 0.0 if exact is not None else _TYPICAL * narrowest
        if exact is not None:
            self.own = {n: finite_distance(a, exact[n]) for n, a in first.items() if n in exact}
            self.typical = self._middle(self.own, {n: largest_of(exact[n]) for n in self.own})

    def of(self, name: str, scale: float) -> float:
        """The absolute error that a tensor with this largest entry may have."""
        least = scale * max(FACTOR * self.typical, self.units * _UNIT)
        return max(FACTOR * self.own.get(name, 0.0), least, ZERO_UNITS * _UNIT * self.largest)

    def like(self, own: Mapping[str, float], largest: float = 0.0) -> Tolerance:
        """The same for what else a step gives.

        Args:
            own: what PyTorch's tensors are off by, by name.
            largest: the size of the terms that they may be differences of.
        """
        found = copy.copy(self)
        found.units, found.largest = UNITS, largest
        found.own = {name: max(error, self.own.get(name, 0.0)) for name, error in own.items()}
        return found

    def _middle(self, errors: Mapping[str, float], scales: Mapping[str, float]) -> float:
        """The median of errors, relative to largest entries, of tensors that are not 0."""
        least = _UNIT * self.largest
        return median([errors[n] / scales[n] for n in errors if scales[n] > least] or [0.0])


@dataclass(frozen=True, slots=True)
class Compared:
    """One kind of tensor, compared: the largest relative error and the tensor that has it, what
    differs, and the tensors of which PyTorch has no finite entry."""

    error: float = 0.0
    worst: str = ""
    differences: tuple[Difference, ...] = ()
    empty: tuple[str, ...] = ()


def compare(
    kind: str,
    step: int,
    found: Mapping[str, Array],
    wanted: Mapping[str, Array],
    exact: Mapping[str, Array],
    tolerance: Tolerance,
) -> Compared:
    """Hold tensors against PyTorch's, or against its exact ones, each entry against the nearer. One
    that is not finite must be so in PyTorch."""
    worst, error, empty = "", 0.0, []
    differences: list[Difference] = []
    for name, want in wanted.items():
        got = found[name]
        right = exact.get(name, want)
        apart = distance(got, want, right)
        if want.size and not (np.isfinite(want) & np.isfinite(right)).any():
            empty.append(name)
        scale = max(largest_of(right), largest_of(want))
        allowed = tolerance.of(name, scale)
        relative, wrong = _judged(kind, name, step, apart, allowed, scale)
        differences += wrong
        if scale > ZERO_UNITS * _UNIT * tolerance.largest and relative >= error:
            worst, error = name, relative
    return Compared(error, worst, tuple(differences), tuple(empty))


def compare_whole(
    kind: str,
    step: int,
    found: Mapping[str, Array],
    wanted: Mapping[str, Array],
    exact: Mapping[str, Array],
) -> Compared:
    """Hold tensors of whole numbers or truth values against PyTorch's: they are the same, or as in
    its exact step."""
    differences = []
    for name, want in wanted.items():
        got, right = found[name], exact.get(name, want)
        wrong = True if got.shape != want.shape else (got != want) & (got != right)
        if np.any(wrong):
            off = distance(got.astype(np.float64), want.astype(np.float64))
            relative = off / max(largest_of(want.astype(np.float64)), 1.0)
            differences.append(Difference(kind, name, relative, 0.0, step))
    return Compared(differences=tuple(differences))


@dataclass(frozen=True, slots=True)
class Side:
    """Tensors of one kind by name: the graph's, PyTorch's, and its exact ones where there are any.
    Without a tolerance they are whole numbers or truth values."""

    kind: str
    found: Mapping[str, Array]
    wanted: Mapping[str, Array]
    exact: Mapping[str, Array]
    tolerance: Tolerance | None

    def compared(self, step: int) -> Compared:
        """The one held against the others, in this step."""
        given = self.found, self.wanted, self.exact
        if self.tolerance is None:
            return compare_whole(self.kind, step, *given)
        return compare(self.kind, step, *given, self.tolerance)

    def gaps(self) -> dict[tuple[str, str], Array]:
        """By kind and name: the graph's tensors less PyTorch's; 0 where that is no number."""
        gaps = {}
        for name, want in self.wanted.items():
            got, right = self.found[name], self.exact.get(name, want)
            if got.shape == right.shape:
                with np.errstate(invalid="ignore"):
                    gap = got.astype(np.float64) - right.astype(np.float64)
                gaps[self.kind, name] = np.where(np.isfinite(gap), gap, 0.0)
        return gaps


def compare_update(
    step: int,
    name: str,
    found: Array,
    wanted: Array,
    before: Array | None,
    unit: float = _UNIT,
    rough: bool = False,
) -> Compared:
    """Hold a new parameter (``before``: what it was) or a state tensor against that of PyTorch's
    optimizer, which had the same gradients. ``unit`` is that of its type; ``rough``: the update is
    computed in bfloat16, and is judged by norm."""
    largest, apart = largest_of(wanted), distance(found, wanted)
    with np.errstate(invalid="ignore"):
        moved = largest_of(wanted - before) if before is not None else largest
    allowed = 4 * unit * largest + _UPDATE_SHARE * moved
    if rough and before is not None and np.isfinite(apart):
        apart = float(np.linalg.norm(found - wanted))
        allowed += _ROUGH_SHARE * float(np.linalg.norm(wanted - before))
    kind = "state" if before is None else "parameter"
    error, differences = _judged(kind, name, step, apart, allowed, largest)
    return Compared(error, name, differences)


def _judged(
    kind: str, name: str, step: int, apart: float, allowed: float, scale: float
) -> tuple[float, tuple[Difference, ...]]:
    """An error relative to the largest entry, and that it is a difference where it is one."""
    error = apart / scale if scale else (0.0 if apart <= allowed else float("inf"))
    if apart > allowed:
        bound = allowed / scale if scale else 0.0
        return error, (Difference(kind, name, error, bound, step),)
    return error, ()


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
        apart = np.where(same, 0.0, np.abs(one - other))
    return np.where(np.isnan(apart), np.inf, apart)


def finite_distance(one: Array, other: Array) -> float:
    """The largest difference of two arrays in entries that are finite in both; 0 without any."""
    finite = np.isfinite(one) & np.isfinite(other)
    return float(np.abs(one[finite] - other[finite]).max(initial=0.0))
