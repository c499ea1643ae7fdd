"""The search: greedy from several orders, then large-neighbourhood search, anytime.

**Why local search and not a solver.** Exact formulations do not reach training graphs on two cores:
Checkmate's integer program is practical up to about 100 nodes, and Moccasin's constraint program
took 36 to 45 seconds for its random graph of 100 nodes and found no plan at all in 200 to 300
seconds for those of 250 and 500. In a prototype, greedy repair and pruning found the proven optimum
of six of 23 public points in a millisecond each, and with large-neighbourhood search of 16 within
ten seconds. So plans come from here, and what a solver is good at, bounds, comes from
:mod:`memplan.solver.bound.order_free`.

**What a round does** (:mod:`memplan.solver.search.neighbourhood`): take some recomputations out,
move some nodes, repair, prune, and keep the result if it is cheaper, or early on nearly as cheap.
*Repair* goes to a step that is over the budget and takes the move with the most excess saved per
second of recomputation: a storage leaves memory between two of its reads and is made again right
before the second, as late as can be. Excess is bytes over the budget *summed over steps*. The peak
would be the wrong guide: on a plateau, most moves that help do not lower it. *Prune* then takes out
every recomputation without which the budget still holds, costliest first.

**How deep a recomputation goes.** Inputs that are dead by then are kept alive longer or made again
too, down to a depth. There is no good constant. A GPT of 24 layers at 30% of its peak needs more
than two (depth 2 ends at 1.9 times the budget), while depth 2 found the best plans of the random
graphs of 500 and 1,000 nodes. So greedy runs at several depths, and each round draws its own.

**Orders.** Recomputation alone leaves out half of the question: with the order free, the random
graph of 250 nodes costs 0.30% instead of 4.26%, and on a U-Net at half of its peak a free order
beats the *bound* of the fixed one. Moving nodes inside the neighbourhood search diluted it on
ResNet-50, where plans got worse for the same time; most training graphs come from autodiff in a
nearly ideal order. So whole new orders are starts (:mod:`memplan.solver.search.starts`): the
file's, those that beams find, good plans shaken. None is best for recomputation, and which one is
shows only at the end, so each is searched from, and the best few once more.

**Where nothing fits** greedy is stuck in front of its aim. Aiming lower than asked for helps
(:mod:`memplan.solver.search.lowest_peak`): the plan for less can be the easier one.

**How much of it** is counted in rounds, never measured in seconds: the same plan comes out on every
machine. A time limit only ends a search early (:mod:`memplan.solver.strategies.portfolio`).

Everything that runs often is compiled; this module only decides what to run next.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from memplan.deadline import Deadline
from memplan.solver.evaluate import decide, evaluate, excess_of
from memplan.solver.jit import seed_random
from memplan.solver.order.local import reorder, settle
from memplan.solver.problem import Decision, Flags, Floats, Ints, Problem
from memplan.solver.search.neighbourhood import improve
from memplan.solver.search.params import SearchOptions
from memplan.solver.search.prune_sequence import prune
from memplan.solver.search.repair import cost_of, repair
from memplan.solver.search.starts import Starts

# Rounds of the refinement per call, so that a temperature holds for as many; on graphs longer than
# so many positions, where one takes long, the clock is looked at behind each.
_PER_CALL, _LONG = 4, 3000


def solve(
    problem: Problem,
    deadline: Deadline,
    options: SearchOptions | None = None,
    found: Callable[[Ints], None] | None = None,
    enough: Callable[[float], bool] | None = None,
) -> Decision:
    """The best sequence found, compilation not counted.

    Args:
        problem: what to solve.
        deadline: when to stop before all rounds are done.
        options: see :class:`SearchOptions`.
        found: told of every sequence that fits and is better than those before.
        enough: given the best extra cost in seconds, says whether to stop (a bound is reached).
    """
    return AnytimeSearch(problem, deadline, options or SearchOptions(), found, enough).run()


class AnytimeSearch:
    """State of one search; the arguments are those of :func:`solve`."""

    def __init__(
        self,
        problem: Problem,
        deadline: Deadline,
        options: SearchOptions,
        found: Callable[[Ints], None] | None = None,
        enough: Callable[[float], bool] | None = None,
    ) -> None:
        # Compiled code checks no index.
        given = (problem.start, *options.starts)
        if any(each.max(initial=-1) >= len(problem.arrays.cost) for each in given):
            raise ValueError("a start names nodes that the problem does not have")
        self.problem, self.arrays, self.budget = problem, problem.arrays, problem.budget
        self.options, self.params = options, options.params
        self.found, self.enough = found, enough
        self.random = np.random.default_rng(options.seed)
        self.original: Flags = np.zeros(len(self.arrays.cost), np.bool_)
        self.original[problem.order] = True
        self.movable: Flags = problem.movable & options.order
        self.starts = Starts(problem, self.movable, self.random, self.params)
        # A free node still has a price, so that of two free moves the smaller one wins.
        self.price: Floats = self.arrays.cost + max(problem.base_cost, 1e-12) * 1e-9
        self.told = np.inf  # the best extra cost that was reported
        self.best: Ints | None = None
        self.fallback: Ints = problem.start
        self.deadline = deadline

    def run(self) -> Decision:
        """Greedy from the given order; other orders explored; the best refined."""
        seed_random(self.options.seed)
        if self._excess(self.problem.start) <= 0:
            return self._decision(self.problem.start)
        for start in self.options.starts:
            self._offer(start, self._excess(start))
        if self.best is None:
            self._construct(self.problem.start)
        if self.options.order and self.options.iterations:
            self._explore()
        if self.best is None:
            self._struggle()
        if self.best is not None:
            self._refine()
            return self._decision(self.best)
        # The least summed excess need not be the lowest peak.
        found = [self._decision(s) for s in (self.fallback, self.problem.start)]
        return min(found, key=lambda decision: decision.peak)

    def _exchange(self, sequence: Ints | None) -> Ints | None:
        """Put another best sequence in place; the one before."""
        before, self.best = self.best, sequence
        return before

    def _take(self, sequence: Ints) -> None:
        """Go on from a feasible sequence if it is better."""
        if self.best is None or self._cost(sequence) < self._cost(self.best):
            self.best = sequence

    def _construct(self, start: Ints) -> None:
        """Greedy and pruning at every depth."""
        for depth in self.params.depths:
            if self._late() and (self.best is not None or depth != self.params.depths[0]):
                return
            sequence, excess = self._repair(start, self.price, depth, 0.0, 0)
            self._offer(sequence, excess)

    def _explore(self) -> None:
        """Greedy and a search from several starts, then one more from the best few of them."""
        found: list[tuple[float, Ints]] = []
        first = self.options.turn * self.params.starts
        for number in range(first, first + self.params.starts):
            if self._stop():
                break
            result = self._search_from(self._start(number))
            if result is not None:
                found.append(result)
        for _, start in sorted(found, key=lambda item: item[0])[: self.params.best_few]:
            if self._stop():
                return
            best = self._exchange(start)
            self._refine()
            longer = self._exchange(best)
            if longer is not None:
                self._take(longer)

    def _start(self, number: int) -> Ints:
        """New orders and, twice as often, shaken plans."""
        if self.best is not None and number > 1 and number % self.params.new_order_every:
            return self.starts.shaken(self.best)
        return self.starts.ordered(number)

    def _search_from(self, start: Ints) -> tuple[float, Ints] | None:
        """Greedy and refinement; the best sequence from this start with its cost."""
        best = self._exchange(None)
        excess = self._excess(start)
        self._offer(start, excess)
        if excess > 0:
            self._construct(start)
        if self.best is not None:
            self._refine()
        found = self._exchange(best)
        if found is None:
            return None
        self._take(found)
        return self._cost(found), found

    def _struggle(self) -> None:
        """No feasible sequence yet: keep the least excess and retry with noise."""
        params, random = self.params, self.random
        current, attempts = self.fallback, 0
        while self.best is None and attempts < self.options.iterations and not self._stop():
            attempts += 1
            spread = params.struggle_noise
            noisy = self.price * np.exp(random.uniform(-spread, spread, len(self.price)))
            start = self.problem.start if random.random() < params.struggle_anew else current
            start, _ = reorder(self.arrays, start, self.movable, self.budget, params.struggle_moves)
            depth = int(random.choice(params.depths))
            aim = int(self.budget * random.choice(params.aims))
            sequence, _ = self._repair(start, noisy, depth, params.struggle_scores, 1, aim)
            sequence, excess = reorder(
                self.arrays, sequence, self.movable, self.budget, params.struggle_moves
            )
            self._offer(sequence, excess)
            current = self.fallback

    def _refine(self) -> None:
        """Large-neighbourhood search until rounds or time are over."""
        assert self.best is not None
        params, rounds = self.params, self.options.iterations
        current, done = self.best, 0
        chunk = _PER_CALL if len(self.problem.order) <= _LONG else 1
        while done < rounds and not self._stop():
            begun = self.deadline.spent
            # numba takes arrays, numbers and named tuples of these, no dataclass and no object:
            # what belongs together here is passed one by one, and what is constant in one tuple.
            current, self.best, gains = improve(
                self.arrays,
                current,
                self.best,
                self.original,
                self.problem.protected,
                self.movable,
                self.price,
                self.budget,
                chunk,
                params.moving if self.options.order else params.moving_clones,
                params.heat * (1.0 - done / rounds),
                params.rounds,
                self.options.halt,
            )
            done += chunk
            if gains:
                self._report()
            if self.deadline.spent - begun > self.deadline.left:  # 20 s on 100,000 nodes
                return

    def _report(self) -> None:
        """Tell of the best sequence, if it is better than what was told before."""
        if self.best is None:
            return
        extra = self._extra(self.best)
        if extra < self.told:
            self.told = extra
            if self.found is not None:
                self.found(settle(self.arrays, self.best))

    def _repair(
        self,
        start: Ints,
        price: Floats,
        depth: int,
        noise: float,
        mode: int,
        aim: int | None = None,
    ) -> tuple[Ints, float]:
        """Repair in portions, to keep the time limit; stops when a portion gains nothing.

        ``aim``: bytes, by default the budget. The excess returned is over the budget.
        """
        aim = self.budget if aim is None else aim
        sequence = start
        lowest = float(excess_of(evaluate(self.arrays, sequence), aim))
        over, fallback = self._excess(start), self._excess(self.fallback)
        while over > 0:
            sequence, excess = repair(
                self.arrays,
                sequence,
                self.movable,
                price,
                aim,
                depth,
                noise,
                mode,
                self.params.give_up,
                np.inf,
                self.params.portion,
            )
            over = self._excess(sequence)
            if 0 < over < fallback:
                self.fallback, fallback = sequence, over
            if excess >= lowest or self._late():
                break
            lowest = excess
        return sequence, over

    def _offer(self, sequence: Ints, excess: float) -> None:
        """Consider a sequence for the best (when it fits) or the least bad."""
        if excess > 0:
            if excess < self._excess(self.fallback):
                self.fallback = sequence
            return
        pruned = prune(
            self.arrays,
            sequence,
            self.original,
            self.problem.protected,
            self.budget,
            0.0,
            self.options.halt,
        )
        pruned = settle(self.arrays, pruned)
        if self._excess(pruned) > 0:
            return
        if self.best is None or self._cost(pruned) < self._cost(self.best):
            self.best = pruned
            self._report()

    def _cost(self, sequence: Ints) -> float:
        return float(cost_of(self.arrays, sequence))

    def _extra(self, sequence: Ints) -> float:
        base = self.problem.base_cost
        return (self._cost(sequence) - base) / base if base else 0.0

    def _excess(self, sequence: Ints) -> float:
        return float(excess_of(evaluate(self.arrays, sequence), self.budget))

    def _late(self) -> bool:
        return self.deadline.passed

    def _stop(self) -> bool:
        if self._late():
            return True
        if self.best is None:
            return self.enough is not None and self.enough(float("inf"))
        extra = self._cost(self.best) - self.problem.base_cost
        return extra <= 0 or (self.enough is not None and self.enough(extra))

    def _decision(self, sequence: Ints) -> Decision:
        return decide(self.problem, settle(self.arrays, sequence))
