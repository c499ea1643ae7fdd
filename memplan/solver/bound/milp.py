"""A mixed-integer program, row by row, and HiGHS (Huangfu and Hall, 2018) to bound it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

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


class Program:
    """minimize cost · x subject to rows, x between 0 and 1 (or more), some of it whole."""

    def __init__(self, unit: float) -> None:
        """``unit``: the cost that tolerances are small against."""
        self.scale = _COST_SCALE / (unit or 1.0)
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.whole: list[bool] = []
        self.start, self.index, self.value = [0], [], []  # type: list[int], list[int], list[float]
        self.low: list[float] = []
        self.high: list[float] = []

    def column(self, cost: float = 0.0, upper: float = 1.0, whole: bool = True) -> int:
        """A new variable between 0 and ``upper``."""
        self.cost.append(cost * self.scale)
        self.upper.append(upper)
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

    def solve(
        self, seconds: float, gap: float, enough: float, stop: Callable[[], bool] | None
    ) -> Answer:
        """Bound the least cost.

        Args:
            seconds: time limit.
            gap: relative distance between bound and best solution at which to be content.
            enough: a bound at which to be content.
            stop: asked now and then whether to give up.
        """
        import highspy

        if not self.cost:
            return self._trivial()
        make: Any = highspy.Highs  # not annotated
        solver = make()
        options = {
            "output_flag": False,
            "threads": 1,
            "mip_rel_gap": gap,
            "time_limit": max(seconds, 0.01),
        }
        for name, value in options.items():
            solver.setOptionValue(name, value)
        solver.passModel(self._model())
        deadline, target = time.perf_counter() + seconds, enough * self.scale

        def watch(event: Any) -> None:
            halted = stop is not None and stop()
            done = halted or event.data_out.mip_dual_bound >= target
            if done or time.perf_counter() > deadline:
                event.data_in.user_interrupt = True

        solver.cbMipInterrupt += watch
        solver.run()
        return self._answer(solver)

    def _trivial(self) -> Answer:
        fits = all(low <= 0 <= high for low, high in zip(self.low, self.high, strict=True))
        return Answer(0.0 if fits else np.inf, np.zeros(0) if fits else None)

    def _answer(self, solver: highspy.Highs) -> Answer:
        import highspy

        status, info = solver.getModelStatus(), solver.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Answer(np.inf, None)
        # The dual bound is -inf until the first relaxation is solved; costs are not negative.
        bound = max(0.0, info.mip_dual_bound) / self.scale
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = np.asarray(solver.getSolution().col_value) if found else None
        value = info.objective_function_value / self.scale if found else np.inf
        return Answer(min(bound, value), values)

    def _model(self) -> highspy.HighsLp:
        import highspy

        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.cost), len(self.low)
        model.col_cost_ = np.asarray(self.cost)
        model.col_lower_, model.col_upper_ = np.zeros(len(self.cost)), np.asarray(self.upper)
        model.row_lower_, model.row_upper_ = np.asarray(self.low), np.asarray(self.high)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.asarray(self.start, dtype=np.int32)
        model.a_matrix_.index_ = np.asarray(self.index, dtype=np.int32)
        model.a_matrix_.value_ = np.asarray(self.value)
        whole, any_ = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        model.integrality_ = [whole if flag else any_ for flag in self.whole]
        return model
