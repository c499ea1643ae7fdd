"""More memory than there are addresses: nobody has it, and reports of it must not fail."""

from __future__ import annotations

from pathlib import Path

import memplan
from helpers.graphs import parse
from helpers.odd_models import saved
from memplan.simulate.arena import simulate_arena


def test_an_arena_for_more_than_an_address_space(tmp_path: Path) -> None:
    model = parse("g (float[4,1099511627776,8] x) => (float[4,1099511627776,8] y) { y = Exp (x) }")
    analysis = memplan.analyze(saved(model, tmp_path), provider="cuda")
    assert simulate_arena(analysis.timeline).held_bytes >= 2 * 4 * 8 * 2**40 * 4
