"""A certified bound in words."""

from __future__ import annotations

import pytest

from memplan.planning.certificate import certificate


@pytest.mark.parametrize(
    ("extra", "bound", "kind", "text"),
    [
        (
            0.0471,
            0.0459,
            "order-free",
            "at most 0.12 percentage points from optimal "
            "(certified: no plan in any order costs less than +4.59%)",
        ),
        (0.15878, 0.1587, "order-free", "at most 0.008 percentage points from optimal"),
        (0.1, 0.1, "for this node order", "optimal (certified: no plan for this node order"),
        (0.1, 0.0, "none: too large", "distance from optimal unknown (none: too large)"),
    ],
)
def test_how_far_a_plan_is_from_optimal(extra: float, bound: float, kind: str, text: str) -> None:
    assert certificate(extra, bound, kind).startswith(text)
