"""One question of a sweep and its answer: values that can be sent to a process.

A question is either what a model takes as it is (no ``plan``) or what a plan for a budget comes to.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from memplan.api.summary import attributes_json
from memplan.api.sweep.request import Dims
from memplan.errors import EXIT_INFEASIBLE
from memplan.options import RewriteOptions


@dataclass(frozen=True, slots=True)
class Task:
    """A question. ``path`` leads to the model from everywhere, ``model`` is how reports call it."""

    path: Path
    model: Path
    dims: Dims
    session: str
    provider: str
    loss: str | None = None
    state: tuple[str, ...] = ()
    plan: RewriteOptions | None = None


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model takes as it is: bytes of a whole step, resident ones included.

    ``peak_with_workspace_bytes`` and ``floor_with_workspace_bytes`` are what budgets are held
    against. ``exact``: no assumption says that a run may take more or less. ``state_in_place``: new
    weights are counted over the old ones.
    """

    peak_bytes: int
    peak_with_workspace_bytes: int
    floor_bytes: int
    floor_with_workspace_bytes: int
    exact: bool
    assumptions: tuple[str, ...] = ()
    state_in_place: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan that keeps its budget: fields as in the JSON of ``rewrite``.

    ``budget_bytes`` is less the reserve.
    """

    budget_bytes: int
    predicted_peak_bytes: int
    predicted_peak_with_workspace_bytes: int
    extra_cost_fraction: float
    bound_fraction: float
    bound_kind: str
    recomputed_nodes: int
    recomputing_loops: int
    assumptions: tuple[str, ...] = ()

    @property
    def recomputes(self) -> bool:
        """Whether anything is computed twice; else the budget is kept by what is free."""
        return bool(self.recomputed_nodes or self.recomputing_loops)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer: message, hint and exit code of an error."""

    message: str
    hint: str
    exit_code: int

    @property
    def infeasible(self) -> bool:
        """Whether that is an answer: no plan keeps the budget."""
        return self.exit_code == EXIT_INFEASIBLE


Answer = Footprint | Planned | Failure
FOOTPRINT = (
    *("peak_bytes", "peak_with_workspace_bytes", "floor_bytes", "floor_with_workspace_bytes"),
    *("exact", "state_in_place"),
)
PLAN = (
    *("predicted_peak_with_workspace_bytes", "extra_cost_fraction"),
    *("bound_fraction", "bound_kind", "recomputed_nodes"),
)
"""What rows of the table say of these, by name of the field and of the JSON's key."""


def known_json(answer: Answer | None, *names: str) -> dict[str, object]:
    """Fields of an answer by name; null where there is none."""
    return dict.fromkeys(names) if answer is None else attributes_json(answer, *names)
