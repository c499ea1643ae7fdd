"""What a strategy is and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from memplan.solver.problem import Decision, Problem

Progress = Callable[[int, float], None]
"""Called with the present peak (dynamic bytes and workspace) and the extra cost as a fraction."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A strategy's answer: the decision and a certified lower bound on extra cost (seconds)."""

    decision: Decision
    bound_seconds: float = 0.0
    bound_kind: str = "trivial"


class Strategy(Protocol):
    """What a strategy is: options as fields, and a decision.

    A frozen dataclass whose fields have defaults: that is its spec, too
    (:mod:`memplan.solver.strategies.spec`).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """A line."""
    source: ClassVar[str]
    """The paper or the system it comes from."""
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The values that an option may have, by option; any value where there is no entry."""
    meanings: ClassVar[Mapping[str, str]] = {}
    """What options are for, in a few words each."""
    ignores_budget: ClassVar[bool] = False
    """Whether it makes the same plan for every budget."""
    takes_forms: ClassVar[bool] = False
    """Whether it may keep tensors in other forms (``Problem.forms``)."""
    clone_tags: ClassVar[Mapping[str, str]] = {}
    """``metadata_props`` for the nodes that are recomputed."""

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """A sequence for ``problem``; ``feasible`` says whether it keeps the budget.

        ``time_limit`` in seconds; the best sequence so far is returned when it is over.
        """
        ...
