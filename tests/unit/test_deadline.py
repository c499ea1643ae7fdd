"""One limit of time: what is left of it, and shares that never end later."""

import math

import pytest

from memplan.deadline import Deadline


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_is_left_falls_with_the_clock(clock: Clock) -> None:
    deadline = Deadline(10.0, clock)
    assert (deadline.spent, deadline.left, deadline.passed) == (0.0, 10.0, False)
    clock.time += 4.0
    assert (deadline.spent, deadline.left, deadline.passed) == (4.0, 6.0, False)
    clock.time += 7.0
    assert (deadline.left, deadline.passed) == (0.0, True)


def test_a_share_is_of_what_is_left(clock: Clock) -> None:
    deadline = Deadline(10.0, clock)
    clock.time += 4.0
    assert deadline.share(0.5).left == 3.0
    assert deadline.share(0.5, most=2.0).left == 2.0
    assert deadline.share(most=20.0).left == 6.0


def test_a_share_of_a_share_never_ends_after_the_whole(clock: Clock) -> None:
    deadline = Deadline(10.0, clock)
    clock.time += 9.0
    share = deadline.share().share()
    clock.time += 1.0
    assert share.passed
    assert deadline.passed
    assert deadline.share().passed


def test_without_a_limit_it_never_passes(clock: Clock) -> None:
    deadline = Deadline(clock=clock)
    clock.time += 1e9
    assert deadline.left == math.inf
    assert not deadline.passed
    assert deadline.share(0.3).left == math.inf
    assert deadline.share(0.3, most=5.0).left == 5.0
    assert deadline.share(0.0).passed
