"""What random tests of gradient rules draw, and how often."""

from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from helpers.gradients import Array


def quiet(examples: int) -> Any:
    """So many examples, the same in every run, of whatever takes its time."""
    return settings(
        deadline=None,
        derandomize=True,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


def ints(*numbers: int) -> Array:
    """Whole numbers, as axes and indices are."""
    return np.asarray(numbers, dtype=np.int64)


def shapes(low: int = 1, high: int = 4, size: int = 3) -> Any:
    """Shapes of ``low`` to ``high`` dimensions, each up to ``size``."""
    return st.lists(st.integers(1, size), min_size=low, max_size=high).map(tuple)
