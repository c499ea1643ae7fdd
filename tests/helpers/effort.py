"""How much a random test tries.

By default a fifth of what finds most in the long run, which keeps the whole suite short; with
``MEMPLAN_THOROUGH=1`` all of it.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest

THOROUGH = os.environ.get("MEMPLAN_THOROUGH") == "1"
_FEWEST = 10


def few_by_day(cases: Iterable[Any]) -> list[Any]:
    """Every fifth case, which may be a tuple of values; all in a thorough run."""
    found = []
    for k, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marks = [pytest.mark.nightly] * (k % 5 > 0)
        found.append(pytest.param(*values, marks=marks, id="-".join(map(str, values))))
    return found


def tries(number: int) -> int:
    """How many examples to try, of ``number`` in a thorough run."""
    return number if THOROUGH else max(number // 5, min(number, _FEWEST))
