"""Plans: what the planner hands on to rewriting and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memplan.errors import MemplanError
from memplan.planning.forms.dormant import Extended
from memplan.planning.forms.on_host import Offloaded
from memplan.simulate.floor import Floor


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision that was simulated and fits.

    ``sequence`` holds node ids of ``extended.graph`` in execution order, recomputations repeated.
    Peaks count resident and dynamic bytes. ``recomputed`` maps node name → how often it is
    recomputed.
    ``bound_fraction`` is a certified lower bound on the extra cost, valid as ``bound_kind`` says.
    ``tags`` are ``metadata_props`` by which the strategy marks what is recomputed. ``offloaded``:
    tensors that are copied to the host and read back; the extra cost counts both copies for every
    time that one is read back. ``forms``: how many tensors are kept in another form, by kind.
    """

    extended: Extended
    sequence: tuple[int, ...]
    budget_bytes: int
    predicted_peak_bytes: int
    predicted_peak_with_workspace_bytes: int
    extra_cost_fraction: float
    bound_fraction: float
    bound_kind: str
    strategy: str
    recomputed: Mapping[str, int]
    refusals: Mapping[str, str]
    floor: Floor
    resident_bytes: int
    planning_seconds: float
    tags: Mapping[str, str] = field(default_factory=dict)
    offloaded: tuple[Offloaded, ...] = ()
    forms: Mapping[str, int] = field(default_factory=dict)

    @property
    def clones(self) -> int:
        """Recomputed nodes, each as often as it is recomputed."""
        return sum(self.recomputed.values())


class Rejected(MemplanError):
    """A check found a plan wanting, or the proof did not follow it: our bug."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the plan was rejected: {reason}",
            "nothing was written; please report this with the model",
        )
        self.reason = reason
