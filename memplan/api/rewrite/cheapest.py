"""Plan every candidate; the cheapest plan wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from memplan.api.rewrite.goal import Goal, Source
from memplan.api.rewrite.loop_storage import with_loops
from memplan.api.rewrite.rewrite_candidates import Candidate, candidates, variants
from memplan.deadline import Deadline, now
from memplan.errors import InfeasibleError, MemplanError, UsageError
from memplan.passes.chunk.asked import NAME as CHUNK
from memplan.passes.graph_pass import Pass
from memplan.passes.manager import PassManager, PassStep, before_orders, without_order
from memplan.planning.forms.extend_graph import kinds_for
from memplan.planning.plain.finish_fences import PlainModel
from memplan.planning.plain.plain_plan import in_file_order, plan_plain
from memplan.planning.plan import Plan
from memplan.planning.plan_file import ChunkDecision
from memplan.planning.planner import make_plan, plan_request, prepare
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import simulate
from memplan.solver.strategies.builtin import Search

# Of the time limit, without which the kind of chunks that takes longest to make is left out.
_LEAST_TIME = 0.2


@dataclass(frozen=True, slots=True)
class Planned:
    """A candidate with a plan that keeps the budget.

    ``steps`` lead from the variant to what was planned: changed loops, then passes. ``plain`` is
    there for plain sessions. ``chunk_cost``: of chunks, as a fraction of the step's seconds;
    ``tried``: what came of every candidate where chunks were a choice.
    """

    candidate: Candidate
    steps: tuple[PassStep, ...]
    plan: Plan
    plain: PlainModel | None = None
    chunk_cost: float = 0.0
    tried: tuple[str, ...] = ()

    @property
    def model(self) -> OpenModel:
        """What was planned."""
        return self.steps[-1].model if self.steps else self.candidate.model

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
        UsageError: the strategy cannot work on the last variant, the file's own nodes.
    """
    failure: InfeasibleError | None = None
    every = variants(source.model, goal)
    for variant in every:
        try:
            return _cheapest(tuple(candidates(variant, source, goal)), goal)
        except InfeasibleError as error:
            failure = failure or error
        except UsageError:
            # Fusions may have taken away what the strategy goes by: names, or bottlenecks.
            if variant is every[-1]:
                raise
    assert failure is not None
    raise failure


def _cheapest(every: Sequence[Candidate], goal: Goal) -> Planned:
    """The cheapest plan of candidates that come by rising ``least_cost``; each has its share of the
    time that is left.

    Raises:
        InfeasibleError: there is no plan; why, of the last candidate.
    """
    plans: list[Planned] = []
    tried: list[str] = []
    failure: InfeasibleError | None = None
    ran: list[tuple[PassStep, ...]] = []
    for number, candidate in enumerate(every):
        if not goal.lowest and any(p.extra_cost <= candidate.least_cost for p in plans):
            break
        if candidate is every[-1] and any(plan.candidate.chunk for plan in plans) and _late(goal):
            tried.append(f"{candidate.kind}: no time left")
            continue
        same = ran and candidate.model is every[0].model
        steps = steps_of(candidate, goal, ran[0] if same else ())
        reason = _nothing_new(candidate, steps, ran, goal)
        ran.append(steps)
        if reason:
            tried.append(f"{candidate.kind}: {reason}")
            continue
        try:
            deadline = goal.search.share(1 / (len(every) - number))
            plans.append(try_plan(candidate, steps, goal, deadline))
            tried.append(f"{candidate.kind}: {100 * plans[-1].extra_cost:.2f}% more time")
        except InfeasibleError as error:
            failure = error
            tried.append(f"{candidate.kind}: no plan")
    if not plans:
        assert failure is not None
        raise failure
    return replace(_preferred(plans, goal), tried=tuple(tried))


def _chunks_are_a_choice(goal: Goal) -> bool:
    return goal.chunk is not None and goal.chunk.optional


def _late(goal: Goal) -> bool:
    """Whether little time is left where chunks are a choice."""
    if not _chunks_are_a_choice(goal):
        return False
    left = goal.deadline.left - goal.closing_seconds
    return left < _LEAST_TIME * goal.options.time_limit


def _preferred(plans: Sequence[Planned], goal: Goal) -> Planned:
    """The cheapest, of such the one with the lowest peak without workspace, which runs show; where
    the budget says nothing, or the least is asked for, the lowest."""
    if goal.lowest or goal.strategy.ignores_budget:
        return min(plans, key=lambda plan: (plan.peak_bytes, plan.extra_cost))
    return min(plans, key=lambda p: (p.extra_cost, p.plan.predicted_peak_bytes, p.peak_bytes))


def steps_of(
    candidate: Candidate, goal: Goal, known: Sequence[PassStep] = ()
) -> tuple[PassStep, ...]:
    """What is done to a candidate before anything is recomputed. ``known``: what was done to
    another of the same model, whose first passes need not run again where they are the same.

    Raises:
        UsageError: an option of a pass names what is not there.
    """
    chunk, tuned = candidate.chunk, goal.session.name == "tuned"
    passes = goal.passes if chunk is None or not tuned else before_orders(goal.passes, chunk)
    pairs = zip(known[len(candidate.loops) :], passes, strict=False)
    done = tuple(step for step, _ in takewhile(lambda pair: pair[0].name == pair[1].name, pairs))
    ran = PassManager(passes, done).run(candidate.model, candidate.timeline, goal.passing)
    if chunk is not None and not tuned:
        ran = (*ran, pinned_chunks(chunk, ran[-1] if ran else candidate, goal.session))
    return (*candidate.loops, *ran)


def pinned_chunks(chunk: Pass, before: PassStep | Candidate, session: SessionKind) -> PassStep:
    """Chunks for a plain session, which runs them one after the other because of the pins that the
    plan adds: what they save shows behind these."""
    pinned = simulate(before.model.graph, in_file_order(session))
    found = chunk.apply(before.model, pinned)
    changed = found.model is not before.model
    after = simulate(found.model.graph, session) if changed else before.timeline
    return PassStep(chunk.name, found.model, after, changed, note=found.note, chunks=found.chunks)


def _nothing_new(
    candidate: Candidate,
    steps: Sequence[PassStep],
    ran: Sequence[Sequence[PassStep]],
    goal: Goal,
) -> str:
    """Why a candidate is one that was tried before; else empty."""
    if not _chunks_are_a_choice(goal) or candidate.chunk is None:
        return ""
    chunks = _decisions(steps)
    if not chunks:
        return next(step.note for step in steps if step.name == CHUNK)
    return "the same" if any(_decisions(each) == chunks for each in ran) else ""


def _decisions(steps: Sequence[PassStep]) -> tuple[ChunkDecision, ...]:
    place = chunk_step(steps)
    return () if place is None else steps[place].chunks


def chunk_step(steps: Sequence[PassStep]) -> int | None:
    """The place of the step that made chunks; None: there are none."""
    return next((k for k, step in enumerate(steps) if step.changed and step.name == CHUNK), None)


def try_plan(
    candidate: Candidate, steps: tuple[PassStep, ...], goal: Goal, deadline: Deadline
) -> Planned:
    """The best plan of one candidate behind the free passes.

    Args:
        candidate: what to plan.
        steps: what was done to it before (:func:`steps_of`).
        goal: the budget, and how to plan.
        deadline: for the strategy, in every node order that it tries.

    Raises:
        InfeasibleError: no plan keeps the budget.
        UsageError: the strategy cannot work on this graph, or a name is not there.
    """
    plans: list[Planned] = []
    failure: MemplanError | None = None
    orders = _orders(candidate, steps, goal)
    for number, ordered in enumerate(orders):
        share = deadline.share(1 / (len(orders) - number))
        try:
            plans.append(_plan(candidate, ordered, goal, share))
        except (InfeasibleError, UsageError) as error:
            failure = error
    if failure is not None and not plans:
        raise failure
    return _preferred(plans, goal)


def _orders(
    candidate: Candidate, steps: tuple[PassStep, ...], goal: Goal
) -> list[tuple[PassStep, ...]]:
    """The steps; also without the new node order for a published strategy, which may get on better
    in the order that it was made for, and where a budget may do without an order that saves
    workspace alone and costs memory that runs show."""
    before = without_order(steps)
    if before is steps:
        return [steps]
    last = before[-1] if before else candidate
    raised = steps[-1].timeline.peak_bytes > last.timeline.peak_bytes
    own = isinstance(goal.strategy, Search) and not (raised and not goal.lowest)
    return [steps] if own else [steps, before]


def _plan(
    candidate: Candidate, steps: tuple[PassStep, ...], goal: Goal, deadline: Deadline
) -> Planned:
    """A plan for the model that ``steps`` lead to."""
    last = steps[-1] if steps else candidate
    model = last.model
    request = plan_request(model, goal.session, goal.costs, goal.budget_bytes, goal.selectors)
    forms = kinds_for(model.prepared, goal.forms)
    request = replace(request, lowest=goal.lowest, forms=forms)
    plain: PlainModel | None = None
    begun = now()
    try:
        if goal.session.name == "default":
            plan, plain = plan_plain(model, request, goal.strategy, deadline, goal.progress)
        else:
            plan = make_plan(prepare(request), goal.strategy, deadline.left, goal.progress)
    finally:
        goal.searched.append(now() - begun)
    plan = with_loops(plan, candidate.loops, goal.costs, model.graph)
    return Planned(candidate, steps, plan, plain, chunk_cost(candidate, steps, goal))


def chunk_cost(candidate: Candidate, steps: Sequence[PassStep], goal: Goal) -> float:
    """What chunks take, estimated for all nodes: those of chunks were never measured."""
    place = chunk_step(steps)
    if place is None:
        return 0.0
    before = steps[place - 1].model if place else candidate.model
    estimate = goal.costs.estimate
    return float(sum(estimate(steps[place].model.graph)) / sum(estimate(before.graph)) - 1)
