"""A plan file put into effect again: no search, no bound, and the same proof as ever.

A plan is exact or refused: it is of one graph, and the result is the same bytes. It is taken for a
wish all the same: what it promises is simulated and proved anew.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.rewrite.candidates import Candidate, chunk_cost, pinned_chunks, variants
from memplan.api.rewrite.cheapest import Planned
from memplan.api.rewrite.finish import Proved, finished
from memplan.api.rewrite.goal import Goal, Source
from memplan.api.rewrite.loop_storage import loops_again, with_loops
from memplan.api.rewrite.plan_record import versions
from memplan.api.rewrite.recorded import Recorded, recorded_worth
from memplan.errors import EXIT_BUG, InfeasibleError, MemplanError, PlanError, UsageError
from memplan.options import RewriteOptions
from memplan.passes.chunk.asked import NAME as CHUNK
from memplan.passes.chunk.choose_chunks import ChunkReplay
from memplan.passes.graph_pass import Pass
from memplan.passes.manager import NAMES, PassStep, make_passes, run_passes
from memplan.passes.order import Order, OrderAgain
from memplan.passes.prune import Prune
from memplan.planning.forms.extend_graph import kinds_for
from memplan.planning.forms.on_host import ON_HOST
from memplan.planning.plain.plain_plan import everything_fenced, plain_again
from memplan.planning.plan import Plan
from memplan.planning.plan_file import ANEW, EDITED, FormNode, PlanFile, Step
from memplan.planning.plan_rows import WORDS, form_nodes
from memplan.planning.planner import Prepared, plan_request, plan_with, prepare
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline
from memplan.units import SizeSpec, counted, format_bytes, printable

_OURS = "if it was not, please report it with the model"
_SHOWN = 8  # digits of a fingerprint


def options_of(plan: PlanFile) -> RewriteOptions:
    """The options that a plan was made with, as far as a replay needs them.

    Raises:
        PlanError: one of them is nothing that memplan knows.
    """
    settings = plan.settings
    budget = SizeSpec(f"{plan.budget_bytes} B", plan.budget_bytes, None)
    try:
        return RewriteOptions(
            budget=budget,
            strategy=plan.strategy,
            session=plan.session,
            provider=plan.provider,
            optimize=plan.optimize,
            device=settings.device,
            loss=settings.loss,
            wrt=settings.wrt,
            state=settings.state,
            offload=WORDS[ON_HOST] in settings.forms,
        )
    except UsageError as error:
        raise PlanError(f"the plan's {error.message}", error.hint) from None


def replayed(source: Source, goal: Goal, plan: PlanFile) -> tuple[Proved, Recorded]:
    """The plan applied to ``source``, simulated and proved; and what it says of its own worth.

    Raises:
        PlanError: it was made for another graph or by another version, or edited.
        InfeasibleError: the result does not keep the goal's budget.
    """
    _require_made_for(source, plan)
    try:
        proved = _proved(source, goal, plan)
    except MemplanError as error:
        if error.exit_code != EXIT_BUG:
            raise
        # A file that anybody may have edited asked for it: its fault first, and ours if not.
        raise PlanError(f"the plan does not hold: {error.message}", f"{EDITED}; {_OURS}") from None
    found = proved.planned
    return proved, recorded_worth(plan, found.plan.extra_cost_fraction, found.chunk_cost)


def _require_made_for(source: Source, plan: PlanFile) -> None:
    """Refuse a plan for another graph, and one whose bytes are counted otherwise.

    Raises:
        PlanError: it is one of these.
    """
    if plan.accounting != ACCOUNTING_VERSION:
        newer = plan.accounting > ACCOUNTING_VERSION
        raise PlanError(
            f"the plan was written by {'a newer' if newer else 'an older'} memplan: its accounting "
            f"is {plan.accounting}, and that of this memplan is {ACCOUNTING_VERSION}",
            f"update memplan, or {ANEW}" if newer else ANEW,
        )
    if source.original.fingerprint != plan.model.fingerprint:
        raise PlanError(
            f"the plan was made for another graph: {_named(plan.model.fingerprint)}, "
            f"{counted(plan.model.nodes, 'node')}; the model's is "
            f"{_named(source.original.fingerprint)}, "
            f"{counted(len(source.model.graph.nodes), 'node')}",
            f"give the model that it was made for, or {ANEW}",
        )


def _named(fingerprint: str) -> str:
    return f"fingerprint {printable(fingerprint[:_SHOWN])}"


def _proved(source: Source, goal: Goal, plan: PlanFile) -> Proved:
    candidate = _candidate(source, goal, plan)
    try:
        steps = (*candidate.loops, *_steps(candidate, goal, plan))
    except PlanError:
        _require_versions(plan)
        raise
    model = steps[-1].model if steps else candidate.model
    if model.prepared.fingerprint != plan.model.planned:
        _require_versions(plan)
        raise PlanError(
            "the plan's passes, chunks and loops do not make the graph of its sequence", EDITED
        )
    prepared = _prepared(model, goal, plan)
    decided = with_loops(_plan(prepared, goal, plan), candidate.loops, goal.costs, model.graph)
    plain = None
    if goal.session.name == "default":
        if plan.plain is None:
            raise PlanError("the plan is for a plain session, and says nothing of its pins", EDITED)
        plain = plain_again(model, decided, goal.session, plan.plain)
    cost = chunk_cost(candidate, steps, goal)
    found = finished(Planned(candidate, steps, decided, plain, cost), goal)
    told = _with_peaks(decided, found.timeline, goal, plan)
    return replace(found, planned=replace(found.planned, plan=told))


def _require_versions(plan: PlanFile) -> None:
    """Refuse a plan whose own graph, behind fusions and passes, other versions made.

    Raises:
        PlanError: they did.
    """
    made_with = plan.model.runtime, plan.memplan
    if made_with != versions():
        was, now = (
            f"{runtime or 'no ONNX Runtime'} and memplan {memplan}"
            for runtime, memplan in (made_with, versions())
        )
        raise PlanError(
            f"the plan was made with {printable(was)}; {now} make another graph of this model", ANEW
        )


def _prepared(model: OpenModel, goal: Goal, plan: PlanFile) -> Prepared:
    """The graph with what makes tensors in other ways, where the plan does."""
    request = plan_request(model, goal.session, goal.costs, goal.budget_bytes)
    kinds = frozenset(kind for kind in goal.forms if WORDS.get(kind, kind) in plan.settings.forms)
    if goal.session.name == "default":
        request = everything_fenced(request)
    rebuilds = any(isinstance(step, FormNode) for step in plan.sequence)
    return prepare(replace(request, forms=kinds_for(model.prepared, kinds)), rebuild=rebuilds)


def _candidate(source: Source, goal: Goal, plan: PlanFile) -> Candidate:
    """The graph that was planned, before any pass.

    Raises:
        PlanError: ONNX Runtime does not fuse nodes here as it did when the plan was made.
    """
    variant = next(variants(source, goal))
    if variant.level != plan.optimize:
        raise PlanError(
            f"the plan is of the graph that ONNX Runtime optimizes ({plan.optimize}), which is not "
            f"to be had here: {variant.notes[-1]}",
            ANEW,
        )
    loops = loops_again(variant.model, goal.session, plan.loops, goal.costs, goal.options.loss)
    return Candidate(variant, loops)


def _steps(candidate: Candidate, goal: Goal, plan: PlanFile) -> tuple[PassStep, ...]:
    """What the passes of the plan did, once more."""
    model, timeline = candidate.model, candidate.timeline
    steps: list[PassStep] = []
    for place, decision in enumerate(plan.passes):
        if decision.name not in (*NAMES, CHUNK):
            raise PlanError(
                f"the plan's passes[{place}]: unknown pass '{printable(decision.name)}'",
                f"passes of this version: {', '.join((*NAMES, CHUNK))}; {ANEW}",
            )
        step = PassStep(decision.name, model, timeline, changed=False, note="left out, as planned")
        if decision.changed:
            again = _pass_again(decision.name, plan)
            if isinstance(again, ChunkReplay) and goal.session.name != "tuned":
                step = pinned_chunks(again, steps[-1] if steps else candidate, goal.session)
            else:
                (step,) = run_passes((again,), model, timeline)
        steps.append(step)
        model, timeline = step.model, step.timeline
    return tuple(steps)


def _pass_again(name: str, plan: PlanFile) -> Pass:
    if name == CHUNK:
        return ChunkReplay(plan.chunks)
    if name == Order.name:
        return OrderAgain(plan.order)
    return make_passes((name,), plan.settings.wrt if name == Prune.name else ())[0]


def _plan(prepared: Prepared, goal: Goal, plan: PlanFile) -> Plan:
    """The plan of the file's sequence; its peaks are not known before it is applied, and nothing
    here certifies a bound.

    Raises:
        PlanError: the graph lacks a node of it.
    """
    extended = prepared.extended
    ids: dict[Step, int] = {form: node for node, form in form_nodes(extended).items()}
    ids |= {node.name: node.id for node in extended.graph.nodes[: extended.first_dormant]}
    if unknown := [step for step in plan.sequence if step not in ids]:
        raise PlanError(f"the graph has no {_called(unknown[0])}, which the plan runs", EDITED)
    sequence = [ids[step] for step in plan.sequence]
    costs = prepared.problem.arrays.cost
    base = float(sum(costs[node] for node in prepared.problem.order))
    runs = Counter(sequence)
    extra = sum(float(costs[node]) * count for node, count in runs.items()) - base
    found = plan_with(prepared, sequence, plan.strategy)
    extra_cost = max(0.0, extra / (base or 1.0))
    return replace(found, extra_cost_fraction=extra_cost, tags=goal.strategy.clone_tags)


def _called(step: Step) -> str:
    if isinstance(step, FormNode):
        return f"{printable(step.form)} form of '{printable(step.tensor)}'"
    return f"node '{printable(step)}'"


def _with_peaks(decided: Plan, timeline: Timeline, goal: Goal, plan: PlanFile) -> Plan:
    """The plan with the peaks of the new model, which are held against the file's: the planner's
    evaluator, which is not asked here, found these when the plan was made.

    Raises:
        InfeasibleError: they are over the budget.
        PlanError: they differ.
    """
    peak = timeline.peak_with_workspace_bytes
    if peak > goal.budget_bytes and not goal.strategy.ignores_budget:
        raise InfeasibleError(
            f"the plan takes {peak:,} B ({format_bytes(peak)}), over the "
            f"budget of {goal.budget_bytes:,} B",
            f"give a larger --budget, or {ANEW}",
        )
    for name, found in (
        ("predicted_peak_bytes", timeline.peak_bytes),
        ("predicted_peak_with_workspace_bytes", peak),
    ):
        if (said := getattr(plan, name)) != found:
            raise PlanError(
                f"the plan's {name}: {said:,} B, and simulation finds {found:,} B", EDITED
            )
    return replace(
        decided,
        budget_bytes=max(goal.budget_bytes, peak),
        # Resident as the planner counts: with the constants of rules that nothing uses.
        predicted_peak_bytes=decided.resident_bytes + timeline.dynamic_peak_bytes,
        predicted_peak_with_workspace_bytes=peak,
    )
