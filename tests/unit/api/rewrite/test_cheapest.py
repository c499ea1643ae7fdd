"""Which plan is taken of several candidates: the best so far, whatever the clock says."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.api.rewrite import cheapest
from memplan.api.rewrite.cheapest import Planned
from memplan.deadline import Deadline
from memplan.errors import InfeasibleError

Looks = Sequence[float | None]
"""The cost of the plan that each look at a candidate finds; None: none. The last ends early."""


def candidate(name: str, least: float = 0.0) -> Any:
    graph = SimpleNamespace(nodes=())
    return SimpleNamespace(
        kind=name, least_cost=least, chunk=None, model=SimpleNamespace(graph=graph)
    )


def plan_of(cost: float, bound: float | None = None) -> Any:
    return SimpleNamespace(
        extra_cost_fraction=cost,
        bound_fraction=bound or 0.0,
        bound_kind="trivial" if bound is None else "order-free",
        predicted_peak_bytes=0,
        predicted_peak_with_workspace_bytes=int(100 * (1 - cost)),
        sequence=(),
    )


def taken(
    every: dict[str, Looks],
    limit: float,
    least: Callable[[str], float] = lambda name: 0.0,
    *,
    lowest: bool = False,
    clock: list[float] | None = None,
    prepared: Callable[..., Any] = lambda *_: SimpleNamespace(floor_bytes=0),
) -> tuple[Planned, list[str], float]:
    """The plan, whose turn it was to be looked at, and when all was over."""
    time, looked = [0.0] if clock is None else clock, list[str]()

    def look(entry: Any, asked: Any, goal: Any, deadline: Deadline) -> Planned:
        name = entry.candidate.kind
        found = every[name][min(looked.count(name), len(every[name]) - 1)]
        looked.append(name)
        last = looked.count(name) >= len(every[name])
        time[0] += deadline.seconds / (2 if last else 1)
        entry.closed = last
        if found is None:
            raise InfeasibleError("no plan")
        return Planned(entry.candidate, (), plan_of(found))

    deadline = Deadline(limit, lambda: time[0])
    goal: Any = SimpleNamespace(
        deadline=deadline,
        spare=lambda nodes: deadline.seconds - deadline.spent,
        grace=max(1.0, 0.1 * limit),
        lowest=lowest,
        chunk=None,
        strategy=SimpleNamespace(ignores_budget=False),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cheapest, "steps_of", lambda *_: ())
        patch.setattr(cheapest, "orders_of", lambda *_: ((),))
        patch.setattr(cheapest, "chunk_cost", lambda *_: 0.0)
        patch.setattr(cheapest, "_prepared", prepared)
        patch.setattr(cheapest, "_plan", look)
        contest = cheapest._Contest(goal)
        found = contest.winner([candidate(name, least(name)) for name in every])
    return found, looked, time[0]


COSTS = st.lists(st.none() | st.floats(0.01, 1.0), min_size=1, max_size=8)


@given(
    st.lists(COSTS, min_size=2, max_size=5),
    st.floats(0.5, 60.0),
    st.floats(1.0, 3.0),
    st.booleans(),
)
def test_more_time_never_gives_a_worse_plan(
    looks: list[Looks], limit: float, more: float, lowest: bool
) -> None:
    every = {str(k): each for k, each in enumerate(looks)}
    try:
        less, looked, _ = taken(every, limit, lowest=lowest)
    except InfeasibleError:
        return
    longer, again, _ = taken(every, limit * more, lowest=lowest)
    assert again[: len(looked)] == looked
    assert cost(longer) <= cost(less) if not lowest else longer.peak_bytes <= less.peak_bytes


def cost(plan: Planned) -> float:
    return plan.extra_cost


def test_the_clock_is_kept_once_there_is_a_plan() -> None:
    every = {"a": [0.5] * 30, "b": [0.4] * 30, "c": [0.3] * 30}
    for limit in (1.0, 2.0, 10.0, 61.0):
        assert taken(every, limit)[2] == pytest.approx(limit)


def test_the_first_plan_may_be_late_by_a_second_or_a_tenth() -> None:
    every = {"a": [None] * 40, "b": [None] * 40}
    for limit, grace in ((0.2, 1.0), (5.0, 1.0), (10.0, 1.0), (60.0, 6.0)):
        clock = [0.0]
        with pytest.raises(InfeasibleError):
            taken(every, limit, clock=clock)
        assert clock == pytest.approx([limit + grace])


def test_a_candidate_alone_has_all_the_time() -> None:
    assert taken({"a": [0.5, 0.4]}, 10.0)[1:] == (["a"], 10.0)


def test_what_must_cost_more_than_the_best_is_not_looked_at() -> None:
    least = {"a": 0.0, "b": 0.2, "c": 0.4}
    found, looked, _ = taken({"a": [0.3], "b": [0.25], "c": [0.4]}, 10.0, least.__getitem__)
    assert (cost(found), looked) == (0.25, ["a", "b"])


def test_what_costs_more_may_be_lower() -> None:
    least = {"a": 0.0, "b": 0.4}
    found, _, _ = taken({"a": [0.1], "b": [0.5]}, 10.0, least.__getitem__, lowest=True)
    assert cost(found) == 0.5


def test_of_what_is_to_be_lowest_floors_say_what_is_left() -> None:
    def prepared(entry: Any, goal: Any) -> Any:
        return SimpleNamespace(floor_bytes={"a": 50, "b": 20, "c": 90}[entry.candidate.kind])

    every = {"a": [0.4, 0.4, 0.4], "b": [0.3, 0.5], "c": [0.2] * 9}
    found, looked, _ = taken(every, 60.0, lowest=True, prepared=prepared)
    assert (found.peak_bytes, looked) == (50, [*"abc", "b"])


@pytest.mark.parametrize(
    ("best", "others", "least"),
    [
        # The plan is optimal among its chunks; without chunks nothing can be cheaper than 0.2.
        ((0.1, 0.05), [(0.3, 0.2)], 1.1 * 1.05 - 1),
        # Other chunks may be cheaper than their best plan, which is not known to be the best.
        ((0.1, 0.1), [(0.3, 0.02)], 1.1 * 1.02 - 1),
        # Of a plan without a bound its chunks are known.
        ((0.1, None), [(0.3, 0.2)], 0.1),
        # What was proved to be impossible is no bound, what was not found bounds by its chunks.
        ((0.1, 0.1), [None], 1.1 * 1.1 - 1),
        ((0.1, 0.1), [0.0], 0.1),
    ],
)
def test_no_plan_of_all_that_was_tried_costs_less(
    best: tuple[float, float | None], others: list[Any], least: float
) -> None:
    """Every candidate has chunks that cost a tenth."""
    contest = cheapest._Contest(SimpleNamespace(lowest=False))  # type: ignore[arg-type]
    for found in (best, *others):
        entry = cheapest._Entry(candidate("any"), (), 0.1, 0.1, impossible=found is None)
        if isinstance(found, tuple):
            entry.best = Planned(entry.candidate, (), plan_of(*found))
        contest.entries.append(entry)
    contest.best = contest.entries[0].best
    assert contest._answer().least_cost == pytest.approx(least)
    contest.tried["late"] = cheapest.LATE
    assert contest._answer().least_cost is None
