"""The largest value that fits is found, whatever the growth of peaks, in few rounds."""

from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from helpers.sweeps import NO_PLAN, footprint, search

SIZES = st.integers(min_value=0, max_value=10**6)


def searched(amount: Callable[[int], int], limit: int) -> int:
    """The largest number of which ``amount`` is within ``limit``."""
    fit, asked = search(limit, lambda n: footprint(amount(n), amount(n)), lambda n: NO_PLAN)
    looked_at = [number for number, planning in asked if not planning]
    assert len(looked_at) == len(set(looked_at))
    assert len(looked_at) <= 3 * 40
    assert fit.as_it_is == fit.floor_allows == fit.largest
    return fit.as_it_is


@given(SIZES, st.integers(min_value=1, max_value=1000), st.integers(min_value=1, max_value=10**9))
@example(0, 1, 1)
def test_straight_growth(fixed: int, slope: int, limit: int) -> None:
    found = searched(lambda n: fixed + slope * n, limit)
    assert found == max(0, (limit - fixed) // slope)


@given(SIZES, st.integers(1, 1000), st.integers(1, 64), st.integers(1, 10**9))
def test_growth_in_steps(fixed: int, slope: int, block: int, limit: int) -> None:
    """As where an allocation is rounded up."""

    def amount(number: int) -> int:
        return fixed + slope * block * -(-number // block)

    found = searched(amount, limit)
    assert found == 0 or amount(found) <= limit
    assert amount(found + 1) > limit


@given(SIZES, st.integers(1, 1000), st.integers(1, 10**9))
def test_quadratic_growth(fixed: int, slope: int, limit: int) -> None:
    """As of attention in the length of a sequence."""
    found = searched(lambda n: fixed + slope * n * n, limit)
    assert found == 0 or fixed + slope * found**2 <= limit
    assert fixed + slope * (found + 1) ** 2 > limit
