"""What a strategy is and what it answers."""

from __future__ import annotations

from collections.abc import Callable
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

    ``summary`` is a line, ``source`` the paper or the system it comes from. Three more class
    variables are read where they are there: ``words``, the values that an option may have, by
    option; ``ignores_budget``, True where it makes the same plan for every budget; and
    ``clone_tags``, ``metadata_props`` for the nodes that run again.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """A sequence for ``problem``; ``feasible`` says whether it keeps the budget.

        ``time_limit`` in seconds; the best sequence so far is returned when it is over.
        """
        ...
