"""What a plan file says of its own worth: a clock, a bound or measured seconds gave it, so a replay
tells it as recorded, and never in our name."""

from __future__ import annotations

import math
from dataclasses import dataclass

from memplan.api.summary import fields_json
from memplan.planning.certificate import certificate, no_bound
from memplan.planning.plan_file import PlanFile

_SAME = 1e-6  # of the step: two sums of the same seconds


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a plan file says of its own worth: extra time and a bound on it, as fractions of the
    step, from seconds per node that the file does not have.

    ``same_seconds``: the estimates here give this extra time, so that the bound may be of them.
    """

    extra_cost_fraction: float
    bound_fraction: float
    bound_kind: str
    same_seconds: bool

    @property
    def line(self) -> str:
        """How good the plan is, in words."""
        if not self.same_seconds:
            percent = f"{100 * self.extra_cost_fraction:+.2f}%"
            return f"it was planned from other seconds per node, recorded as {percent} time"
        if not self.extra_cost_fraction and no_bound(self.bound_kind):
            return "nothing recomputed"
        good = certificate(self.extra_cost_fraction, self.bound_fraction, self.bound_kind)
        return f"as recorded in it, not certified again: {good}"

    def as_json(self) -> dict[str, object]:
        """The JSON object."""
        return {"exact": True, "recorded": fields_json(self)}


def recorded_worth(plan: PlanFile, extra_cost: float, chunk_cost: float) -> Recorded:
    """What ``plan`` says of its worth; the others are what a replay of it finds."""
    pairs = (plan.extra_cost_fraction, extra_cost), (plan.chunk_cost_fraction, chunk_cost)
    same = all(math.isclose(said, found, abs_tol=_SAME) for said, found in pairs)
    return Recorded(plan.extra_cost_fraction, plan.bound_fraction, plan.bound_kind, same)
