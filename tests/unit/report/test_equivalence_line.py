"""What ``rewrite`` says of the proof: no more than was proved."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.api.validate.proof import proof_line
from memplan.equivalence.prove import Equivalence
from memplan.report.tell.rewrite import equivalence_line


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Equivalence(None, kept=1), "equivalent by construction: 1 node unchanged"),
        (
            Equivalence(None, kept=9, recomputed=2, explained=3, pins=1),
            "equivalent by construction: 9 nodes unchanged, 2 recomputed, 3 explained by a rule, "
            "1 pin",
        ),
        (
            Equivalence(None, kept=9, assumed=("loop_a", "loop_b")),
            "equivalent by construction (9 nodes unchanged) apart from 2 loops with a new body "
            "(loop_a and 1 more), whose outputs validate compares",
        ),
    ],
)
def test_the_line_says_what_was_proved(found: Equivalence, text: str) -> None:
    assert equivalence_line(found) == text


@pytest.mark.parametrize(
    "taken", [{}, {"rounded": ("y",)}, {"assumed": ("loop",)}], ids=["alone", "rounded", "assumed"]
)
def test_random_numbers_in_another_order_are_told_beside_all_else(taken: dict[str, Any]) -> None:
    found = Equivalence(None, kept=5, redrawn=True, **taken)
    assert "drawn in another order" in equivalence_line(found)
    assert "drawn in another order" in proof_line(found)
