"""Plan the candidates; the best plan so far is kept, whatever comes after it.

Candidates come by rising least cost, so the search among them is a branch and bound: where the best
plan costs no more than the next must, it is the answer; where the least peak is asked for, what
cannot get below that of the best by its floor is left. Where several are left and the clock
decides, they are looked at in rounds: each for a second in the first, and in every further one the
better half of them twice as long. How long a look takes does not depend on the limit, so a run with
more time begins as one with less does, and goes on from there: its plan is never worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from memplan.api.rewrite.candidates import (
    Candidate,
    candidates,
    chunk_cost,
    chunk_step,
    orders_of,
    reached,
    steps_of,
    variants,
)
from memplan.api.rewrite.goal import Goal, Source
from memplan.api.rewrite.loop_storage import with_loops
from memplan.deadline import Deadline, now
from memplan.errors import InfeasibleError, MemplanError, UsageError
from memplan.passes.chunk.asked import NAME as CHUNK
from memplan.passes.chunk.asked import NO_TIME
from memplan.passes.manager import PassStep
from memplan.planning.certificate import no_bound
from memplan.planning.forms.extend_graph import kinds_for
from memplan.planning.plain.finish_fences import PlainModel
from memplan.planning.plain.plain_plan import everything_fenced, plan_plain
from memplan.planning.plan import Plan
from memplan.planning.plan_file import ChunkDecision
from memplan.planning.planner import (
    NoPlanError,
    Prepared,
    make_plan,
    plan_request,
    prepare,
)
from memplan.simulate.opened import OpenModel

_FIRST_LOOK = 1.0  # seconds
_LEAST_LOOK = 0.1  # a shorter one brings nothing
LATE = "not tried, as time was over"


@dataclass(frozen=True, slots=True)
class Planned:
    """A candidate with a plan that keeps the budget.

    ``steps`` lead from the variant to what was planned: changed loops, then passes. ``plain`` is
    there for plain sessions. ``chunk_cost``: of chunks, as a fraction of the step's seconds;
    ``tried``: what came of every candidate where chunks were a choice, and ``least_cost``: no plan
    for any of them costs less, as a fraction of the step's seconds; None: that is not known.
    """

    candidate: Candidate
    steps: tuple[PassStep, ...]
    plan: Plan
    plain: PlainModel | None = None
    chunk_cost: float = 0.0
    tried: tuple[str, ...] = ()
    least_cost: float | None = None

    @property
    def model(self) -> OpenModel:
        """What was planned."""
        return reached(self.candidate, self.steps).model

    @property
    def extra_cost(self) -> float:
        """Of the plan, as a fraction of the step's seconds; those of loops and chunks included."""
        return with_chunks(self.plan.extra_cost_fraction, self.chunk_cost)

    @property
    def peak_bytes(self) -> int:
        """Of the plan, workspace included."""
        return self.plan.predicted_peak_with_workspace_bytes


def with_chunks(recomputing: float, chunking: float) -> float:
    """Extra time of a plan for a graph in chunks, as a fraction of the step without either."""
    return recomputing + chunking + recomputing * chunking


def find_plan(source: Source, goal: Goal) -> Planned:
    """The cheapest plan for the first variant that has one.

    Raises:
        InfeasibleError: there is none; why, of the first variant.
        UsageError: the strategy can work on no variant.
    """
    failures: list[MemplanError] = []
    for variant in variants(source, goal):
        try:
            return _Contest(goal).winner(tuple(candidates(variant, goal)))
        except (InfeasibleError, UsageError) as error:
            # Fusions may take away what a strategy goes by: names, or bottlenecks.
            failures.append(error)
    raise next((f for f in failures if isinstance(f, InfeasibleError)), failures[-1])


@dataclass(slots=True)
class _Entry:
    """A candidate behind its passes, and what has come of it. ``seconds``: of the last look, if no
    limit cut it short; ``closed``: no more time brings anything; ``impossible``: it was proved that
    nothing keeps the budget."""

    candidate: Candidate
    steps: tuple[PassStep, ...]
    least_cost: float
    chunk_cost: float
    asked: Prepared | None = None
    seconds: float = 0.0
    best: Planned | None = None
    closed: bool = False
    impossible: bool = False

    @property
    def bound(self) -> float:
        """No plan for it costs less, as a fraction of the step's seconds."""
        if self.impossible:
            return math.inf
        plan = None if self.best is None else self.best.plan
        if plan is None or no_bound(plan.bound_kind):
            return self.least_cost
        return max(self.least_cost, with_chunks(plan.bound_fraction, self.chunk_cost))

    @property
    def model(self) -> OpenModel:
        return reached(self.candidate, self.steps).model

    @property
    def nodes(self) -> int:
        return len(self.model.graph.nodes)

    @property
    def floor_bytes(self) -> int:
        """No plan takes less; 0 where that is not known."""
        return 0 if self.asked is None else self.asked.floor_bytes


@dataclass(slots=True)
class _Contest:
    """The candidates of one variant: behind their passes, the best plan so far, why the last one
    without a plan has none, and what came of each kind."""

    goal: Goal
    entries: list[_Entry] = field(default_factory=list)
    best: Planned | None = None
    failure: MemplanError | None = None
    tried: dict[str, str] = field(default_factory=dict)

    def winner(self, every: Sequence[Candidate]) -> Planned:
        """The best plan of candidates that come by rising ``least_cost``.

        Raises:
            InfeasibleError, UsageError: there is no plan; why, of the last candidate.
        """
        for candidate in every:
            if self._needless(candidate.least_cost):
                break
            entries = self._entered(candidate)
            alone = len(every) == 1 and len(entries) == 1
            for entry in entries:
                self._look(entry, self.goal.spare(entry.nodes) if alone else _FIRST_LOOK)
        seconds, many = _FIRST_LOOK, len(self.entries)
        while waiting := [each for each in self.entries if not each.closed]:
            seconds, many = 2 * seconds, max(1, many // 2)
            for entry in sorted(waiting, key=self._rank)[:many]:
                if self._spare(entry.nodes) < _LEAST_LOOK:
                    return self._answer()
                self._look(entry, seconds)
        return self._answer()

    def _rank(self, entry: _Entry) -> float:
        """The lower, the better what has come of an entry. Where the least peak is asked for, what
        may still come counts as much: the lower the floor, the more recomputation can do."""
        if entry.best is None:
            return math.inf
        lowest = self.goal.lowest
        return entry.best.peak_bytes * entry.floor_bytes if lowest else entry.best.extra_cost

    def _answer(self) -> Planned:
        late = [kind for kind, what in self.tried.items() if what in (LATE, NO_TIME)]
        if self.best is None:
            assert self.failure is not None
            if late and isinstance(self.failure, NoPlanError):
                kinds = ", ".join(late)
                self.failure.way = f"time was over before {kinds} came to anything: --time-limit"
            raise self.failure
        least = None if late or self.goal.lowest else min(each.bound for each in self.entries)
        tried = tuple(f"{kind}: {what}" for kind, what in self.tried.items())
        return replace(self.best, tried=tried, least_cost=least)

    def _entered(self, candidate: Candidate) -> list[_Entry]:
        """The candidate behind its passes, in every order of nodes that is to be planned; none
        where that is nothing new, or comes too late."""
        goal, chunk, ran = self.goal, candidate.chunk, self.entries
        seconds = self._spare(0)
        if ran and seconds < _LEAST_LOOK:
            self.tried[candidate.kind] = LATE
            return []
        if chunk is not None:
            room = goal.room(max(seconds - _FIRST_LOOK, goal.grace))
            candidate = replace(candidate, chunk=replace(chunk, room=room))
        known = next((e.steps for e in ran if e.candidate.model is candidate.model), ())
        steps = steps_of(candidate, goal, known)
        if chunk is not None and goal.chunk is not None and goal.chunk.optional:
            chunks = _decisions(steps)
            if not chunks or any(_decisions(each.steps) == chunks for each in ran):
                note = next(step.note for step in steps if step.name == CHUNK)
                self.tried[candidate.kind] = "the same" if chunks else note
                return []
        found = []
        for ordered in orders_of(candidate, steps, goal):
            cost = chunk_cost(candidate, ordered, goal)
            found.append(_Entry(candidate, ordered, with_chunks(candidate.least_cost, cost), cost))
        self.entries += found
        return found

    def _look(self, entry: _Entry, seconds: float) -> None:
        """Plan one entry within so many seconds, and keep the best of all."""
        goal, kind = self.goal, entry.candidate.kind
        other = self.best is not None and self.best.candidate is not entry.candidate
        # Else it may be as cheap, and lower.
        if other and self._needless(entry.least_cost, entry.floor_bytes):
            entry.closed = True
            least = f"at least {100 * entry.least_cost:.2f}% more time"
            self.tried.setdefault(kind, "no lower" if goal.lowest else least)
            return
        entry.seconds, entry.closed = seconds, True  # unless its search uses up its time
        try:
            asked = entry.asked = entry.asked or _prepared(entry, goal)
            found = _plan(entry, asked, goal, self._deadline(entry, seconds))
        except (InfeasibleError, UsageError) as error:
            self.failure = error
            entry.impossible = isinstance(error, NoPlanError) and error.proven
            self.tried.setdefault(kind, "no plan")
            return
        entry.best = _better(found, entry.best, goal)
        self.best = _better(found, self.best, goal)
        self.tried[kind] = f"{100 * entry.best.extra_cost:.2f}% more time"

    def _needless(self, least_cost: float, floor_bytes: int = 0) -> bool:
        """Whether a plan that costs so much, or takes so much, cannot be the best."""
        if self.best is None:
            return False
        if self.goal.lowest:
            return self.best.peak_bytes <= floor_bytes
        return self.best.extra_cost <= least_cost

    def _spare(self, nodes: int) -> float:
        """Seconds that are left for plans of graphs of so many nodes; the first plan may come a
        little late."""
        if self.best is not None:
            return self.goal.spare(max(nodes, len(self.best.plan.sequence)))
        return self.goal.spare(nodes) + self.goal.grace

    def _deadline(self, entry: _Entry, seconds: float) -> Deadline:
        """The end of a search of so many seconds, or of all that are left. Where rounds are counted
        there is none. The first search is never without time, however long all else has taken."""
        deadline = self.goal.deadline
        if math.isinf(deadline.seconds):
            return deadline
        least = 0.0 if self.failure or self.best else _FIRST_LOOK
        return Deadline(max(min(seconds, self._spare(entry.nodes)), least), deadline.clock)


def _better(found: Planned, other: Planned | None, goal: Goal) -> Planned:
    """The cheaper plan, of such the one with the lower peak without workspace, which runs show;
    where the budget says nothing, or the least is asked for, the lower one."""
    if other is None:
        return found
    if goal.lowest or goal.strategy.ignores_budget:
        return min(other, found, key=lambda plan: (plan.peak_bytes, plan.extra_cost))
    return min(
        other, found, key=lambda p: (p.extra_cost, p.plan.predicted_peak_bytes, p.peak_bytes)
    )


def _decisions(steps: Sequence[PassStep]) -> tuple[ChunkDecision, ...]:
    place = chunk_step(steps)
    return () if place is None else steps[place].chunks


def _prepared(entry: _Entry, goal: Goal) -> Prepared:
    """What the planner is asked, encoded: once for all looks.

    Raises:
        UsageError: a name is not there.
    """
    model = entry.model
    request = plan_request(model, goal.session, goal.costs, goal.room_bytes, goal.selectors)
    forms = kinds_for(model.prepared, goal.forms)
    request = replace(request, lowest=goal.lowest, forms=forms)
    return prepare(everything_fenced(request) if goal.session.name == "default" else request)


def _plan(entry: _Entry, asked: Prepared, goal: Goal, deadline: Deadline) -> Planned:
    """A plan for the model that the steps of an entry lead to.

    Raises:
        InfeasibleError: none keeps the budget.
        UsageError: the strategy cannot work on this graph.
    """
    model, session, strategy, progress = entry.model, goal.session, goal.strategy, goal.progress
    plain, begun = None, now()
    try:
        if session.name == "default":
            plan, plain = plan_plain(model, asked, session, strategy, deadline, progress)
        else:
            known = None if entry.best is None else entry.best.plan
            plan = make_plan(asked, strategy, deadline.left, progress, known, entry.seconds)
    finally:
        goal.searched.append(now() - begun)
        entry.closed = not deadline.passed
    plan = with_loops(plan, entry.candidate.loops, goal.costs, model.graph)
    return Planned(entry.candidate, entry.steps, plan, plain, entry.chunk_cost)
