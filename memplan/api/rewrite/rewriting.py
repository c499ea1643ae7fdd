"""``rewrite``: a file and a budget → a file that fits.

Read (:class:`Source`), plan (:mod:`~memplan.api.rewrite.candidates`,
:mod:`~memplan.api.rewrite.cheapest`), apply, check and prove (:mod:`~memplan.api.rewrite.finish`),
write; all of it within one deadline (:class:`Goal`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from memplan.api.analysis import (
    NO_BACKWARD,
    analyze_open,
    analyze_session,
    grad_command,
    no_backward_notes,
)
from memplan.api.floor_sentence import floor_report
from memplan.api.open_step import open_step
from memplan.api.python_step import as_sizes
from memplan.api.rewrite.candidates import chunk_step
from memplan.api.rewrite.finish import Proved, proved_plan
from memplan.api.rewrite.goal import (
    Goal,
    Source,
    budget_bytes,
    check_offload,
    forms_for,
    node_costs,
    strategy_for,
)
from memplan.api.rewrite.loop_storage import loops_policy
from memplan.api.rewrite.offload_rewrite import offload_report
from memplan.api.rewrite.plan_record import recorded_plan
from memplan.api.rewrite.recorded import Recorded
from memplan.api.rewrite.replaying import options_of, replayed
from memplan.api.rewrite.rewrite_notes import rewrite_notes
from memplan.api.rewrite.rewrite_result import ClockSeconds, Rewrite, default_output
from memplan.api.source import Model, as_file, shown_path
from memplan.api.state_modes import as_recorded, confirmed
from memplan.deadline import Deadline, now
from memplan.errors import InfeasibleError, RuntimeUnavailableError, UsageError
from memplan.ops.float_types import unsupported_kernels, unsupported_notes
from memplan.options import RewriteOptions, given_options
from memplan.passes.chunk.asked import NONE as NO_CHUNKS
from memplan.passes.chunk.asked import parse_chunks
from memplan.passes.order import in_state_order
from memplan.planning.plain.as_loaded import (
    NOT_ASKED,
    changes_at_load,
    narrow_types,
    written_as_loaded,
)
from memplan.planning.plain.fences import OLDEST_OPSET
from memplan.planning.plan_file import PlanFile, read_plan
from memplan.planning.planner import NoPlanError
from memplan.planning.selections import selectors_for
from memplan.processes.garbage import collector_paused
from memplan.processes.scratch import scratch_folder
from memplan.proto.external import settle_links
from memplan.proto.metadata import get_metadata
from memplan.proto.model_checks import require_device
from memplan.proto.opset import default_opset, raise_opset
from memplan.proto.paths import as_output
from memplan.proto.read import check_structure, read_model
from memplan.proto.weights import NO_WEIGHTS, plan_weights, write_with_weights
from memplan.proto.write import check_target, write_model
from memplan.providers import PROVIDERS
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.prepare import PreparedModel, prepare
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.timeline import simulate
from memplan.simulate.unrunnable import require_runs
from memplan.solver.strategy import Progress
from memplan.units import format_bytes

__all__ = ["Rewrite", "RewriteOptions", "default_output", "replay", "rewrite"]


def rewrite(
    path: Model,
    budget: str | int | RewriteOptions,
    output: Path | str | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Rewrite:
    """Rewrite the training graph in ``path`` so that its predicted peak keeps ``budget``.

    Args:
        path: an ONNX training graph: a path or a ``ModelProto``.
        budget: a size such as ``4GB`` or ``60%`` (of the peak before), a number of bytes, or full
            options.
        output: where to write; default ``MODEL.memplan.onnx`` beside a file, and nowhere for a
            ``ModelProto``: the answer has the new model.
        dims: values for symbolic dimensions.
        force: overwrite ``output``.
        dry_run: plan and verify, write nothing.
        progress: called with the present peak in bytes while the planner works.

    Raises:
        InfeasibleError: no plan keeps the budget.
        ModelError, UsageError: bad model, option, costs or output path.
        RuntimeUnavailableError: no session on the provider opens the graph.
    """
    asked = _Asked(given_options(budget), dims or {}, force, progress)
    return _answered(path, output, asked, dry_run=dry_run)


def replay(
    path: Model,
    plan: PlanFile | Path | str,
    output: Path | str | None = None,
    *,
    budget: str | int | None = None,
    weights: str = "auto",
    force: bool = False,
    dry_run: bool = False,
) -> Rewrite:
    """Rewrite the training graph in ``path`` as a plan says, without a search.

    The result is the same bytes, simulated and proved as ever; a plan for another graph is refused.

    Args:
        path: an ONNX training graph: a path or a ``ModelProto``.
        plan: a plan file, or what :func:`memplan.planning.plan_file.read_plan` read of one.
        output: see :func:`rewrite`.
        budget: what to hold the result to; default: the plan's own.
        weights: see :class:`RewriteOptions`.
        force: overwrite ``output``.
        dry_run: verify, write nothing.

    Raises:
        PlanError: the plan was edited, or made for another graph or by another version.
        InfeasibleError: the result does not keep the budget.
        ModelError, UsageError: bad model, option or output path.
    """
    made = plan if isinstance(plan, PlanFile) else read_plan(Path(plan))
    options = replace(options_of(made), weights=weights)
    if budget is not None:
        options = replace(options, budget=given_options(budget).budget)
    file = None if isinstance(plan, PlanFile) else Path(plan)
    asked = _Asked(options, {}, force, again=made, file=file)
    return _answered(path, output, asked, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class _Asked:
    """``again``: a plan to apply instead of looking for one, which is read from ``file``."""

    options: RewriteOptions
    dims: Mapping[str, int]
    force: bool
    progress: Progress | None = None
    again: PlanFile | None = None
    file: Path | None = None


def _answered(model: Model, output: Path | str | None, asked: _Asked, *, dry_run: bool) -> Rewrite:
    in_memory = output is None and isinstance(model, onnx.ModelProto)
    with as_sizes(model) if dry_run else as_file(model) as file:
        target = as_output(output) or default_output(file)
        result = _rewrite(file, asked, None if dry_run or in_memory else target)
    return replace(result, path=shown_path(model))


@collector_paused()
def _rewrite(path: Path, asked: _Asked, target: Path | None) -> Rewrite:
    """The same for a file; ``target``: where to write, None: nowhere."""
    begun, options, dims, again = now(), asked.options, asked.dims, asked.again
    check_offload(options)
    chunks = parse_chunks(options.chunk)
    session = session_kind(options.session, options.provider)
    strategy = strategy_for(options)
    read = options.costs if again is None else asked.file
    if target is not None:
        check_target(target, asked.force, path, read)
    with ExitStack() as stack:
        proto = read_model(path)
        if again is not None:
            known = symbolic_dims(proto)
            dims = {name: size for name, size in again.dims.items() if name in known}
            state = as_recorded(get_metadata(proto), options.state)
            options = replace(options, state=tuple(state))
        placement = NO_WEIGHTS
        if target is not None:
            placement = plan_weights(proto, path, target, options.weights, asked.force, read)
        compiling = _warm_up() if again is None else 0.0
        deadline = Deadline(math.inf if options.effort else options.time_limit)
        source = replace(_read(path, proto, dims, options, session, stack), placement=placement)
        goal = Goal(
            options=options,
            session=session,
            strategy=strategy,
            budget_bytes=budget_bytes(options, source.original),
            costs=node_costs(source.model, options),
            loops=loops_policy(options.scan_recompute, strategy, session),
            deadline=deadline,
            opening_seconds=deadline.spent / max(1, len(source.model.graph.nodes)),
            forms=forms_for(options, strategy),
            chunk=chunks,
            progress=asked.progress,
            selectors=selectors_for(
                source.analyzed or source.model, options.keep, options.recompute
            ),
        )
        recorded: Recorded | None = None
        try:
            if again is None:
                proved = _held_with_copies(source, goal)
            else:
                proved, recorded = replayed(source, goal, again)
        except InfeasibleError as error:
            raise _told(error, source, options) from None
    loaded = _confirm_loaded(proved)
    if target is not None:
        beside = source.model.prepared.beside
        placement = write_with_weights(proved.model, beside, target, placement, force=asked.force)
        source = replace(source, placement=placement)
    clock = ClockSeconds(sum(goal.searched), compiling, now() - begun)
    if again is None:
        record = recorded_plan(source, proved)
    else:
        # As it is: seconds and bound are of the costs that it was made with.
        record = replace(again, budget_bytes=proved.goal.budget_bytes)
    return _answer(path, target, source, proved, loaded, recorded, record, clock)


def _warm_up() -> float:
    """Load the planner's machine code; the seconds of compiling it, 0 where it was there."""
    # numba is slow to import: only when there is something to plan.
    from memplan.solver.jit import is_cold
    from memplan.solver.search.warm_up import warm_up

    cold, begun = is_cold(), now()
    warm_up()
    return now() - begun if cold else 0.0


def _told(error: InfeasibleError, source: Source, options: RewriteOptions) -> InfeasibleError:
    """The error with what would lower the floor; of a graph of which nothing can be recomputed, how
    to make another."""
    model = source.model
    if not no_backward_notes(model):
        if isinstance(error, NoPlanError):
            contract, tuned = source.original.contract, error.session.name == "tuned"
            found = floor_report(
                error.floor,
                error.graph,
                simulate(error.graph, error.session),
                contract.new_values if contract is not None and tuned else {},
                chunked=options.chunk != NO_CHUNKS,
            )
            error.explain(found.parts)
        return error
    return InfeasibleError(
        f"{NO_BACKWARD}: {error.message}", f"make a training graph of it: {grad_command(model)}"
    )


def _read(
    path: Path,
    proto: onnx.ModelProto,
    dims: Mapping[str, int],
    options: RewriteOptions,
    session: SessionKind,
    stack: ExitStack,
) -> Source:
    """The file, and what it takes.

    With an older opset than plain sessions need it is raised; the model then lies in a temporary
    folder, which ``stack`` removes: the runtime reads it from there.
    """
    require_device(proto, options.provider)
    prepared = prepare(proto, path, dims)
    notes: tuple[str, ...] = ()
    if session.name == "default" and default_opset(prepared.proto) < OLDEST_OPSET:
        raised = raise_opset(prepared.proto, OLDEST_OPSET, "plans for plain sessions")
        folder = stack.enter_context(scratch_folder())
        copy = folder / path.name
        weights = settle_links(raised, path)
        write_model(raised, copy, force=True)
        check_structure(raised, copy)
        prepared = prepare(raised, copy, dims, weights)
        notes = (f"opset raised to {OLDEST_OPSET}: plain sessions need it",)
    _require_opens(prepared, options.provider)
    model = open_step(prepared, session, loss=options.loss, state=options.state)
    require_runs(model.graph, options.provider, here=False)
    if session.name == "default" and narrow_types(model.graph, session):
        raise UsageError(
            "plans for plain sessions are not made in float16 or bfloat16 on the CPU: ONNX Runtime "
            "puts Casts around nodes that undo them",
            "use --session tuned and load the result with memplan.load(path)",
        )
    # What it needs in a session of the kind that is planned for.
    if changes_at_load(model.graph, session):
        original = analyze_session(model, session, options.loss)
    else:
        original = analyze_open(model, session)
    moved = in_state_order(model)
    return Source(model if moved is model else confirmed(moved), original, notes, analyzed=model)


def _require_opens(prepared: PreparedModel, provider: str) -> None:
    """Refuse a model that no session on the provider opens: nobody could run the result.

    Raises:
        RuntimeUnavailableError: a node has no kernel in the type that it works in.
    """
    every = unsupported_kernels(prepared.bound, provider, prepared.types)
    if failing := [each for each in every if each.when == "open"]:
        elsewhere = "--provider cuda plans for a GPU; " if provider == "cpu" else ""
        raise RuntimeUnavailableError(
            unsupported_notes(failing, provider)[0],
            f"{elsewhere}for {'the CPU' if provider == 'cpu' else 'this one'}, use float16 or "
            "float32",
        )


def _confirm_loaded(proved: Proved) -> tuple[str, ...]:
    """Ask the runtime whether a tuned session leaves the planned nodes as they are.

    It removes pairs of Casts and inserts others in any session. What to know where it was not asked
    or does.

    Raises:
        InfeasibleError: the budget does not hold then.
    """
    goal, session = proved.goal, proved.goal.session
    if PROVIDERS[session.provider].plugin:
        return _confirm_placed(proved)
    if session.name != "tuned" or not changes_at_load(proved.timeline.graph, session):
        return ()
    held = written_as_loaded(proved.model, session, proved.planned.model.prepared.beside)
    if held is None:
        return (NOT_ASKED,)
    if held.unchanged:
        return ()
    peak = held.peak_bytes()
    changed = held.change(peak)
    if peak > goal.budget_bytes and not goal.strategy.ignores_budget:
        raise InfeasibleError(
            f"{changed}, over the budget", "try another budget, or --optimize none"
        )
    return (changed,)


def _held_with_copies(source: Source, goal: Goal) -> Proved:
    """A proved plan; while a session's copies take it over the budget, one for less by as much."""
    proved = proved_plan(source, goal)
    for _ in range(3):  # other copies may matter in another plan
        over = proved.copied_peak_bytes - goal.budget_bytes
        if over <= 0 or goal.lowest or goal.strategy.ignores_budget:
            break
        goal = replace(goal, copied_bytes=goal.copied_bytes + over)
        try:
            proved = proved_plan(source, goal)
        except InfeasibleError:
            break
    return proved


def _confirm_placed(proved: Proved) -> tuple[str, ...]:
    """Hold the budget against the file with its copies; what to know of them.

    Raises:
        InfeasibleError: it does not hold.
    """
    goal, peak = proved.goal, proved.copied_peak_bytes
    if peak <= proved.timeline.peak_with_workspace_bytes:
        return ()
    told = f"with copies to and from nodes on the CPU the peak is {peak:,} B"
    if goal.options.budget.is_lowest or goal.strategy.ignores_budget or peak <= goal.budget_bytes:
        return (told,)
    raise InfeasibleError(
        f"{told} ({format_bytes(peak)}), over the budget",
        f"'memplan analyze --provider {goal.session.provider}' names them; try another budget, or "
        "an optimizer that counts no steps",
    )


def _answer(
    path: Path,
    output: Path | None,
    source: Source,
    proved: Proved,
    loaded: tuple[str, ...],
    replay: Recorded | None,
    record: PlanFile,
    clock: ClockSeconds,
) -> Rewrite:
    goal, planned, timeline = proved.goal, proved.planned, proved.timeline
    variant = planned.candidate.variant
    offload = offload_report(planned.plan.offloaded, timeline, goal.costs.device)
    return Rewrite(
        path=path,
        output=output,
        options=goal.options,
        budget_bytes=goal.budget_bytes,
        original=source.original,
        optimized=variant.analysis,
        optimize_level=variant.level,
        plan=planned.plan,
        timeline=timeline,
        model=proved.model,
        equivalence=proved.equivalence,
        assumptions=(
            *(source.original if planned.plain else variant.analysis).assumptions,
            *rewrite_notes(source, proved, offload, loaded),
        ),
        costs=goal.costs,
        plain=planned.plain,
        offload=offload,
        passes=planned.steps,
        weights=source.placement.how,
        chunk_cost=planned.chunk_cost,
        chunk_bound=planned.least_cost if chunk_step(planned.steps) is not None else None,
        record=record,
        clock=clock,
        replay=replay,
    )
