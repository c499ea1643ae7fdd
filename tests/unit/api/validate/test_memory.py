"""What is wrong with the memory of a run."""

from dataclasses import replace

import pytest

from helpers.graphs import open_text
from memplan.api.validate.measured_memory import (
    Doubt,
    budget_findings,
    doubt,
    prediction_differences,
    rise_findings,
)
from memplan.api.validate.validation import Run
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

RUN = Run(
    label="rewritten",
    session="default",
    predicted_peak_bytes=150,
    predicted_peak_with_workspace_bytes=160,
    predicted_later_dynamic_bytes=55,
    measured_peak_bytes=150,
    resident_bytes=100,
    measured_dynamic_bytes=50,
    second_run_dynamic_bytes=55,
    further_dynamic_bytes=(55,),
    arena_bytes=0,
    rss_growth_bytes=0,
    seconds_median=None,
    providers={},
)


def over(budget: int | None, run: Run = RUN, later: int | None = None) -> list[str]:
    return budget_findings(run, budget, later)


def test_every_run_is_held_against_the_budget() -> None:
    assert over(None) == []
    assert over(160) == []
    assert over(149) == ["the measured peak is 1 B over the budget 149 B"]
    later = "later runs are 5 B over the budget 150 B; session_options.enable_mem_pattern = False"
    assert over(150)[0].startswith(later)
    assert over(150, replace(RUN, session="tuned")) == ["later runs are 5 B over the budget 150 B"]


def test_where_a_provider_tells_no_bytes_nothing_is_called_measured() -> None:
    run = replace(RUN, counted=False)
    assert over(149, run) == ["the predicted peak is 1 B over the budget 149 B"]
    said = "the predicted peak is 50 B above the original's, and no budget is recorded"
    assert rise_findings(replace(run, measured_peak_bytes=100), run, None) == [said]
    told = run.as_json()
    measured = ("measured_peak_bytes", "measured_dynamic_bytes", "second_run_dynamic_bytes")
    assert [told[name] for name in (*measured, "arena_bytes")] == [None] * 4
    assert told["further_draws"] == [{"dynamic_bytes": None}]
    assert not run.as_predicted


def test_further_draws_are_held_against_it_too() -> None:
    run = replace(RUN, second_run_dynamic_bytes=50, further_dynamic_bytes=(50, 61))
    assert over(160, run)[0].startswith("later runs are 1 B over")


def test_predicted_workspace_counts_as_it_does_for_rewrite() -> None:
    said = "with the workspace that is predicted, and not measured, the peak is"
    assert over(158) == [f"{said} 2 B over the budget 158 B"]
    assert over(165, later=170) == [f"{said} 5 B over the budget 165 B"]


def test_without_a_budget_a_peak_may_not_rise() -> None:
    higher = replace(RUN, measured_peak_bytes=151, measured_dynamic_bytes=51)
    said = "the measured peak is 1 B above the original's, and no budget is recorded"
    assert rise_findings(RUN, higher, None) == [said]
    assert rise_findings(RUN, higher, 200) == []
    assert rise_findings(RUN, RUN, None) == []
    assert rise_findings(higher, RUN, None) == []
    later = replace(RUN, second_run_dynamic_bytes=56)
    assert rise_findings(RUN, later, None) == [said]


@pytest.mark.parametrize(
    ("changed", "when"),
    [
        ({"measured_dynamic_bytes": 51}, "50 B dynamic were predicted and 51 B were measured in"),
        ({"second_run_dynamic_bytes": 56}, "55 B dynamic were predicted and 56 B were measured in"),
        ({"further_dynamic_bytes": (54,)}, "predicted and 54 B were measured on draw 2"),
    ],
    ids=["first", "second", "draw"],
)
def test_a_prediction_that_is_a_byte_off_is_found(changed: dict[str, int], when: str) -> None:
    wrong, excused = prediction_differences(replace(RUN, **changed), Doubt())
    assert when in wrong[0]
    assert excused == []
    assert not replace(RUN, **changed).as_predicted


def test_what_is_as_predicted_is_no_finding() -> None:
    assert prediction_differences(RUN, Doubt()) == ([], [])
    assert RUN.as_predicted
    nothing = replace(RUN, predicted_peak_bytes=None, predicted_later_dynamic_bytes=None)
    assert prediction_differences(nothing, Doubt()) == ([], [])
    assert not nothing.as_predicted


def test_an_upper_bound_excuses_only_less() -> None:
    bound = Doubt(upper=("the larger branch",))
    less, more = (replace(RUN, further_dynamic_bytes=(nbytes,)) for nbytes in (54, 56))
    assert prediction_differences(less, bound)[0] == []
    assert prediction_differences(less, bound)[1][0].endswith(": the larger branch")
    assert prediction_differences(more, bound)[0] != []
    assert prediction_differences(more, Doubt(either=("data decides",)))[0] == []


def doubts(text: str, session: str = "tuned") -> Doubt:
    model = open_text(text)
    return doubt(model, simulate(model.graph, session_kind(session)))


BRANCH = """g (float[8] x, bool c) => (float[8] y) { y = If (c) <
  then_branch = a () => (float[8] t) { t = Neg(x) },
  else_branch = b () => (float[8] e) { f = Exp(x)  e = Relu(f) }> }"""
LOOP = """g (float[8] x, int64 n) => (float[8] y) <bool on = {1}> { y = Loop (n, on, x) <
  body = b (int64 i, bool c, float[8] s) => (bool d, float[8] t)
    { d = Identity(c)  t = Neg(s) }> }"""


def test_what_the_simulation_assumes_is_what_excuses() -> None:
    assert doubts("g (float[8] x) => (float[8] y) { y = Neg(x) }") == Doubt()
    branch = doubts(BRANCH)
    assert branch.upper
    assert branch.either == ()
    assert doubts(BRANCH, "default").either == ()
    assert "data decides how often Loop" in doubts(LOOP).either[0]
