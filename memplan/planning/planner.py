"""Budget in, plan out: encode, solve, verify."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from memplan.errors import InfeasibleError
from memplan.ir.graph import Graph
from memplan.ir.phases import differentiated
from memplan.planning.costs import NodeCosts
from memplan.planning.encode_problem import encode, refusals, within, without_outputs
from memplan.planning.forms.dormant import Extended
from memplan.planning.forms.extend_graph import NO_KINDS, extend
from memplan.planning.forms.on_host import ON_HOST, Offloaded, offloadable
from memplan.planning.plan import Plan
from memplan.planning.selections import NO_SELECTORS, Selectors, keep_and_force, selections
from memplan.shapes.fold import small_constants
from memplan.simulate.floor import Floor, structural_floor
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import resident_bytes, simulate
from memplan.solver.problem import NONE, Decision, Ints, Problem
from memplan.solver.strategies.checked import checked
from memplan.solver.strategies.lowest_peak_strategy import Lowest
from memplan.solver.strategy import Outcome, Progress, Strategy
from memplan.units import format_bytes

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What to plan.

    ``costs`` are seconds per node name (missing ones are estimated by ``estimate``); ``values``
    are the contents of small constants; ``keep`` are tensor ids that stay as they are, ``force``
    those that are recomputed whatever the budget; ``forward`` the nodes that the loss depends on,
    ``differentiated`` those of them that gradients flow through (None: all), which only some
    strategies need to know. ``outputs_reserved``: graph outputs take their memory from the start,
    as beside the block of a memory pattern (:mod:`memplan.simulate.pattern`). ``lowest``: the
    budget is what the lowest plan takes, not ``budget_bytes``. ``forms``: kinds of other
    forms in which tensors may be kept (:mod:`memplan.planning.forms`), for tuned sessions.
    """

    graph: Graph
    session: SessionKind
    budget_bytes: int
    estimate: Callable[[Graph], Sequence[float]]
    values: Mapping[str, Array] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    keep: frozenset[int] = frozenset()
    force: frozenset[int] = frozenset()
    forward: frozenset[int] | None = None
    differentiated: frozenset[int] | None = None
    outputs_reserved: bool = False
    lowest: bool = False
    forms: frozenset[str] = NO_KINDS


class NoPlanError(InfeasibleError):
    """No plan keeps the budget; ``proven``: none can. What its floor is made of is in ``floor``, of
    ``graph``, and in the hint; callers who know what could lower it say that instead."""

    def __init__(self, prepared: Prepared, message: str, way: str = "", *, proven: bool) -> None:
        self.proven = proven
        self.graph, self.session = prepared.request.graph, prepared.request.session
        self.floor, self.way = prepared.floor, way
        self.floor_bytes = prepared.floor_bytes
        super().__init__(message)
        self.explain(
            f"{format_bytes(prepared.resident_bytes)} resident, the rest set by "
            f"{self.floor.loaded.describe(self.graph)}"
        )

    def explain(self, parts: str) -> None:
        """Let the hint say what the floor is made of."""
        if self.way:
            parts = f"{self.way}; the certified floor is {self.floor_bytes:,} B: {parts}"
        self.hint = parts


def plan_request(
    model: OpenModel,
    session: SessionKind,
    costs: NodeCosts,
    budget_bytes: int = 0,
    selectors: Selectors = NO_SELECTORS,
) -> PlanRequest:
    """What the planner is asked for an open model.

    Raises:
        UsageError: a selector matches nothing.
    """
    chosen = selections(selectors, model)
    keep, force = keep_and_force(chosen, model, session.provider)
    return PlanRequest(
        graph=model.graph,
        session=session,
        budget_bytes=budget_bytes,
        estimate=costs.estimate,
        values=small_constants(model.prepared.bound.graph),
        costs=costs.seconds,
        keep=keep,
        force=force,
        forward=model.phases.forward,
        differentiated=differentiated(model.graph, model.phases),
    )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request, encoded: reused for several budgets, with and without reserved outputs.

    ``problem``: without a budget; ``refusals``: why some nodes are never recomputed, by name.
    ``peak_bytes``: of the graph as it is, workspace included. ``copy_seconds``: of the copies to
    the host and back, by tensor that may be offloaded. ``reserved_bytes`` are held throughout
    besides the resident ones; a problem that is solved for them leaves them out.
    """

    request: PlanRequest
    extended: Extended
    problem: Problem
    refusals: Mapping[str, str]
    floor: Floor
    resident_bytes: int
    peak_bytes: int
    reserved_bytes: int = 0
    copy_seconds: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def floor_bytes(self) -> int:
        """No plan takes less, resident bytes and workspace included."""
        return self.resident_bytes + self.floor.with_workspace


def prepare(request: PlanRequest, *, rebuild: bool = True) -> Prepared:
    """Encode a request and find its floor; ``rebuild``: with rules and forms."""
    values, kinds = (request.values, request.forms) if rebuild else ({}, NO_KINDS)
    offload = frozenset[int]()
    if ON_HOST in kinds:
        kept = request.keep | request.force
        offload = offloadable(request.graph, request.session, request.forward, kept)
    extended = extend(request.graph, values, request.session.provider, kinds, offload)
    costs = list(request.estimate(extended.graph))
    for node in extended.graph.nodes:
        costs[node.id] = request.costs.get(node.name, costs[node.id])
    copy_seconds: dict[int, tuple[float, float]] = {}
    for copy in extended.of_kind(ON_HOST):
        (out,), back = copy.encode, copy.decode
        copy_seconds[copy.tensor] = costs[out], costs[back]
        costs[back] += costs[out]
        costs[out] = 0.0
    timeline = simulate(request.graph, request.session)
    problem = encode(
        extended, timeline, costs, request.keep, request.forward, request.differentiated
    )
    refused = refusals(request.graph, request.session.provider)
    return Prepared(
        request,
        extended,
        problem,
        {request.graph.nodes[n].name: why for n, why in refused.items()},
        structural_floor(request.graph, timeline),
        resident_bytes(extended.graph),
        timeline.peak_with_workspace_bytes,
        copy_seconds=copy_seconds,
    )


def make_plan(
    prepared: Prepared,
    strategy: Strategy,
    time_limit: float,
    progress: Progress | None = None,
    known: Plan | None = None,
    seconds: float = 0.0,
) -> Plan:
    """Solve for the request's budget within ``time_limit`` seconds (loading code not counted).

    ``known``: an earlier plan of this request, to go on from. ``seconds``: see
    :class:`~memplan.solver.strategies.lowest_peak_strategy.Lowest`.

    The peaks in the plan come from the solver's evaluator; whoever writes a model re-simulates it
    (:mod:`memplan.api.rewrite.check_file`) and refuses a plan that does not hold.

    Raises:
        InfeasibleError: the budget is below the floor, or no sequence was found.
        UsageError: the strategy cannot work on this graph.
        MemplanError: the strategy fails, or answers with what is not a sequence of the problem.
    """
    # numba is slow to import: only when there is something to plan.
    from memplan.solver.forms import without_forms

    request = prepared.request
    if prepared.peak_bytes <= request.budget_bytes and not (
        request.force or strategy.ignores_budget or request.lowest
    ):
        # The constants of rules that nothing needs must not break a budget that holds.
        prepared = prepare(request, rebuild=False)
    if request.outputs_reserved:
        smaller, reserved = without_outputs(prepared.problem)
        prepared = replace(prepared, problem=smaller, reserved_bytes=reserved)
    resident = prepared.resident_bytes
    room = request.budget_bytes - resident
    if request.lowest:
        room = max(prepared.floor.with_workspace, prepared.reserved_bytes)
    elif room < prepared.floor.with_workspace:
        raise _below_floor(prepared)
    problem = within(prepared.problem, room - prepared.reserved_bytes, request.force)
    if known is not None:
        problem = replace(problem, known=(np.asarray(known.sequence, dtype=np.int64),))
    if not strategy.takes_forms:
        problem = without_forms(problem)
    start = time.perf_counter()
    outside = resident + prepared.reserved_bytes

    def tell(peak: int, extra: float) -> None:
        """In the unit of the budget."""
        if progress is not None:
            progress(outside + peak, extra)

    chooser = Lowest(strategy, seconds) if request.lowest else strategy
    outcome = checked(chooser, problem, time_limit, tell)
    if request.lowest:
        # Whatever that takes: a recomputation that nobody reads is not written.
        decision = _pruned(problem, outcome.decision)
        problem = replace(problem, budget=decision.peak)
        outcome = replace(outcome, decision=replace(decision, feasible=True))
    seconds = time.perf_counter() - start
    if not outcome.decision.feasible:
        if strategy.ignores_budget:
            raise _over(prepared, outcome.decision, strategy.name)
        raise _not_found(prepared, outcome.decision, math.isinf(outcome.bound_seconds))
    outcome = replace(outcome, decision=without_unread(problem, outcome.decision))
    plan = as_plan(prepared, problem, outcome, strategy.name, seconds)
    return replace(plan, tags=strategy.clone_tags)


def without_unread(problem: Problem, decision: Decision) -> Decision:
    """The decision without recomputations that nobody reads, and copies to the host that nobody
    reads back, where the budget holds without them.

    A search that is stopped early may leave some. Those that the user asked for stay.
    """
    pruned = _pruned(problem, decision)
    return pruned if pruned.feasible else decision


def _pruned(problem: Problem, decision: Decision) -> Decision:
    from memplan.solver.evaluate import decide

    sequence = decision.sequence
    while len(unread := unread_again(problem, sequence)):
        sequence = np.delete(sequence, unread)
    return decision if len(sequence) == len(decision.sequence) else decide(problem, sequence)


def unread_again(problem: Problem, sequence: Ints) -> list[int]:
    """Positions of recomputations none of whose outputs is read before it is made anew."""
    arrays = problem.arrays
    originals = {int(node) for node in problem.order}
    made_at: dict[int, int] = {}
    idle: set[int] = set()
    for position, node in enumerate(sequence.tolist()):
        for tensor in arrays.reads[arrays.read_start[node] : arrays.read_start[node + 1]].tolist():
            if arrays.maker[tensor] != NONE:  # else it only keeps nodes in their order
                idle.discard(made_at.get(tensor, NONE))
        if node in originals:
            originals.discard(node)
        elif not problem.protected[node]:
            idle.add(position)
        for tensor in arrays.writes[
            arrays.write_start[node] : arrays.write_start[node + 1]
        ].tolist():
            made_at[tensor] = position
    return sorted(idle)


def as_plan(
    prepared: Prepared, problem: Problem, outcome: Outcome, strategy: str, seconds: float
) -> Plan:
    """An outcome for ``problem`` as a plan for the whole graph, resident bytes included.

    Its budget is the problem's, or the peak that was reached where that is higher.
    """
    from memplan.solver.evaluate import evaluate

    decision = outcome.decision
    resident = prepared.resident_bytes + prepared.reserved_bytes
    after = evaluate(problem.arrays, decision.sequence)
    base = problem.base_cost
    return replace(
        plan_with(prepared, decision.sequence.tolist(), strategy),
        budget_bytes=resident + max(problem.budget, decision.peak),
        predicted_peak_bytes=resident + int(after.dynamic.max(initial=0)),
        predicted_peak_with_workspace_bytes=resident + int(after.total.max(initial=0)),
        extra_cost_fraction=decision.extra_cost / base if base else 0.0,
        bound_fraction=outcome.bound_seconds / base if base else 0.0,
        bound_kind=outcome.bound_kind,
        planning_seconds=seconds,
    )


def plan_with(prepared: Prepared, sequence: Sequence[int], strategy: str) -> Plan:
    """The plan of a sequence without its figures: what is made again, and how."""
    runs = Counter(sequence)
    return Plan(
        extended=prepared.extended,
        sequence=tuple(sequence),
        budget_bytes=prepared.request.budget_bytes,
        predicted_peak_bytes=0,
        predicted_peak_with_workspace_bytes=0,
        extra_cost_fraction=0.0,
        bound_fraction=0.0,
        bound_kind="trivial",
        strategy=strategy,
        recomputed=_recomputed(prepared.extended, runs),
        refusals=prepared.refusals,
        floor=prepared.floor,
        resident_bytes=prepared.resident_bytes,
        planning_seconds=0.0,
        offloaded=_offloaded(prepared, runs),
        forms=Counter(form.kind for form in prepared.extended.forms if form.decode in runs),
    )


def _recomputed(extended: Extended, runs: Mapping[int, int]) -> dict[str, int]:
    graph = extended.graph
    copies = {node for copy in extended.of_kind(ON_HOST) for node in (*copy.encode, copy.decode)}
    return {
        graph.nodes[node].name: count - (node < extended.first_dormant)
        for node, count in sorted(runs.items())
        if count > (node < extended.first_dormant) and node not in copies
    }


def _offloaded(prepared: Prepared, runs: Mapping[int, int]) -> tuple[Offloaded, ...]:
    """What is copied to the host and read back, in the order in which it is made."""
    tensors = prepared.extended.graph.tensors
    return tuple(
        Offloaded(
            tensors[copy.tensor].name,
            tensors[copy.tensor].nbytes,
            runs[copy.decode],
            *prepared.copy_seconds[copy.tensor],
        )
        for copy in prepared.extended.of_kind(ON_HOST)
        if copy.decode in runs
    )


def _below_floor(prepared: Prepared) -> InfeasibleError:
    need = prepared.floor_bytes
    return NoPlanError(
        prepared,
        f"budget {prepared.request.budget_bytes:,} B is below the floor {need:,} B "
        f"({format_bytes(need)}), which no order and no recomputation can go below",
        proven=True,
    )


def _not_found(prepared: Prepared, decision: Decision, proven: bool) -> InfeasibleError:
    reached = prepared.resident_bytes + prepared.reserved_bytes + decision.peak
    budget = f"{prepared.request.budget_bytes:,} B"
    found = f"no order and no recomputation fits {budget} (proved)"
    if not proven:
        found = f"no plan found within {budget}"
    # No promise: with more room a strategy takes other steps, which may end above what it reached
    # with less; and plain sessions need room between buffers.
    way = f"try {reached:,} B, or a little more"
    if prepared.request.session.name == "default":
        way = "a plain session needs more than that: try a larger budget or --session tuned"
    lowest = f"the lowest peak reached is {reached:,} B ({format_bytes(reached)})"
    return NoPlanError(prepared, f"{found}; {lowest}", way, proven=proven)


def _over(prepared: Prepared, decision: Decision, strategy: str) -> InfeasibleError:
    reached = prepared.resident_bytes + prepared.reserved_bytes + decision.peak
    return InfeasibleError(
        f"strategy '{strategy}' reaches a peak of {reached:,} B ({format_bytes(reached)}), above "
        f"the budget of {prepared.request.budget_bytes:,} B",
        f"it makes the same plan for every budget: allow {reached:,} B or more, or use another "
        "strategy (--strategy auto)",
    )
