"""A small run of tools/fuzz: always the same mutants, and none may find a defect."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
COUNTS = {"analyze": 150, "grad": 100, "check": 40, "configuration": 40}


@pytest.fixture(scope="module")
def fuzz() -> Any:
    sys.path.insert(0, str(ROOT / "tools" / "fuzz"))
    try:
        import pool
        import seeds

        yield pool, seeds
    finally:
        sys.path.remove(str(ROOT / "tools" / "fuzz"))


@pytest.mark.slow
@pytest.mark.parametrize("command", COUNTS)
def test_no_mutant_finds_a_defect(command: str, fuzz: Any) -> None:
    pool, seeds = fuzz
    run = pool.Run(command, seeds.built_in(), seed=20, count=COUNTS[command], seconds=60)
    found = list(pool.outcomes(run))
    assert sorted(outcome.number for outcome in found) == list(range(run.count))
    assert [outcome for outcome in found if outcome.is_defect] == []
    assert {outcome.code for outcome in found} >= {0, 2 if command == "configuration" else 3}


def test_the_same_number_is_the_same_mutant(fuzz: Any) -> None:
    pool, seeds = fuzz
    runs = [pool.Run("analyze", seeds.built_in(), seed=3, count=1) for _ in range(2)]
    assert runs[0].mutant(7) == runs[1].mutant(7)
    assert runs[0].mutant(7) != runs[0].mutant(8)


def test_a_death_and_a_failure_are_defects_of_their_mutants(
    fuzz: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import signal

    pool, seeds = fuzz

    def broken(number: int, arguments: list[str]) -> Any:
        if number == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        if number == 2:
            signal.pause()
        return pool.Outcome(number, 70 if number == 3 else 0, "here", "")

    monkeypatch.setattr(pool, "_outcome", broken)
    run = pool.Run("analyze", seeds.built_in(), seed=1, count=5, seconds=1)
    found = {outcome.number: outcome.code for outcome in pool.outcomes(run)}
    assert found == {0: 0, 1: -signal.SIGSEGV, 2: None, 3: 70, 4: 0}
