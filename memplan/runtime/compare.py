"""Equality of outputs: bitwise, or how far apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two runs' outputs compare.

    ``max_rel_diff`` is the largest difference of an output relative to the largest magnitude in
    that output; ``worst`` names it. ``differing`` counts outputs that are not bitwise equal.
    """

    bitwise: bool
    max_abs_diff: float
    max_rel_diff: float
    worst: str
    differing: int
    outputs: int


def compare_outputs(
    first: Path, second: Path, names: Sequence[str], second_names: Sequence[str] | None = None
) -> Comparison:
    """Compare two output archives of :mod:`memplan.runtime.child`, output by output.

    ``names`` are the outputs of the first, in order; ``second_names`` those of the second where
    they are fewer: only common ones are compared.
    """
    place = {
        name: index for index, name in enumerate(names if second_names is None else second_names)
    }
    common = [(index, name) for index, name in enumerate(names) if name in place]
    worst, worst_rel, worst_abs, differing = "", 0.0, 0.0, 0
    with np.load(first) as a, np.load(second) as b:
        for index, name in common:
            x, y = a[f"o{index}"], b[f"o{place[name]}"]
            if x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes():
                continue
            differing += 1
            absolute, relative = difference(x, y)
            worst_abs = max(worst_abs, absolute)
            if relative >= worst_rel:
                worst, worst_rel = name, relative
    return Comparison(differing == 0, worst_abs, worst_rel, worst, differing, len(common))


def difference(x: Array, y: Array) -> tuple[float, float]:
    """Largest absolute difference, and the same over the largest magnitude; inf if incomparable.

    Equal infinities and NaNs at the same places count as no difference.
    """
    if x.shape != y.shape or x.dtype.kind not in "fiub" or y.dtype.kind not in "fiub":
        return float("inf"), float("inf")
    a, b = x.astype(np.float64), y.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0, 0.0
    gap = np.abs(np.where(same, 0.0, a - b))
    if not np.isfinite(gap).all():
        return float("inf"), float("inf")
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    absolute = float(gap.max())
    return absolute, absolute / scale if scale else float("inf")
