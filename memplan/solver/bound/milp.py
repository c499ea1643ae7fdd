"""A mixed-integer program, row by row, and HiGHS (Huangfu and Hall, 2018) to bound it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan.deadline import Deadline
from memplan.solver.problem import Floats

if TYPE_CHECKING:
    import highspy

Term = tuple[int, float]  # column, coefficient

# Costs are scaled so that their unit, a whole step, becomes this: far from all tolerances.
_COST_SCALE = 1e5


@dataclass(frozen=True, slots=True)
class Answer:
    """``bound`` ≤ the least cost (infinite: infeasible). ``values``: the best solution, if any."""

    bound: float
    values: Floats | None


@dataclass(frozen=True, slots=True)
class Effort:
    """When to give up: at ``deadline``, when ``stop`` says so, or, whatever the machine, after so
    many ``nodes`` of the branch-and-bound tree (0: no limit)."""

    deadline: Deadline = field(default_factory=Deadline)
    stop: Callable[[], bool] | None = None
    nodes: int = 0

    def over(self) -> bool:
        """Whether to give up."""
        return self.deadline.passed or (self.stop is not None and self.stop())

    def share(self, share: float) -> Effort:
        """The same with a share of the time left."""
        return replace(self, deadline=self.deadline.share(share))


class Program:
    """minimize cost · x subject to rows, x between 0 and 1, some of it whole."""

    def __init__(self, unit: float) -> None:
        """``unit``: the cost that tolerances are small against."""
        self.scale = _COST_SCALE / (unit or 1.0)
        self.cost: list[float] = []
        self.whole: list[bool] = []
        self.start, self.index, self.value = [0], [], []  # type: list[int], list[int], list[float]
        self.low: list[float] = []
        self.high: list[float] = []

    def column(self, cost: float = 0.0, whole: bool = True) -> int:
        """A new variable between 0 and 1."""
        self.cost.append(cost * self.scale)
        self.whole.append(whole)
        return len(self.cost) - 1

    def at_most(self, terms: Sequence[Term], limit: float) -> None:
        """Σ terms ≤ limit."""
        self._row(terms, -np.inf, limit)

    def at_least(self, terms: Sequence[Term], limit: float) -> None:
        """Σ terms ≥ limit."""
        self._row(terms, limit, np.inf)

    def _row(self, terms: Sequence[Term], low: float, high: float) -> None:
        for column, coefficient in terms:
            self.index.append(column)
            self.value.append(coefficient)
        self.start.append(len(self.index))
        self.low.append(low)
        self.high.append(high)

    def solve(self, effort: Effort, gap: float, enough: float, relaxed: bool = False) -> Answer:
        """Bound the least cost.

        Args:
            effort: when to give up.
            gap: relative distance between bound and best solution at which to be content.
            enough: a bound at which to be content.
            relaxed: no variable need be whole.
        """
        if not self.cost:
            return self._trivial()
        solver = _silent_solver()
        options: dict[str, object] = {"threads": 1, "mip_rel_gap": gap}
        if np.isfinite(effort.deadline.seconds):
            options["time_limit"] = max(effort.deadline.left, 0.01)
        if effort.nodes:
            options["mip_max_nodes"] = effort.nodes
        for name, value in options.items():
            solver.setOptionValue(name, value)
        solver.passModel(self._model(relaxed))
        target = enough * self.scale

        def watch(event: Any) -> None:
            if effort.over() or (not relaxed and event.data_out.mip_dual_bound >= target):
                event.data_in.user_interrupt = True

        solver.cbMipInterrupt += watch
        solver.cbSimplexInterrupt += watch
        solver.run()
        return self._answer(solver, relaxed)

    def _trivial(self) -> Answer:
        fits = all(low <= 0 <= high for low, high in zip(self.low, self.high, strict=True))
        return Answer(0.0 if fits else np.inf, np.zeros(0) if fits else None)

    def _answer(self, solver: highspy.Highs, relaxed: bool) -> Answer:
        import highspy

        status, info = solver.getModelStatus(), solver.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Answer(np.inf, None)
        if relaxed:
            return self._relaxed_answer(solver)
        # The dual bound is -inf until the first relaxation is solved; costs are not negative.
        bound = max(0.0, info.mip_dual_bound) / self.scale
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = np.asarray(solver.getSolution().col_value) if found else None
        value = info.objective_function_value / self.scale if found else np.inf
        return Answer(min(bound, value), values)

    def _relaxed_answer(self, solver: highspy.Highs) -> Answer:
        """Of a linear program only the optimum bounds anything."""
        import highspy

        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return Answer(0.0, None)
        value = max(0.0, solver.getInfo().objective_function_value) / self.scale
        return Answer(value, np.asarray(solver.getSolution().col_value))

    def _model(self, relaxed: bool) -> highspy.HighsLp:
        import highspy

        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.cost), len(self.low)
        model.col_cost_ = np.asarray(self.cost)
        model.col_lower_, model.col_upper_ = np.zeros(len(self.cost)), np.ones(len(self.cost))
        model.row_lower_, model.row_upper_ = np.asarray(self.low), np.asarray(self.high)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.asarray(self.start, dtype=np.int32)
        model.a_matrix_.index_ = np.asarray(self.index, dtype=np.int32)
        model.a_matrix_.value_ = np.asarray(self.value)
        whole, any_ = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        if not relaxed:
            model.integrality_ = [whole if flag else any_ for flag in self.whole]
        return model


def _silent_solver() -> Any:
    """A solver that prints nothing. HiGHS 1.16 prints its version when callbacks are enabled, which
    its constructor does before anybody can set an option."""
    import highspy

    class Silent(highspy.Highs):
        def enableCallbacks(self) -> Any:  # noqa: N802
            self.setOptionValue("output_flag", False)
            enable: Any = super().enableCallbacks  # not annotated
            return enable()

    make: Any = Silent
    return make()
