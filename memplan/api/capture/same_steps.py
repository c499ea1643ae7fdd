"""Whether PyTorch took the same step twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from memplan.api.capture.compare_steps import UNITS, distance, largest_of
from memplan.pytorch.eager import EagerStep
from memplan.pytorch.values import in_float64

_SHARE = UNITS * float(np.finfo(np.float32).eps)
"""Of the largest entry: what kernels that add up in no fixed order may be off by."""


def unlike(one: EagerStep, other: EagerStep) -> str:
    """What two steps on the same values do not have in common, but for rounding; or nothing."""
    if not _close(np.asarray(one.loss), np.asarray(other.loss)):
        return "the loss"
    kinds = (
        ("gradient of", one.gradients, other.gradients),
        ("metric", one.metrics, other.metrics),
        ("buffer", one.buffers, other.buffers),
    )
    for what, first, second in kinds:
        name = _unlike(first, second)
        if name is not None:
            return f"the {what} '{name}'"
    return ""


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first tensor that differs; none at all is 0."""
    for name in {**one, **other}:
        given = [in_float64(held[name]) for held in (one, other) if name in held]
        first, second = given if len(given) > 1 else (given[0], np.zeros_like(given[0]))
        if not _close(first, second):
            return name
    return None


def _close(one: Any, other: Any) -> bool:
    if one.shape != other.shape:
        return False
    return distance(one, other) <= _SHARE * max(largest_of(one), largest_of(other))
