"""What ``rewrite`` says of the proof: no more than was proved."""

from __future__ import annotations

import pytest

from memplan.equivalence.prove import Equivalence
from memplan.report.terminal.rewrite import equivalence_line


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Equivalence(None, kept=1), "equivalent by construction: 1 node as before"),
        (
            Equivalence(None, kept=9, recomputed=2, explained=3, pins=1),
            "equivalent by construction: 9 nodes as before, 2 recomputed, 3 explained by a rule, "
            "1 pin",
        ),
        (
            Equivalence(None, kept=9, assumed=("loop_a", "loop_b")),
            "equivalent by construction (9 nodes as before) apart from 2 loops whose body changed "
            "(loop_a, ...): validate compares what they give",
        ),
    ],
)
def test_the_line_says_what_was_proved(found: Equivalence, text: str) -> None:
    assert equivalence_line(found) == text
