"""What a rewrite took by the clock: all of it, and what of it the search and the compiler took."""

from itertools import count
from subprocess import TimeoutExpired
from typing import NoReturn

import pytest

import memplan
from helpers.graphs import parse
from helpers.reports import text_of
from memplan.api.rewrite import cheapest, rewriting
from memplan.api.rewrite.goal import RewriteOptions
from memplan.api.rewrite.rewrite_result import ClockSeconds, Rewrite
from memplan.report.tell.rewrite import tell_rewrite
from memplan.runtime import measure
from memplan.solver import jit
from memplan.solver.search import warm_up
from memplan.units import parse_budget

CHAIN = "g (float[8, 8] x) => (float[8, 8] y) { [a] a = Exp(x) [b] b = Sin(a) [y] y = Mul(a, b) }"


def _rewritten(monkeypatch: pytest.MonkeyPatch, compiling: float) -> Rewrite:
    """Of a clock that jumps by 86 seconds, and by 4 in every search."""
    monkeypatch.setattr(rewriting, "_warm_up", lambda: compiling)
    monkeypatch.setattr(rewriting, "now", count(100.0, 86.0).__next__)
    monkeypatch.setattr(cheapest, "now", count(0.0, 4.0).__next__)
    return memplan.rewrite(
        parse(CHAIN), RewriteOptions(parse_budget("100%"), optimize="none", effort=1)
    )


def test_the_report_says_what_all_took(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _rewritten(monkeypatch, 31.25)
    assert found.clock == ClockSeconds(search=4.0, compiling=31.25, total=86.0)
    assert found.as_json()["clock"] == {
        "search_seconds": 4.0,
        "compiling_seconds": 31.25,
        "total_seconds": 86.0,
    }
    text = text_of(tell_rewrite(found))
    assert "strategy search, 4.00 s; " in text
    assert (
        "took 86.0 s by the clock: compiling the planner, once per version, 31.2 s; search 4.0 s; "
        "the rest opening, fusions, passes, checks and proof" in text
    )


def test_nothing_is_said_of_a_compiler_that_did_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(tell_rewrite(_rewritten(monkeypatch, 0.0)))
    assert "took 86.0 s by the clock: search 4.0 s; the rest opening," in text


@pytest.mark.parametrize(("cold", "seconds"), [(True, 86.0), (False, 0.0)])
def test_compiling_counts_where_there_was_no_machine_code(
    cold: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "is_cold", lambda: cold)
    monkeypatch.setattr(warm_up, "warm_up", lambda: None)
    monkeypatch.setattr(rewriting, "now", count(0.0, 86.0).__next__)
    assert rewriting._warm_up() == seconds


def test_the_runtime_is_not_waited_for_when_it_optimizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the square of some graphs' size; the file's own nodes are planned then."""
    limits = []

    def slow(*_: object, time_limit: float | None, **__: object) -> NoReturn:
        limits.append(time_limit)
        raise OSError if time_limit is None else TimeoutExpired("optimize", time_limit)

    monkeypatch.setattr(measure, "call", slow)
    found = memplan.rewrite(parse(CHAIN), RewriteOptions(parse_budget("100%"), time_limit=5.0))
    assert limits[0] is not None
    assert limits[0] <= 0.4 * 5.0
    assert any(note.startswith("not optimized offline: ") for note in found.assumptions)
    options = RewriteOptions(parse_budget("100%"), effort=1)
    memplan.rewrite(parse(CHAIN), options)
    assert limits[-1] is None  # where rounds are counted, every machine gives the same file
