"""One limit of time for all the parts of a task, with a clock that tests may set."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]
"""Seconds since some moment, as :func:`time.perf_counter` tells them."""


def now() -> float:
    """The clock of deadlines that are given none."""
    return time.perf_counter()


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment ``seconds`` after this value was made; infinite seconds: there is none.

    Whoever does a part of the task is handed this value or a :meth:`share` of it, never a number of
    seconds to begin anew: so no retry and no stage can make the whole take longer.
    """

    seconds: float = math.inf
    clock: Clock = now
    begun: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "begun", self.clock())

    @property
    def spent(self) -> float:
        """Seconds since it was set."""
        return self.clock() - self.begun

    @property
    def left(self) -> float:
        """Seconds until it; 0 once it has passed."""
        return max(0.0, self.seconds - self.spent)

    @property
    def passed(self) -> bool:
        """Whether it has passed."""
        return self.spent >= self.seconds

    def share(self, part: float = 1.0, most: float = math.inf) -> Deadline:
        """An earlier deadline, for a part of the task.

        Args:
            part: of the seconds that are left.
            most: seconds, whatever is left.
        """
        left = self.left
        # Nothing of what has no end: that is no seconds, not an undefined number of them.
        return Deadline(min(part * left if part else 0.0, most), self.clock)
