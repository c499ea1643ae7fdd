"""How much a random test tries.

By default a fifth of what finds most in the long run, which keeps the whole suite short; with
``MEMPLAN_THOROUGH=1`` all of it.
"""

from __future__ import annotations

import os

THOROUGH = os.environ.get("MEMPLAN_THOROUGH") == "1"
_FEWEST = 10


def tries(number: int) -> int:
    """How many examples to try, of ``number`` in a thorough run."""
    return number if THOROUGH else max(number // 5, min(number, _FEWEST))
