"""Plan every candidate; the cheapest plan wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memplan.api.rewrite.candidates import Candidate, candidates, variants
from memplan.api.rewrite.goal import Goal, Source
from memplan.api.rewrite.loops import with_loops
from memplan.api.rewrite.seconds import costs_for
from memplan.errors import InfeasibleError, MemplanError, UsageError
from memplan.passes.manager import PassManager, PassStep, without_order
from memplan.plain.finish import PlainModel
from memplan.plain.plan import plan_plain
from memplan.planning.confirm import confirmed_plan
from memplan.planning.costs import NodeCosts
from memplan.planning.plan import Plan
from memplan.planning.planner import plan_request
from memplan.simulate.opened import OpenModel
from memplan.solver.strategy import Strategy
from memplan.strategies.builtin import Search


@dataclass(frozen=True, slots=True)
class Planned:
    """A candidate with a plan that keeps the budget.

    ``steps`` lead from the variant to what was planned: changed loops, then passes. ``plain`` is
    there for plain sessions.
    """

    candidate: Candidate
    steps: tuple[PassStep, ...]
    costs: NodeCosts
    plan: Plan
    plain: PlainModel | None = None

    @property
    def model(self) -> OpenModel:
        """What was planned."""
        return self.steps[-1].model if self.steps else self.candidate.model

    @property
    def extra_cost(self) -> float:
        """Of the plan, as a fraction of the step's seconds; that of the loops included."""
        return self.plan.extra_cost_fraction

    @property
    def peak_bytes(self) -> int:
        """Of the plan, workspace included."""
        return self.plan.predicted_peak_with_workspace_bytes


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
    """The cheapest plan of candidates that come by rising ``least_cost``; all have equal time.

    Raises:
        InfeasibleError: there is no plan; why, of the last candidate.
    """
    seconds = goal.seconds / len(every)
    plans: list[Planned] = []
    failure: InfeasibleError | None = None
    for candidate in every:
        if not goal.lowest and any(p.extra_cost <= candidate.least_cost for p in plans):
            break
        try:
            plans.append(try_plan(candidate, goal, seconds))
        except InfeasibleError as error:
            failure = error
    if not plans:
        assert failure is not None
        raise failure
    return _preferred(plans, goal)


def _preferred(plans: Sequence[Planned], goal: Goal) -> Planned:
    """The cheapest; where the budget says nothing, or the least is asked for, the lowest."""
    if goal.lowest or goal.strategy.ignores_budget:
        return min(plans, key=lambda plan: (plan.peak_bytes, plan.extra_cost))
    return min(plans, key=lambda plan: (plan.extra_cost, plan.peak_bytes))


def try_plan(candidate: Candidate, goal: Goal, seconds: float) -> Planned:
    """The best plan of one candidate behind the free passes.

    Args:
        candidate: what to plan.
        goal: the budget, and how to plan.
        seconds: for the strategy, in every node order that it tries.

    Raises:
        InfeasibleError: no plan keeps the budget.
        UsageError: the strategy cannot work on this graph, or a glob matches nothing.
    """
    steps = (
        *candidate.loops,
        *PassManager(goal.passes).run(candidate.model, candidate.timeline),
    )
    plans: list[Planned] = []
    failure: MemplanError | None = None
    for ordered in _orders(steps, goal.strategy):
        try:
            plans.append(_plan(candidate, ordered, goal, seconds))
        except (InfeasibleError, UsageError) as error:
            failure = error
    if failure is not None and not plans:
        raise failure
    return _preferred(plans, goal)


def _orders(steps: tuple[PassStep, ...], strategy: Strategy) -> list[tuple[PassStep, ...]]:
    """The steps; for a published strategy also without the new node order: it may get on better in
    the order that it was made for."""
    before = without_order(steps)
    return [steps] if isinstance(strategy, Search) or before is steps else [steps, before]


def _plan(candidate: Candidate, steps: tuple[PassStep, ...], goal: Goal, seconds: float) -> Planned:
    """A plan for the model that ``steps`` lead to."""
    last = steps[-1] if steps else candidate
    model, options = last.model, goal.options
    costs = costs_for(model, last.timeline, goal)
    request = plan_request(
        model, goal.session, costs, goal.budget_bytes, options.keep, options.recompute
    )
    request = replace(request, lowest=goal.lowest, offload=options.offload)
    plain: PlainModel | None = None
    if goal.session.name == "default":
        plan, plain = plan_plain(model, request, goal.strategy, seconds, goal.progress)
    else:
        plan = confirmed_plan(model.prepared, request, goal.strategy, seconds, goal.progress).plan
    plan = with_loops(plan, candidate.loops, costs, model.graph)
    return Planned(candidate, steps, costs, plan, plain)
