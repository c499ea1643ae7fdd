"""Launches, copies and bytes moved of a step, counted by hand."""

import pytest

from helpers.graphs import open_text, parse
from helpers.reports import text_of
from memplan.api.analysis import analyze
from memplan.api.diff.diffing import diff
from memplan.ops.cost import Device
from memplan.report.tell.diff import tell_diff
from memplan.simulate.opened import on_devices
from memplan.simulate.session import session_kind
from memplan.simulate.step_work import StepWork, compare_work, step_work
from memplan.simulate.timeline import simulate

# A byte a second, no arithmetic, a second for a launch; half a byte a second to the host.
COUNTING = Device("counting", 1e30, 1.0, 1.0, "none", 0.5)


def work_of(text: str, provider: str = "cuda") -> StepWork:
    kind = session_kind("tuned", provider)
    found = on_devices(open_text(text), kind)
    return step_work(simulate(found.graph, kind, found.devices), COUNTING)


def test_a_launch_for_every_node_that_is_no_view() -> None:
    found = work_of(
        "t (float[8] x) => (float[1,8] y) { a = Relu(x) b = Flatten<axis=0>(a) y = Exp(b) }"
    )
    assert found == StepWork("counting", 2, 0, 2 * 64, 2 * 64 + 2.0)


def test_what_runs_on_the_host_launches_nothing_and_drags_copies() -> None:
    # Tan has no CUDA kernel; Shape has one, which only writes to the host.
    found = work_of(
        "t (float[8] x) => (float[8] y, int64[1] s) "
        "{ a = Relu(x) b = Tan(a) y = Exp(b) s = Shape(a) }"
    )
    assert (found.launches, found.copies) == (2, 2)
    assert found.moved_bytes == 4 * 64
    assert found.seconds == 2 * (64 + 1) + 2 * (32 / 0.5 + 1)


def test_on_the_cpu_every_node_counts() -> None:
    text = "t (float[8] x) => (float[8] y) { a = Relu(x) b = Tan(a) y = Exp(b) }"
    assert work_of(text, "cpu").launches == 3


def test_loops_count_what_runs_inside_as_often_as_it_runs() -> None:
    found = work_of(
        """t (float[4] h, float[5,4] xs) => (float[4] last, float[5,4] ys)
        { last, ys = Scan <num_scan_inputs = 1, body = b
          (float[4] c, float[4] x) => (float[4] n, float[4] y) { n = Add(c, x) y = Tanh(n) }>
          (h, xs) }"""
    )
    assert found.launches == 5 * 2
    assert found.moved_bytes == 5 * (48 + 32)


@pytest.mark.parametrize("provider", ["cuda", "cpu"])
def test_a_difference_says_what_more_nodes_take_on_a_gpu(provider: str) -> None:
    one = parse("t (float[64] x) => (float[64] y) { a = Relu(x) y = Exp(a) }")
    two = parse("t (float[64] x) => (float[64] y) { a = Relu(x) b = Abs(a) y = Exp(b) }")
    found = diff(one, two, provider=provider)
    told = compare_work(found.old.work, found.new.work)
    assert "2 launches" in told
    assert "3 launches" in told
    assert (told in text_of(tell_diff(found))) is (provider == "cuda")
    sides = found.as_json()
    assert [sides[side]["work"]["launches"] for side in ("old", "new")] == [2, 3]  # type: ignore[index]
    assert analyze(two, provider=provider).as_json()["work"] == found.new.work.as_json()
