"""The largest number that fits is found, and in few rounds where amounts grow evenly."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from memplan.api.sweep.bisect import bracket, next_numbers, straight_guess

SIZES = st.integers(min_value=0, max_value=10**6)


def searched(amount: object, limit: int) -> tuple[int, int]:
    """The largest number within ``limit``, and the rounds that it took."""
    known: dict[int, int] = {}
    rounds = 0
    while True:
        fits = {number: nbytes <= limit for number, nbytes in known.items()}
        numbers = next_numbers(fits, straight_guess(known, limit))
        if not numbers:
            return bracket(fits)[0], rounds
        assert len(numbers) <= 3
        assert not known.keys() & set(numbers)
        known |= {number: amount(number) for number in numbers}  # type: ignore[operator]
        rounds += 1


@given(SIZES, st.integers(min_value=1, max_value=1000), st.integers(min_value=0, max_value=10**9))
@example(0, 1, 0)
def test_straight_growth_takes_few_rounds(fixed: int, slope: int, limit: int) -> None:
    found, rounds = searched(lambda n: fixed + slope * n, limit)
    assert found == max(0, (limit - fixed) // slope)
    assert rounds <= 3


@given(SIZES, st.integers(1, 1000), st.integers(1, 64), st.integers(0, 10**9))
def test_growth_in_steps(fixed: int, slope: int, block: int, limit: int) -> None:
    """As where an allocation is rounded up."""

    def amount(number: int) -> int:
        return fixed + slope * block * -(-number // block)

    found, rounds = searched(amount, limit)
    assert found == 0 or amount(found) <= limit
    assert amount(found + 1) > limit
    assert rounds <= 40


@given(SIZES, st.integers(1, 1000), st.integers(0, 10**9))
def test_quadratic_growth(fixed: int, slope: int, limit: int) -> None:
    """As of attention in the length of a sequence."""
    found, _ = searched(lambda n: fixed + slope * n * n, limit)
    assert found == 0 or fixed + slope * found**2 <= limit
    assert fixed + slope * (found + 1) ** 2 > limit
