"""The numbers that a search for the largest one looks at."""

from __future__ import annotations

import pytest

from memplan.api.sweep.bisect import LARGEST, bracket, falls, next_numbers, straight_guess


@pytest.mark.parametrize(
    ("fits", "found"),
    [
        ({}, (0, None)),
        ({1: True, 2: True}, (2, None)),
        ({1: False}, (0, 1)),
        ({1: True, 8: False, 4: True, 16: False}, (4, 8)),
        ({1: True, 2: False, 4: True, 8: False}, (4, 8)),  # what is below does not count
    ],
)
def test_bracket(fits: dict[int, bool], found: tuple[int, int | None]) -> None:
    assert bracket(fits) == found


@pytest.mark.parametrize(
    ("fits", "guess", "wanted"),
    [
        ({}, None, (1, 2, 4)),
        ({}, 7, (7, 8, 28)),
        ({1: True}, None, (2, 4, 8)),
        ({4: True}, 3, (8, 16, 32)),  # a guess below what is known
        ({4: True, 5: False}, None, ()),
        ({1: False}, None, ()),
        ({4: True, 8: False}, None, (5, 6, 7)),
        ({100: True, 200: False}, None, (125, 150, 175)),
        ({100: True, 200: False}, 180, (150, 180, 181)),
        ({100: True, 200: False}, 199, (150, 199)),
        ({100: True, 200: False}, 500, (125, 150, 175)),
        ({LARGEST: True}, None, ()),
        ({LARGEST - 1: True}, None, (LARGEST,)),
    ],
)
def test_next_numbers(fits: dict[int, bool], guess: int | None, wanted: tuple[int, ...]) -> None:
    assert next_numbers(fits, guess) == wanted


@pytest.mark.parametrize(
    ("amounts", "limit", "guess"),
    [
        ({}, 10, None),
        ({1: 5}, 10, None),
        ({1: 10, 2: 20}, 100, 10),
        ({1: 10, 2: 20, 4: 40}, 105, 10),
        ({10: 100, 20: 200}, 155, 15),
        ({10: 100, 20: 200}, 50, 5),
        ({10: 100, 20: 200}, 1, 0),
        ({1: 10, 2: 10}, 100, None),
        ({1: 20, 2: 10}, 100, None),
    ],
)
def test_straight_guess(amounts: dict[int, int], limit: int, guess: int | None) -> None:
    assert straight_guess(amounts, limit) == guess


def test_falls() -> None:
    assert falls({}) is None
    assert falls({1: 1, 3: 3, 2: 2, 4: 3}) is None
    assert falls({1: 1, 2: 5, 3: 4, 4: 2}) == (2, 3)
