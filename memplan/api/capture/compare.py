"""How far a captured step may be from PyTorch's, and how far it is.

Two correct float32 steps differ by rounding, by how much depends on the network. PyTorch itself
says it: the same step in float64 shows what its own float32 (or float16) is off by. A tensor may
differ by :data:`FACTOR` times

- what PyTorch's is off by in this very tensor,
- what PyTorch's gradients are off by in the middle (the median, relative to their largest entries),
- :data:`UNITS` units of its type's precision in its largest entry, the least that sums in another
  order are granted,

whichever is most. What is zero but for rounding is granted a unit of the largest of all gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FACTOR = 8.0
UNITS = 128.0
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
    values), or ``draws``: then ``name`` says what was drawn. ``error`` and ``tolerance`` are
    relative to the largest entry of the tensor, ``place`` is its module and the line of the user's
    code that reads it first. ``step`` is the step in which it was seen.
    """

    kind: str
    name: str
    error: float
    tolerance: float
    step: int
    place: str = ""


class Tolerance:
    """What loss and gradients of a step may be off by."""

    def __init__(
        self,
        first: Mapping[str, Array],
        exact: Mapping[str, Array] | None,
        precision: Mapping[str, float],
        narrowest: float,
    ) -> None:
        """Learn from PyTorch's own errors.

        Args:
            first: PyTorch's tensors by name, as float64 arrays.
            exact: the same computed in float64; None where the step does not run in it.
            precision: the unit of each tensor's own type.
            narrowest: the unit of the narrowest float type in the step.
        """
        self.precision = precision
        self.largest = max((_largest(a) for a in first.values()), default=0.0)
        self.own: dict[str, float] = {}
        self.typical = 0.0 if exact is not None else _TYPICAL * narrowest
        if exact is not None:
            relative = []
            for name, array in first.items():
                if name in exact:
                    self.own[name] = _apart(array, exact[name])
                    scale = _largest(exact[name])
                    if scale > narrowest * self.largest:
                        relative.append(self.own[name] / scale)
            self.typical = median(relative) if relative else 0.0

    def of(self, name: str, scale: float) -> float:
        """The absolute error that a tensor with this largest entry may have."""
        unit = self.precision.get(name, 2.0**-24)
        least = scale * max(FACTOR * self.typical, UNITS * unit)
        return max(FACTOR * self.own.get(name, 0.0), least, unit * self.largest)


@dataclass(frozen=True, slots=True)
class Compared:
    """One kind of tensor, compared: the largest relative error and the tensor that has it, and
    what differs."""

    error: float = 0.0
    worst: str = ""
    count: int = 0
    differences: tuple[Difference, ...] = ()


def compare(
    kind: str,
    step: int,
    found: Mapping[str, Array],
    wanted: Mapping[str, Array],
    exact: Mapping[str, Array],
    tolerance: Tolerance,
) -> Compared:
    """Hold tensors against PyTorch's, or against its exact ones, whichever are nearer."""
    worst, error, differences = "", 0.0, []
    for name, want in wanted.items():
        got = found[name]
        right = exact.get(name, want)
        apart = min(_apart(got, want), _apart(got, right))
        scale = max(_largest(right), _largest(want))
        allowed = tolerance.of(name, scale)
        relative = apart / scale if scale else (0.0 if apart <= allowed else float("inf"))
        if apart > allowed:
            bound = allowed / scale if scale else 0.0
            differences.append(Difference(kind, name, relative, bound, step))
        if scale > np.finfo(np.float32).eps * tolerance.largest and relative >= error:
            worst, error = name, relative
    return Compared(error, worst, len(wanted), tuple(differences))


def compare_update(
    step: int,
    name: str,
    found: Array,
    wanted: Array,
    before: Array | None,
    rough: bool = False,
) -> Compared:
    """Hold a new parameter (``before``: what it was) or a state tensor against that of PyTorch's
    optimizer, which had the same gradients. ``rough``: the update is computed in bfloat16, and is
    judged by norm."""
    largest, apart = _largest(wanted), _apart(found, wanted)
    moved = _largest(wanted - before) if before is not None else largest
    allowed = 4 * _UNIT * largest + _UPDATE_SHARE * moved
    if rough and before is not None and np.isfinite(apart):
        apart = float(np.linalg.norm(found - wanted))
        allowed += _ROUGH_SHARE * float(np.linalg.norm(wanted - before))
    error = apart / largest if largest else (0.0 if apart <= allowed else float("inf"))
    differences: tuple[Difference, ...] = ()
    if apart > allowed:
        kind = "state" if before is None else "parameter"
        bound = allowed / largest if largest else 0.0
        differences = (Difference(kind, name, error, bound, step),)
    return Compared(error, name, 1, differences)


def _largest(array: Array) -> float:
    return float(np.abs(array).max()) if array.size else 0.0


def _apart(one: Array, other: Array) -> float:
    """The largest difference of two arrays; infinite where one alone is not finite, or shapes are
    others."""
    if one.shape != other.shape:
        return float("inf")
    if not one.size:
        return 0.0
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(one - other))
    return float("inf") if np.isnan(apart).any() else float(apart.max())
