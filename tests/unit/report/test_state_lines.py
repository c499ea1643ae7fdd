"""What reports say of where state lies."""

from __future__ import annotations

from helpers.state_graphs import state_step
from memplan import analyze
from memplan.report.tell.state import offer_line, state_lines


def test_second_buffers_are_told_with_the_reason() -> None:
    lines = state_lines(analyze(state_step(3), state="in-place").graph)
    assert "over the old values" in lines[0]
    assert "in a second buffer" in lines[1]


def test_nothing_is_said_of_state_in_memory_of_the_run() -> None:
    assert state_lines(analyze(state_step(3)).graph) == []


def test_what_binding_would_save_is_offered_in_the_unit_of_the_headline() -> None:
    found = analyze(state_step(7))
    bound = found.with_state_in_place()
    assert bound is not None
    saved = found.timeline.peak_bytes - bound.peak_bytes
    assert bool(offer_line(found.timeline, bound)) is (saved > 0)
    assert offer_line(found.timeline, None) == []
