"""From the profiler's events to one figure per node: runs told apart, outliers out, medians."""

from typing import Any

import pytest

from memplan.runtime.messages import RunTimes
from memplan.runtime.times import medians, run_times, steady

HALF = 0.5e-6


def event(name: str, ts: int, dur: int, cat: str = "Node") -> dict[str, Any]:
    """One event as ONNX Runtime writes it, times in microseconds."""
    suffix = "_kernel_time" if cat == "Node" else ""
    return {"cat": cat, "name": name + suffix, "ts": ts, "dur": dur, "args": {}}


def step(ts: int, dur: int) -> dict[str, Any]:
    """A whole run."""
    return event("model_run", ts, dur, "Session")


def runs_of(*totals: float) -> list[RunTimes]:
    """Runs of one node that took these seconds."""
    return [RunTimes(total, {"n": total}) for total in totals]


def test_runs_are_told_apart_by_the_time() -> None:
    events = [
        event("a", 110, 10),
        event("b", 125, 30),
        step(100, 70),
        event("a", 210, 12),
        event("b", 225, 28),
        step(200, 60),
    ]
    first, second = run_times(events)
    assert first.nodes == pytest.approx({"a": 10e-6 + HALF, "b": 30e-6 + HALF})
    assert second.nodes == pytest.approx({"a": 12e-6 + HALF, "b": 28e-6 + HALF})
    assert (first.step, second.step) == pytest.approx((70e-6, 60e-6))
    assert first.total == pytest.approx(40e-6 + 2 * HALF)


def test_the_order_of_events_does_not_matter() -> None:
    events = [step(200, 60), event("a", 210, 12), step(100, 70), event("a", 110, 10)]
    assert [run.nodes["a"] for run in run_times(events)] == pytest.approx(
        [10e-6 + HALF, 12e-6 + HALF]
    )


def test_a_node_that_ran_twice_counts_with_its_sum() -> None:
    (run,) = run_times([step(0, 100), event("a", 1, 10), event("a", 20, 30)])
    assert run.nodes == pytest.approx({"a": 40e-6 + 2 * HALF})


def test_other_events_are_no_nodes() -> None:
    events = [
        event("session_initialization", 0, 90, "Session"),
        step(100, 50),
        event("SequentialExecutor::Execute", 101, 48, "Session"),
        event("gemm", 105, 9, "Kernel"),
        event("a", 104, 0),
        {"cat": "Node", "name": "a_fence_before", "ts": 103, "dur": 1},
    ]
    (run,) = run_times(events)
    assert run.nodes == pytest.approx({"a": HALF})


def test_nodes_of_a_run_that_did_not_end_are_left_out() -> None:
    (run,) = run_times([event("a", 1, 2), step(0, 10), event("a", 51, 2)])
    assert run.nodes == pytest.approx({"a": 2e-6 + HALF})
    assert run_times([event("a", 1, 2)]) == []


def test_a_run_far_from_the_others_is_dropped() -> None:
    runs = runs_of(1.0, 1.1, 0.9, 1.05, 2.0)
    assert [run.total for run in steady(runs)] == [1.0, 1.1, 0.9, 1.05]


def test_a_run_that_was_too_fast_is_dropped_too() -> None:
    assert [run.total for run in steady(runs_of(1.0, 1.02, 0.98, 0.2, 1.0))] == [
        1.0,
        1.02,
        0.98,
        1.0,
    ]


def test_small_differences_drop_nothing_however_quiet_the_machine() -> None:
    runs = runs_of(1.0, 1.0, 1.0, 1.0, 1.04)
    assert steady(runs) == runs
    assert len(steady(runs_of(1.0, 1.0, 1.0, 1.0, 1.06))) == 4


@pytest.mark.parametrize("totals", [(), (3.0,), (1.0, 9.0), (1.0, 2.0, 9.0)])
def test_some_runs_are_always_left(totals: tuple[float, ...]) -> None:
    assert bool(steady(runs_of(*totals))) == bool(totals)


def test_the_median_of_each_node_on_its_own() -> None:
    runs = [
        RunTimes(0, {"a": 1.0, "b": 9.0}),
        RunTimes(0, {"a": 3.0, "b": 1.0}),
        RunTimes(0, {"a": 2.0, "b": 2.0, "c": 5.0}),
    ]
    assert medians(runs) == {"a": 2.0, "b": 2.0, "c": 5.0}
    assert medians(runs[:2]) == {"a": 2.0, "b": 5.0}
    assert medians([]) == {}
