"""A plan file put into effect again: no search, no bound, and the same proof as ever.

On the graph that it was made for, every entry must hold as it stands, and the result is the same
bytes. On another, what still applies is applied and the rest is named (:class:`Replay`). Either
way the file is taken for a wish: what it promises is simulated and proved anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.rewrite.cheapest import Planned, chunk_cost, pinned_chunks
from memplan.api.rewrite.goal import Goal, RewriteOptions, Source
from memplan.api.rewrite.loop_storage import loops_again, with_loops
from memplan.api.rewrite.plan_record import recorded_plan, tensor_decisions
from memplan.api.rewrite.proved import Applied, Proved, proved_as_planned
from memplan.api.rewrite.replay_check import Recorded, recorded_worth, require_as_found
from memplan.api.rewrite.rewrite_candidates import Candidate, analysis_of, variants
from memplan.errors import EXIT_BUG, InfeasibleError, MemplanError, PlanError, UsageError
from memplan.passes.chunk.asked import NAME as CHUNK
from memplan.passes.chunk.chunk_replay import ChunkReplay
from memplan.passes.graph_pass import Pass
from memplan.passes.manager import NAMES, PassManager, PassStep, make_passes
from memplan.passes.order import Order, OrderAgain
from memplan.passes.prune import Prune
from memplan.planning.apply import apply_plan
from memplan.planning.forms.extend_graph import kinds_for
from memplan.planning.forms.on_host import ON_HOST
from memplan.planning.plain.finish_fences import PlainModel
from memplan.planning.plain.plain_plan import everything_fenced, plain_again, plain_anew
from memplan.planning.plan import Plan
from memplan.planning.plan_decisions import EDITED, KEPT
from memplan.planning.plan_file import FormNode, PlanFile, TensorDecision
from memplan.planning.plan_rows import WORDS
from memplan.planning.planner import Figures, Prepared, plan_request, plan_with, prepare
from memplan.planning.replay_sequence import (
    may_run_again,
    sequence_as_it_stands,
    sequence_carried_over,
)
from memplan.planning.verify import sound_timeline
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline
from memplan.units import SizeSpec, counted, format_bytes, listed, printable

_ANEW = "plan anew with --plan-out"
_OURS = "if it was not, please report it with the model"
_SHOWN = 4  # names of what does not apply
_LEAST_SHARE = 0.5  # of the plan's nodes: a graph that has fewer is another model's


@dataclass(frozen=True, slots=True)
class Replay:
    """How a plan applied. ``exact``: as it stands, to the graph that it was made for.

    Else ``gone``: nodes of the plan that the graph does not have; ``new``: nodes of the graph that
    the plan does not have; ``refused``: what the plan runs again and must not be run again here;
    ``undone``: tensors of which the plan decides other than what becomes of them here.
    ``recorded``: what an exact plan says of its own worth.
    """

    exact: bool
    gone: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    recorded: Recorded | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of it, a line each."""
        if self.exact:
            return ()
        rows = (
            ("nodes missing from the graph", self.gone),
            ("nodes unknown to the plan", self.new),
            ("planned but not recomputed", self.refused),
            ("tensors whose decision does not hold", self.undone),
        )
        named = (
            f"{words}: {listed([printable(name) for name in names], _SHOWN)}"
            for words, names in rows
            if names
        )
        return (
            "the graph is not the one that the plan was made for: applied as far as it holds",
            *named,
        )

    def as_json(self) -> dict[str, object]:
        """The JSON object."""
        return {
            "exact": self.exact,
            "gone": list(self.gone),
            "new": list(self.new),
            "refused": list(self.refused),
            "undone": list(self.undone),
            "recorded": None if self.recorded is None else self.recorded.as_json(),
        }


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


def replayed(source: Source, goal: Goal, plan: PlanFile, *, strict: bool) -> tuple[Proved, Replay]:
    """The plan applied to ``source``, simulated and proved.

    Raises:
        PlanError: it was edited, or made for another model; with ``strict`` also where the graph
            is not the one that it was made for.
        InfeasibleError: the result does not keep the goal's budget.
    """
    try:
        return _replayed(source, goal, plan, strict)
    except MemplanError as error:
        if error.exit_code != EXIT_BUG:
            raise
        # A file that anybody may have edited asked for it: its fault first, and ours if not.
        raise PlanError(f"the plan does not hold: {error.message}", f"{EDITED}; {_OURS}") from None


def _replayed(source: Source, goal: Goal, plan: PlanFile, strict: bool) -> tuple[Proved, Replay]:
    if plan.accounting > ACCOUNTING_VERSION:
        raise PlanError(
            f"the plan was written by a newer memplan: its accounting is {plan.accounting}, and "
            f"that of this memplan is {ACCOUNTING_VERSION}",
            f"update memplan, or {_ANEW}",
        )
    candidate = _candidate(source, goal, plan)
    steps = (*candidate.loops, *_steps(candidate, goal, plan))
    model = steps[-1].model if steps else candidate.model
    exact = model.prepared.fingerprint == plan.model.planned
    if strict and not (exact and source.original.fingerprint == plan.model.fingerprint):
        raise PlanError(
            "the graph is not the one that the plan was made for, and --strict was given",
            f"leave out --strict to apply what still holds, or {_ANEW}",
        )
    prepared = _prepared(model, goal, plan)
    found, replay = _sequence(prepared, plan, exact)
    decided = _plan(prepared, found, goal, plan)
    decided = with_loops(decided, candidate.loops, goal.costs, model.graph)
    planned = Planned(candidate, steps, decided, None, chunk_cost(candidate, steps, goal))
    planned, applied = _applied(planned, goal, plan, exact=exact)
    if not exact:
        replay = replace(
            replay, undone=_undone(plan, tensor_decisions(source, planned, goal.costs))
        )
    if exact and plan.accounting == ACCOUNTING_VERSION:
        _require_recorded(plan, applied.timeline)
    other = (_other_accounting(plan),) if plan.accounting != ACCOUNTING_VERSION else ()
    proved = proved_as_planned(planned, applied, goal, (*replay.notes, *other))
    if exact:
        now = recorded_plan(source, proved)
        require_as_found(plan, now)
        replay = replace(replay, recorded=recorded_worth(plan, now))
    return proved, replay


def _undone(plan: PlanFile, now: Sequence[TensorDecision]) -> tuple[str, ...]:
    """Decisions of the plan that do not hold: the tensor, and what was to become of it."""
    found = {row.tensor: row.decision for row in now}
    return tuple(
        f"{row.tensor} ({row.decision})"
        for row in plan.tensors
        if row.decision not in (KEPT, found.get(row.tensor))
    )


def _prepared(model: OpenModel, goal: Goal, plan: PlanFile) -> Prepared:
    """The graph with what makes tensors in other ways, where the plan does."""
    request = plan_request(model, goal.session, goal.costs, goal.budget_bytes)
    kinds = frozenset(kind for kind in goal.forms if WORDS.get(kind, kind) in plan.settings.forms)
    if goal.session.name == "default":
        request = everything_fenced(request)
    rebuilds = any(isinstance(step, FormNode) for step in plan.sequence)
    return prepare(replace(request, forms=kinds_for(model.prepared, kinds)), rebuild=rebuilds)


def _require_recorded(plan: PlanFile, found: Timeline) -> None:
    """Hold the simulation against the file's peaks: the planner's evaluator, which is not asked
    here, found these when the plan was made.

    Raises:
        PlanError: they differ.
    """
    for name, peak in (
        ("predicted_peak_bytes", found.peak_bytes),
        ("predicted_peak_with_workspace_bytes", found.peak_with_workspace_bytes),
    ):
        if (said := getattr(plan, name)) != peak:
            raise PlanError(
                f"the plan's {name}: {said:,} B, and simulation finds {peak:,} B", EDITED
            )


def _other_accounting(plan: PlanFile) -> str:
    return (
        f"the plan's peaks are of version {plan.accounting} of the memory model, those here of "
        f"version {ACCOUNTING_VERSION}"
    )


def _candidate(source: Source, goal: Goal, plan: PlanFile) -> Candidate:
    """The graph that was planned, before any pass."""
    variant = variants(source.model, goal)[0]
    loops = loops_again(variant.model, goal.session, plan.loops, goal.costs, goal.options.loss)
    return Candidate(variant, analysis_of(variant, source, goal), loops)


def _steps(candidate: Candidate, goal: Goal, plan: PlanFile) -> tuple[PassStep, ...]:
    """What the passes of the plan did, once more."""
    model, timeline = candidate.model, candidate.timeline
    steps: list[PassStep] = []
    for place, decision in enumerate(plan.passes):
        if decision.name not in (*NAMES, CHUNK):
            raise PlanError(
                f"the plan's passes[{place}]: unknown pass '{printable(decision.name)}'",
                f"passes of this version: {', '.join((*NAMES, CHUNK))}; {_ANEW}",
            )
        step = PassStep(decision.name, model, timeline, changed=False, note="left out, as planned")
        if decision.changed:
            again = _pass_again(decision.name, plan)
            if isinstance(again, ChunkReplay) and goal.session.name != "tuned":
                step = pinned_chunks(again, steps[-1] if steps else candidate, goal.session)
            else:
                (step,) = PassManager((again,)).run(model, timeline)
        steps.append(step)
        model, timeline = step.model, step.timeline
    return tuple(steps)


def _pass_again(name: str, plan: PlanFile) -> Pass:
    if name == CHUNK:
        return ChunkReplay(plan.chunks, plan.chunks[0].kind if plan.chunks else "")
    if name == Order.name:
        return OrderAgain(plan.order)
    return make_passes((name,), plan.settings.wrt if name == Prune.name else ())[0]


def _sequence(prepared: Prepared, plan: PlanFile, exact: bool) -> tuple[tuple[int, ...], Replay]:
    """The nodes to run, and how far they are those of the plan.

    Raises:
        PlanError: an entry is wrong, or the plan is of another model.
    """
    room = prepared.request.budget_bytes - prepared.resident_bytes
    problem = prepared.encoded.problem(room - prepared.reserved_bytes)
    again = may_run_again(problem)
    if exact:
        found = sequence_as_it_stands(plan.sequence, prepared, problem, again)
        return found, Replay(exact=True)
    carried = sequence_carried_over(plan.sequence, prepared, problem, again)
    named = len({step for step in plan.sequence if isinstance(step, str)})
    missing = len(carried.gone)
    if missing > (1 - _LEAST_SHARE) * named or not named:
        raise PlanError(
            f"the plan is of another model: the graph has {named - missing:,} of the plan's "
            f"{counted(named, 'node')}",
            f"give the model that it was made for, or {_ANEW}",
        )
    nodes = tuple(int(node) for node in carried.sequence)
    return nodes, Replay(False, carried.gone, carried.new, carried.refused)


def _plan(prepared: Prepared, sequence: tuple[int, ...], goal: Goal, plan: PlanFile) -> Plan:
    """The plan of ``sequence``; its peaks are not known before it is applied, and nothing here
    certifies a bound."""
    costs = prepared.encoded.arrays.cost
    base = float(sum(costs[node] for node in prepared.encoded.order))
    runs = Counter(sequence)
    extra = sum(float(costs[node]) * count for node, count in runs.items()) - base
    figures = Figures(
        budget_bytes=goal.budget_bytes,
        predicted_peak_bytes=0,
        predicted_peak_with_workspace_bytes=0,
        extra_cost_fraction=max(0.0, extra / (base or 1.0)),
        bound_fraction=0.0,
        bound_kind="trivial",
    )
    found = plan_with(prepared, sequence, figures, plan.strategy, 0.0)
    return replace(found, tags=goal.strategy.clone_tags)


def _applied(
    planned: Planned, goal: Goal, plan: PlanFile, *, exact: bool
) -> tuple[Planned, Applied]:
    """The new model, simulated and sound, and the plan with the peaks that it has.

    Raises:
        InfeasibleError: the budget does not hold.
        Rejected: the new model is not what was planned; our bug.
    """
    session, model = goal.session, planned.model
    if session.name == "tuned":
        prepared = model.prepared
        result = apply_plan(prepared.proto, planned.plan, prepared.dims)
        timeline = sound_timeline(prepared.proto, result, planned.plan, prepared.types, session)
        decided = _with_peaks(planned.plan, timeline, goal)
        return replace(planned, plan=decided), Applied(result, timeline)
    plain: PlainModel | None
    if exact and plan.plain is not None:
        plain = plain_again(model, planned.plan, session, plan.plain)
    else:
        plain = plain_anew(model, planned.plan, session, goal.search)
    if plain is None:
        raise InfeasibleError(
            f"the plan, as far as it applies, does not keep {goal.budget_bytes:,} B in a plain "
            "session",
            _ANEW,
        )
    decided = _with_peaks(planned.plan, plain.timeline, goal)
    return replace(planned, plan=decided, plain=plain), Applied(plain.model, plain.timeline)


def _with_peaks(plan: Plan, timeline: Timeline, goal: Goal) -> Plan:
    """The plan with the peaks of the new model.

    Raises:
        InfeasibleError: they are over the budget.
    """
    peak = timeline.peak_with_workspace_bytes
    if peak > goal.budget_bytes and not goal.strategy.ignores_budget:
        raise InfeasibleError(
            f"the plan takes {peak:,} B ({format_bytes(peak)}), over the "
            f"budget of {goal.budget_bytes:,} B",
            f"give a larger --budget, or {_ANEW}",
        )
    return replace(
        plan,
        budget_bytes=max(goal.budget_bytes, peak),
        # Resident as the planner counts: with the constants of rules that nothing uses.
        predicted_peak_bytes=plan.resident_bytes + timeline.dynamic_peak_bytes,
        predicted_peak_with_workspace_bytes=peak,
    )
