"""The certificate for any order: how much better can any plan be?

**Why a bound of its own.** A plan from a local search is worth what can be said of the plans that
it did not find. The usual certificate is a relaxation of Checkmate's program, in which nodes run in
the file's order. Once nodes may move, it says nothing. This one holds for every order and every
recomputation.

**One event.** Take any node *v*. When it runs for the first time, all that it needs has run before
and nothing that needs it has, whatever the order is. So what is read after that and was made before
is either in memory at that moment, within the budget, or is made again, with all that this takes;
what is neither before nor after *v* may still run for the first time, and is free. Which of it to
keep is an integer program: one variable for a storage that is kept, one for a node that runs again,
one row for the bytes at *v*. Its optimum is a lower bound on the extra time of every plan
(:mod:`memplan.solver.bound.events`). It is small, some thousand columns for networks of 1,000 to
2,500 nodes, as it knows nothing of steps.

**Which event?** One at whose first run the *best plan found* is full: there it has to give
something up. Choosing where the original graph is full is worse: for GPT-2 small at 30% of its peak
13.3% instead of 18.87%, where the plan takes 18.874%. Transformers and U-Nets have 1 to 10 such
steps, convolutional networks up to 150. The linear relaxations are solved for all of them in a
fraction of a second and tell which are worth whole numbers. As bounds themselves they are poor: of
the related program for a fixed order they reach 25 to 60% of the integer optimum.

**Several events.** Where a plan is full in two places that have little to do with each other, one
event cannot see the second: a U-Net at 30%, nine full steps, was bounded by 11.2% where plans took
16 to 18%. Events of which each needs the one before make one program with a stage between every
two. More events only help the integer program, but its relaxation gets weaker and its time longer.
So they are added one by one, where the plan that the best solution describes breaks the budget:
cutting planes in time. Small tensors are held for free in large programs, which keeps a bound a
bound.

**What was tried and left.** The full program of Checkmate is not solved for 350 nodes. Covering
gaps between reads, one variable each, is instant and weak, as what a recomputation needs is taken
to be free: 2.85% of 14.1% for a GPT of 24 layers at 30%. A bound with memory counted at checkpoints
of a fixed order proves nothing for plans in which nodes move. Constraint programming gave no bound
above zero from 250 nodes on.

**What the solutions are for.** They say what to keep across an event, what to make again and what
to run earlier or later: a plan of exactly the bound's cost, which often fits, or nearly. Local
moves hardly find it, so each is made a sequence from which a search may start.

HiGHS bounds the programs on the way, so the best bound so far counts whenever time is over. That no
bound exceeds any plan is tested against brute force over orders and recomputations, and a search
that ever finds a cheaper plan says that the certificate failed.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from memplan.solver.bound.events import EventBound, EventProgram
from memplan.solver.bound.milp import Effort
from memplan.solver.bound.precedence import Precedence, find_precedence
from memplan.solver.bound.relaxation import Relaxation, free_small, relax
from memplan.solver.evaluate import evaluate
from memplan.solver.forms import with_forms
from memplan.solver.links import Cut, Links, links_of, sequence_keeping
from memplan.solver.order.local import settle
from memplan.solver.problem import Ints, Problem

_LOG = logging.getLogger(__name__)

ORDER_FREE, ORDER_KEPT = "order-free", "for this node order"


@dataclass(frozen=True, slots=True)
class OrderFreeParams:
    """Constants of the certificate; none was tuned on a record that we have."""

    full: float = 0.97
    """An event is where a plan takes this share of the budget, or more."""
    looks: int = 16
    """Linear relaxations per round and number of events."""
    solved: int = 5
    """Of these, so many are solved in whole numbers, best first."""
    worth: float = 0.8
    """Only those whose relaxation reaches this share of the best bound."""
    most_events: int = 4
    """Events of one program, at most: more of them make its relaxation weaker."""
    gap: float = 1e-4
    """Relative distance between bound and solution at which a program counts as solved."""
    small: float = 1e-4
    """Small tensors, in sum this share of the budget, are held for free: fewer columns."""
    small_from: int = 400
    """Only where there are so many tensors."""
    share: float = 0.5
    """Of the time left, what one program may take."""


class OrderFreeBound:
    """The best bound so far, and what to look at next. ``seconds`` is infinite where it is proven
    that nothing keeps the budget."""

    def __init__(
        self,
        problem: Problem,
        effort: Effort,
        tell: Callable[[float, str], None] | None = None,
        params: OrderFreeParams | None = None,
        order_kept: bool = False,
    ) -> None:
        """``effort``: when to give up; ``tell``: called with every better bound (seconds) and what
        it holds for: with ``order_kept`` for sequences whose first runs are in the problem's
        order."""
        self.problem, self.effort, self.tell = problem, effort, tell
        self.params = params or OrderFreeParams()
        self.kind = ORDER_KEPT if order_kept else ORDER_FREE
        self.seconds = 0.0
        self.fresh = False
        self.latest: Ints | None = None  # the plan that the latest solution describes
        self.scored: dict[tuple[int, ...], float] = {}  # events → bound of the linear relaxation
        self.solved: set[tuple[int, ...]] = set()
        self.relaxation: Relaxation = relax(problem)
        self.free: set[int] = set()
        if len(problem.arrays.nbytes) >= self.params.small_from:
            self.free = free_small(self.relaxation, self.params.small)
        self.precedence: Precedence = find_precedence(problem, order_kept)
        self.links: Links = links_of(problem)
        self.originals = frozenset(problem.order.tolist())

    def look(self, sequence: Ints, wanted: Callable[[], float]) -> Iterator[Ints]:
        """Look for better bounds where ``sequence`` is full, until one reaches ``wanted()``.

        Yields sequences that solutions describe, which need not keep the budget. ``fresh`` tells
        afterwards whether anything was looked at that had not been before.
        """
        self.fresh = False
        full = self._full(sequence)
        singles = [(node,) for node in full]
        best = yield from self._round(singles, sequence, wanted)
        while best is not None and len(best) < self.params.most_events:
            wider = self._widened(best, full, sequence)
            found = yield from self._round(wider, sequence, wanted)
            best = found if found is not None and len(found) > len(best) else None

    def _over(self, wanted: Callable[[], float]) -> bool:
        return self.seconds >= wanted() or self.effort.over()

    def _full(self, sequence: Ints) -> list[int]:
        """Nodes at whose first run ``sequence`` is nearly full, fullest first."""
        total = evaluate(self.problem.arrays, sequence).total
        limit = self.params.full * min(self.problem.budget, int(total.max(initial=0)))
        first: dict[int, int] = {}
        for position, node in enumerate(sequence.tolist()):
            first.setdefault(node, position)
        full = [n for n, at in first.items() if n in self.originals and total[at] >= limit]
        full.sort(key=lambda node: -int(total[first[node]]))
        return _spread(full, self.params.looks)

    def _round(
        self,
        candidates: Sequence[tuple[int, ...]],
        sequence: Ints,
        wanted: Callable[[], float],
    ) -> Generator[Ints, None, tuple[int, ...] | None]:
        """Score the candidates, solve the best; returns the events of the best solution."""
        rounded: tuple[EventBound, tuple[int, ...]] | None = None
        for events in candidates:
            if self._over(wanted):
                return None
            if events not in self.scored:
                effort = self._effort()
                found = self._program(events).solve(effort, 0.0, wanted(), relaxed=True)
                self.fresh = True
                if not effort.deadline.passed:
                    self.scored[events] = found.seconds
                if self._learn(found.seconds, events):
                    rounded = found, events
        if rounded is not None and rounded[0].held is not None:
            # On many graphs the relaxation is nearly whole, and there long before the solution.
            yield self._described(*rounded, sequence)
        ranked = sorted(
            (e for e in candidates if e in self.scored and e not in self.solved),
            key=lambda events: -self.scored[events],
        )
        best: tuple[int, ...] | None = None
        for events in ranked[: self.params.solved]:
            if self._over(wanted) or self.scored[events] < self.params.worth * self.seconds:
                break
            effort = self._effort()
            found = self._program(events).solve(effort, self.params.gap, wanted())
            if not effort.deadline.passed:
                self.solved.add(events)
            if self._learn(found.seconds, events) or best is None:
                best = events
            if found.held is not None:
                self.latest = self._described(found, events, sequence)
                yield self.latest
        return best

    def _program(self, events: Sequence[int]) -> EventProgram:
        return EventProgram(self.relaxation, self.precedence, events, self.problem.base_cost)

    def _effort(self) -> Effort:
        return self.effort.share(self.params.share)

    def _learn(self, seconds: float, events: Sequence[int]) -> bool:
        if seconds <= self.seconds:
            return False
        self.seconds = seconds
        base = self.problem.base_cost or 1.0
        _LOG.debug("certificate: +%.4f%% by %d events", 100 * seconds / base, len(events))
        if self.tell is not None:
            self.tell(seconds, self.kind)
        return True

    def _described(
        self,
        found: EventBound,
        events: Sequence[int],
        sequence: Ints,
    ) -> Ints:
        """The plan in which, as near as may be to the order of ``sequence``, nodes run in the
        stages of the solution, and just what it holds survives the events."""
        assert found.held is not None
        staged = self._staged(found.stage, events, sequence)
        order = with_forms(self.problem, np.asarray(staged, dtype=np.int64)).tolist()
        place = {node: position for position, node in enumerate(order)}
        cuts = [
            Cut(place[e] + 1, kept | self.free) for e, kept in zip(events, found.held, strict=True)
        ]
        rank = self.problem.arrays.rank
        links = self._links_with(found.rules)
        described = sequence_keeping(links, rank, order, cuts, found.stage)
        return settle(self.problem.arrays, described)

    def _links_with(self, rules: frozenset[int]) -> Links:
        """The links in which those of ``rules`` that are one way of several are taken."""
        if not len(self.problem.arrays.others):
            return self.links
        maker = list(self.links.maker)
        for form in self.problem.forms:
            if form.decode in rules:
                maker[form.tensor] = form.decode
        return replace(self.links, maker=maker)

    def _staged(self, stage: Mapping[int, int], events: Sequence[int], sequence: Ints) -> list[int]:
        """First runs in the order of ``sequence``; those that are to run before an event but do
        not, as early as they can."""
        order = list(dict.fromkeys(n for n in sequence.tolist() if n in self.originals))
        key = {node: position for position, node in enumerate(order)}
        begins = [-1, *(key[event] for event in events)]
        for node in order:
            at = bisect_left(begins, key[node]) - 1
            if stage.get(node, at) < at:
                before = (key[other] for other in self.precedence.before[node] if other in key)
                key[node] = max(before, default=-1)
        return sorted(order, key=key.__getitem__)

    def _widened(
        self, events: tuple[int, ...], full: Sequence[int], sequence: Ints
    ) -> list[tuple[int, ...]]:
        """``events`` and one more: where the latest solution's plan is over the budget, or the best
        plan is full."""
        start = self.latest if self.latest is not None else sequence
        total = evaluate(self.problem.arrays, start).total
        over: list[int] = []
        seen: set[int] = set()
        for position, node in enumerate(start.tolist()):
            if (
                node in self.originals
                and node not in seen
                and total[position] > self.problem.budget
            ):
                over.append(position)
            seen.add(node)
        over.sort(key=lambda position: -int(total[position]))
        worst = [int(start[position]) for position in over[: self.params.looks]]
        wider = [self._chain((*events, node)) for node in dict.fromkeys([*worst, *full])]
        return [found for found in wider if found is not None][: self.params.looks]

    def _chain(self, events: Sequence[int]) -> tuple[int, ...] | None:
        """The events in the order in which every sequence has them; None where there is none."""
        if len(set(events)) < len(events):
            return None
        after = {event: self.precedence.descendants(event) for event in events}
        ordered = sorted(events, key=lambda event: sum(event in found for found in after.values()))
        if all(second in after[first] for first, second in pairwise(ordered)):
            return tuple(ordered)
        return None


def _spread(items: list[int], most: int) -> list[int]:
    """Half of ``most`` from the front, the others evenly from the rest."""
    if len(items) <= most:
        return items
    front, rest = items[: most // 2], items[most // 2 :]
    places = np.linspace(0, len(rest) - 1, most - len(front)).astype(int)
    return front + [rest[place] for place in dict.fromkeys(places.tolist())]
