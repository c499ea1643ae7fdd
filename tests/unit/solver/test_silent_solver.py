"""The MIP solver of the bound: it prints nothing."""

from __future__ import annotations

import pytest

from memplan.solver.bound import milp


def test_a_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS 1.16 tells its version when it is made; ``--format json`` is JSON and nothing else."""
    milp._silent_solver().run()
    assert capfd.readouterr() == ("", "")
