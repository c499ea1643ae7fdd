"""When a run is done, and what it certifies in the end."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers.steps import chain, problem_of
from memplan.solver.problem import Decision
from memplan.solver.strategies import incumbent
from memplan.solver.strategies.incumbent import Incumbent


def made(extra: float, feasible: bool = True, peak: int = 5) -> Decision:
    """A decision that costs ``extra`` seconds."""
    return Decision(np.zeros(0, np.int64), peak, extra, feasible)


def of_chain(gap: float) -> Incumbent:
    """For a step of nine seconds."""
    return Incumbent(problem_of(chain(4), 5), gap)


def test_a_plan_within_the_gap_of_the_bound_is_enough() -> None:
    shared = of_chain(gap=0.1)
    shared.keep(made(3.0), "search")
    shared.learn(2.0)
    assert not shared.closed  # a gap of 0.9 s is allowed
    shared.learn(2.2)
    assert shared.closed
    assert shared.wanted() == pytest.approx(3.0 - 0.1 * shared.base)


def test_bounds_only_rise_and_plans_only_improve() -> None:
    shared = of_chain(gap=0.0)
    shared.keep(made(3.0), "search")
    shared.keep(made(4.0), "dtr")
    shared.learn(2.0)
    shared.learn(1.0)
    assert (shared.best.extra_cost, shared.source, shared.bound.seconds) == (3.0, "search", 2.0)


def test_while_nothing_fits_no_bound_is_enough_but_a_proof_is() -> None:
    shared = of_chain(gap=0.1)
    shared.keep(made(1.0, feasible=False), "search")
    shared.learn(1e9)
    assert not shared.closed
    shared.learn(math.inf)
    assert shared.closed
    assert shared.certificate().seconds == math.inf


def test_a_bound_above_a_plan_is_dropped_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(incumbent, "contradicted", told.append)
    shared = of_chain(gap=0.0)
    shared.keep(made(1.0), "search")
    shared.learn(2.0)
    assert shared.certificate().seconds == 0
    assert len(told) == 1
    assert "contradicts" in shared.certificate().kind
