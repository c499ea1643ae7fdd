"""Equality of outputs: bitwise, or how far apart, element by element."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from memplan.runtime.archive import BFLOAT16

Array = npt.NDArray[np.generic]

TOLERANCE = 1e-4
"""Two correct runs of float32 training graphs differ by about this much, relative, when additions
are in another order (docs/how/memory-model.md)."""
NOISE = 4.0
"""How many times what an output differs from itself in two runs it may differ from another."""
ROUNDING = 1e-5
"""What a float output may differ from another that is proved to be the same but for rounding,
relative to its largest element. Sums of float32 training graphs in chunks differ by at most 2e-6
(docs/how/chunking.md)."""
_PEEK = 64


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """An output whose bits differ.

    ``mismatch`` says how element types or shapes differ, if they do. ``max_rel_diff`` is relative
    to the largest magnitude in the output. ``excess`` is the largest difference of an element in
    units of its own tolerance (:func:`excess`), for what is no float in units of the element.
    """

    name: str
    mismatch: str
    max_abs_diff: float
    max_rel_diff: float
    excess: float
    is_float: bool

    @property
    def is_rounding(self) -> bool:
        """Whether it may be rounding alone, where a proof leaves nothing else. It says less than
        :meth:`allowed`: a large element would hide what small ones lack."""
        return not self.mismatch and self.is_float and self.max_rel_diff <= ROUNDING

    def allowed(self, itself: OutputDifference | None) -> bool:
        """Whether it may pass as equal. ``itself``: what the output differs from itself.

        A float may differ by its tolerance, anything else by nothing; and each by what it differs
        from itself, :data:`NOISE` times. The noise of one output excuses no other.
        """
        if self.mismatch:
            return False
        free = 1.0 if self.is_float else 0.0
        noise = itself.excess if itself is not None and not itself.mismatch else 0.0
        return self.excess <= max(free, NOISE * noise)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two runs' outputs compare.

    ``max_rel_diff`` is the largest difference of an output relative to the largest magnitude in
    that output; ``worst`` names it. ``differing`` counts outputs that are not bitwise equal, which
    ``differences`` are. ``uniform``: outputs of the first run that are one value throughout, and
    that value (``nan`` if all are NaN).
    """

    bitwise: bool
    max_abs_diff: float
    max_rel_diff: float
    worst: str
    differing: int
    outputs: int
    differences: tuple[OutputDifference, ...] = field(default=(), compare=False)
    uniform: Mapping[str, str] = field(default_factory=dict, compare=False)

    def difference_of(self, name: str) -> OutputDifference | None:
        """What an output differs; None if it does not."""
        return next((d for d in self.differences if d.name == name), None)


def compare_outputs(
    first: Path, second: Path, names: Sequence[str], second_names: Sequence[str] | None = None
) -> Comparison:
    """Compare two output archives of :mod:`memplan.runtime.run_child`, output by output.

    ``names`` are the outputs of the first, in order; ``second_names`` those of the second where
    they are fewer: only common ones are compared.
    """
    place = {
        name: index for index, name in enumerate(names if second_names is None else second_names)
    }
    common = [(index, name) for index, name in enumerate(names) if name in place]
    found: list[OutputDifference] = []
    uniform: dict[str, str] = {}
    with np.load(first) as a, np.load(second) as b:
        for index, name in common:
            x, y = a[f"o{index}"], b[f"o{place[name]}"]
            value = uniform_value(x)
            if value is not None:
                uniform[name] = value
            if not same_bits(x, y):
                found.append(output_difference(name, x, y))
    worst = max(reversed(found), key=lambda d: d.max_rel_diff, default=None)
    return Comparison(
        bitwise=not found,
        max_abs_diff=max((d.max_abs_diff for d in found), default=0.0),
        max_rel_diff=worst.max_rel_diff if worst else 0.0,
        worst=worst.name if worst else "",
        differing=len(found),
        outputs=len(common),
        differences=tuple(found),
        uniform=uniform,
    )


def same_bits(x: Array, y: Array) -> bool:
    """Whether element type, shape and all bits are equal."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    a, b = (np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in (x, y))
    return bool(np.array_equal(a, b))


def output_difference(name: str, x: Array, y: Array) -> OutputDifference:
    """What an output ``x`` of the original and ``y`` of another model differ. Types and shapes come
    first: values of other types are not compared."""
    mismatch = ""
    if x.dtype != y.dtype or x.shape != y.shape:
        mismatch = f"{x.dtype}{list(x.shape)} -> {y.dtype}{list(y.shape)}"
    x, y = _readable(x), _readable(y)
    is_float = x.dtype.kind in "fc"
    if mismatch:
        return OutputDifference(name, mismatch, math.inf, math.inf, math.inf, is_float)
    absolute, relative = difference(x, y)
    return OutputDifference(
        name, "", absolute, relative, excess(x, y) if is_float else absolute, is_float
    )


def difference(x: Array, y: Array) -> tuple[float, float]:
    """Largest absolute difference, and the same over the largest magnitude; inf if incomparable.

    Equal infinities and NaNs at the same places count as no difference. Whole numbers are compared
    exactly, which float64 would not do beyond 2^53.
    """
    if x.shape != y.shape or x.dtype.kind not in "fiub" or y.dtype.kind not in "fiub":
        same = x.shape == y.shape and bool(np.array_equal(x, y))
        return (0.0, 0.0) if same else (math.inf, math.inf)
    if x.dtype == y.dtype and x.dtype.kind in "iu":
        absolute = _largest_gap(x, y)
        largest = max((abs(int(v)) for v in (x.min(), x.max())), default=0) if x.size else 0
        return _relative(absolute, float(largest))
    gap, a = _gap(x, y)
    if not np.isfinite(gap).all():
        return math.inf, math.inf
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    return _relative(float(gap.max(initial=0.0)), scale)


def excess(x: Array, y: Array) -> float:
    """The largest difference of two float arrays, each element's in units of its tolerance.

    An element ``a`` of ``x`` may differ by ``TOLERANCE * (|a| + m)``, where ``m`` is the median
    magnitude of the elements that are neither 0 nor infinite. The first part alone would fail an
    element near 0 that is a sum of terms of ordinary size. The largest element as the scale, or
    their root mean square, would let one large element hide the loss of all others; half of all
    elements must be large to move the median. Zeros are left out of it, as gradients of unused rows
    are. NaNs and infinities must be where they were.
    """
    gap, a = _gap(x, y)
    if not gap.any():
        return 0.0
    if not np.isfinite(gap).all():
        return math.inf
    size = np.abs(a)
    ordinary = size[np.isfinite(size) & (size > 0)]
    middle = float(np.median(ordinary)) if ordinary.size else 0.0
    # Where both are NaN or infinite the gap is 0, and any finite tolerance will do.
    limit = TOLERANCE * (np.where(np.isfinite(size), size, 0.0) + middle)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(gap == 0, 0.0, gap / limit)
    return float(share.max(initial=0.0))


def uniform_value(x: Array) -> str | None:
    """The value that all elements have, as text (``nan`` for NaNs of any bits); None if they differ
    or there are none."""
    flat = _readable(x).reshape(-1)
    if not flat.size:
        return None
    for part in (flat[:_PEEK], flat):
        if part.dtype.kind in "fc" and np.isnan(part[0]):
            if not np.isnan(part).all():
                return None
        elif not (part == part[0]).all():
            return None
    return str(flat[0] + 0) if flat.dtype.kind in "iufc" else str(flat[0])  # -0.0 is 0.0


def _gap(x: Array, y: Array) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Absolute differences, 0 where both are NaN or the same infinity; and ``x`` as float64."""
    if x.dtype.kind == "c":
        x, y = (np.stack([v.real, v.imag]) for v in (x, y))
    a, b = x.astype(np.float64), y.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.abs(np.where(same, 0.0, a - b)), a


def _largest_gap(x: Array, y: Array) -> float:
    """The largest difference of whole numbers: in unsigned arithmetic it cannot overflow."""
    wide = np.uint64
    high, low = np.maximum(x, y).astype(wide), np.minimum(x, y).astype(wide)
    return float((high - low).max(initial=0))


def _relative(absolute: float, scale: float) -> tuple[float, float]:
    if absolute == 0:
        return 0.0, 0.0
    return absolute, absolute / scale if scale else math.inf


def _readable(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype == BFLOAT16 else x
