"""The largest number that fits, where what fits at one number fits at every smaller one.

Pure: which numbers to look at next, given what is known. Up to three are looked at per round,
whatever the number of cores, so that the same are looked at everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

LARGEST = 2**40
"""Where the search ends: no dimension is larger."""
_PARTS = 4


def bracket(fits: Mapping[int, bool]) -> tuple[int, int | None]:
    """The largest number that fits (0: none does) and the smallest above it that does not."""
    low = max((number for number, fit in fits.items() if fit), default=0)
    above = [number for number, fit in fits.items() if not fit and number > low]
    return low, min(above, default=None)


def next_numbers(fits: Mapping[int, bool], guess: int | None = None) -> tuple[int, ...]:
    """What to look at next; nothing where the answer is known.

    Args:
        fits: whether the numbers that were looked at fit.
        guess: the answer, if somebody believes to know it; looked at with its successor.
    """
    low, high = bracket(fits)
    if high is None:
        wanted = {2 * low, 4 * low, 8 * low} if low else {1, 2, 4}
        if guess is not None and guess > low:
            # Should the guess be right, two are enough; should it be too low, one is far above.
            wanted = {guess, guess + 1, 4 * guess}
        return tuple(sorted({min(number, LARGEST) for number in wanted if low < LARGEST}))
    inside = range(low + 1, high)
    wanted = {low + part * (high - low) // _PARTS for part in range(1, _PARTS)}
    if guess is not None:
        near = {number for number in (guess, guess + 1) if number in inside}
        wanted = near | {low + (high - low) // 2} if near else wanted
    return tuple(sorted(number for number in wanted if number in inside))


def straight_guess(amounts: Mapping[int, int], limit: int) -> int | None:
    """The largest number within ``limit`` if amounts grew along a line.

    The line goes through the two numbers around the limit, or the two that are nearest below it;
    None where there are not two, or the amount does not grow.
    """
    known = sorted(amounts.items())
    below = [item for item in known if item[1] <= limit]
    above = [item for item in known if item[1] > limit]
    ends = [*below[-1:], *above[:1]] if below and above else (below or above)[-2:]
    if len(ends) < 2:
        return None
    (low, least), (high, most) = ends
    if most <= least:
        return None
    return max(0, low + (limit - least) * (high - low) // (most - least))


def falls(amounts: Mapping[int, int]) -> tuple[int, int] | None:
    """The first two neighbours of which the larger number has the smaller amount; None: it never
    falls."""
    known = sorted(amounts.items())
    for (number, amount), (following, then) in pairwise(known):
        if then < amount:
            return number, following
    return None
