"""``rewrite``: a file and a budget → a file that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import onnx

from memplan import recurrent_plans as loops
from memplan.analysis import Analysis, OpenModel, analyze_open, open_model
from memplan.costs import NodeCosts, check_costs, measured_costs, read_costs
from memplan.errors import UsageError
from memplan.graph.matching import matching_tensors
from memplan.graph.phases import differentiated
from memplan.graph.types import Graph
from memplan.loaded import analyze_as_loaded
from memplan.model.external import external_tensors, repoint_external_data
from memplan.model.fold import small_constants
from memplan.model.read import read_model
from memplan.model.write import check_output, write_model
from memplan.ops.cost import DEVICES, Device, device_for
from memplan.passes import run as free
from memplan.passes.waterfall import WaterfallStep, waterfall
from memplan.plain_sessions import load_notes, plain_notes, plan_plain
from memplan.planning.outcome import Progress
from memplan.planning.peers.checkpoints import Collection
from memplan.planning.plan import Plan
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.planning.strategies import Search, parse_strategy
from memplan.profiling import ProfileOptions, profile_open
from memplan.recurrent.wishes import AUTO, NONE
from memplan.rewriter.apply import apply_plan
from memplan.rewriter.plain import PlainModel
from memplan.rewriter.postconditions import ensure
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.timeline import Timeline
from memplan.units import SizeSpec, parse_size
from memplan.variants import best_plan, first_plan, variants

SCHEMA = "memplan.rewrite/1"

Planned = tuple[Analysis, tuple[free.PassStep, ...], NodeCosts, Plan, PlainModel | None]
# The pass that orders nodes may take this share of the time for planning, and at most so long.
_ORDER_SHARE, _ORDER_SECONDS = 0.2, 2.0


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """How to rewrite. Sizes as in :mod:`memplan.units`; a percentage is of the peak before.

    ``costs`` is a file of measured seconds; ``profile`` measures those of the graph that is
    planned, fusions included, which runs it with its whole peak. ``passes`` and ``wrt`` as in
    :mod:`memplan.passes.run`, ``scan_recompute`` in :func:`memplan.recurrent_plans.loop_steps`.
    """

    budget: SizeSpec
    reserve: SizeSpec = field(default_factory=lambda: SizeSpec("0", 0, None))
    strategy: str = "auto"
    session: str = "tuned"
    provider: str = "cpu"
    optimize: str = "extended"
    time_limit: float = 10.0
    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    costs: Path | None = None
    profile: bool = False
    device: str | None = None
    loss: str | None = None
    passes: str = free.ALL
    wrt: tuple[str, ...] = ()
    scan_recompute: str = AUTO


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The answer of ``rewrite``.

    ``original`` is the file as it was, ``optimized`` as the runtime's optimizer left it (the same
    object when nothing was), both in a session of the kind that is planned for; ``passes`` lead
    to what was planned; ``timeline`` is the rewritten model's. ``output`` is None after a dry run.
    ``plain`` tells what was added for plain sessions, None for tuned ones.
    """

    path: Path
    output: Path | None
    options: RewriteOptions
    budget_bytes: int
    original: Analysis
    optimized: Analysis
    optimize_level: str
    plan: Plan
    timeline: Timeline
    model: onnx.ModelProto
    assumptions: tuple[str, ...]
    costs: NodeCosts
    plain: PlainModel | None = None
    passes: tuple[free.PassStep, ...] = ()

    @property
    def planned(self) -> Graph:
        """The graph that was planned."""
        return self.passes[-1].model.graph if self.passes else self.optimized.graph

    @property
    def measured_nodes(self) -> int:
        """How many nodes of the planned graph have measured seconds."""
        return self.costs.measured_nodes(self.planned)

    @property
    def pairs(self) -> tuple[loops.PairChange, ...]:
        """The loops that were changed: what they stored before, and what after."""
        return tuple(p for s in self.passes if isinstance(s, loops.LoopStep) for p in s.pairs)

    @property
    def waterfall(self) -> tuple[WaterfallStep, ...]:
        """The way from the original to the result, one step after the other."""
        again = f"{self.plan.clones} nodes run again" if self.plan.clones else "nothing runs again"
        fused = self.optimized.timeline if self.optimize_level != "none" else None
        first, last = self.original.timeline, (self.timeline, again)
        return waterfall(first, fused, self.optimize_level, self.passes, last)

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        plan = self.plan
        return {
            "schema": SCHEMA,
            "strategy": plan.strategy,
            "session": self.options.session,
            "provider": self.options.provider,
            "optimize": self.optimize_level,
            "budget_bytes": self.budget_bytes,
            "baseline_peak_bytes": self.original.timeline.peak_bytes,
            "baseline_peak_with_workspace_bytes": (
                self.original.timeline.peak_with_workspace_bytes
            ),
            "optimized_peak_bytes": self.optimized.timeline.peak_bytes,
            "predicted_peak_bytes": self.timeline.peak_bytes,
            "predicted_peak_with_workspace_bytes": self.timeline.peak_with_workspace_bytes,
            "floor_bytes": plan.resident_bytes + plan.floor.nbytes,
            "extra_cost_fraction": plan.extra_cost_fraction,
            "bound_fraction": plan.bound_fraction,
            "bound_kind": plan.bound_kind,
            "passes": [step.as_json() for step in self.waterfall],
            **free.removed(self.passes),
            "recurrent": [pair.as_json() for pair in self.pairs],
            "recomputed_nodes": plan.clones,
            "recomputed": dict(plan.recomputed),
            "refusals": dict(plan.refusals),
            "costs": {
                "source": self.costs.source,
                "measured_nodes": self.measured_nodes,
                "estimated_nodes": len(self.planned.nodes) - self.measured_nodes,
            },
            "planning_seconds": plan.planning_seconds,
            "plain": _plain_json(self),
            "output": str(self.output) if self.output is not None else None,
            "assumptions": list(self.assumptions),
        }


def _plain_json(result: Rewrite) -> dict[str, object] | None:
    if result.plain is None:
        return None
    later = result.plain.later
    return {
        "fences": result.plain.fences,
        "veils": result.plain.veils,
        "pins": result.plain.pins,
        "added_nodes": result.plain.added_nodes,
        "later_runs_peak_bytes": later.peak_bytes,
        "later_runs_peak_with_workspace_bytes": later.peak_with_workspace_bytes,
        "later_runs_within_budget": later.peak_with_workspace_bytes <= result.budget_bytes,
    }


def default_output(path: Path) -> Path:
    """``MODEL.memplan.onnx`` beside the model."""
    return path.with_name(f"{path.stem}.memplan.onnx")


def rewrite(
    path: Path,
    budget: str | RewriteOptions,
    output: Path | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Rewrite:
    """Rewrite the training graph in ``path`` so that its predicted peak keeps ``budget``.

    Args:
        path: an ONNX training graph.
        budget: a size such as ``4GB`` or ``60%``, or full options.
        output: where to write; default ``MODEL.memplan.onnx``.
        dims: values for symbolic dimensions.
        force: overwrite ``output``.
        dry_run: plan and verify, write nothing.
        progress: called with the present peak in bytes while the planner works.

    Raises:
        InfeasibleError: no plan keeps the budget.
        ModelError, UsageError: bad model, option, costs or output path.
        RuntimeUnavailableError: ``profile`` was asked for, and a run failed.
    """
    options = RewriteOptions(parse_size(budget)) if isinstance(budget, str) else budget
    _check_costs_options(options)
    session = session_kind(options.session, options.provider)
    strategy = parse_strategy(options.strategy)
    seconds = min(_ORDER_SECONDS, _ORDER_SHARE * options.time_limit)
    passes = free.passes_for(session, options.passes, options.wrt, seconds)
    target = output if output is not None else default_output(path)
    if not dry_run:
        _check_target(path, target, force)
    source = open_model(path, dims, options.loss)
    original = _analysis(source, session, options.loss)
    budget_bytes = _budget(options, original)
    given = _given_costs(source, options)
    wish = loops.loops_wish(options.scan_recompute, strategy, session)

    def plan_one(model: OpenModel) -> Planned:
        alike = model is source and session.name == "tuned"
        analysis = original if alike else analyze_open(model, session)
        costs = given or NodeCosts("estimate", _device(options), options.provider)
        changes = loops.loop_steps(model, session, wish, costs, budget_bytes, options.loss)
        choices = [(change,) for change in changes]
        asked = choices if wish not in (AUTO, NONE) else [(), *choices]
        base = loops.step_seconds(costs, model.graph)
        share = options.time_limit / len(asked)
        plan_way = partial(plan_with, analysis, model, share)
        return loops.best_with_loops(asked, plan_way, lambda planned: _by_cost(planned)[0], base)

    def plan_with(
        analysis: Analysis, model: OpenModel, share: float, changed: tuple[loops.LoopStep, ...]
    ) -> Planned:
        ready = changed[-1].model if changed else model
        timeline = changed[-1].timeline if changed else analysis.timeline
        found = free.run_passes(ready, timeline, passes)
        steps = (*changed, *found)
        ways = [steps]
        if not isinstance(strategy, Search) and free.without_order(steps) is not steps:
            # A published strategy may get on better in the order that it was made for.
            ways.append(free.without_order(steps))
        figures = _by_peak if getattr(strategy, "ignores_budget", False) else _by_cost
        plan_way = partial(plan_behind, analysis, model, share, changed)
        return best_plan([partial(plan_way, way) for way in ways], figures)

    def plan_behind(
        analysis: Analysis,
        model: OpenModel,
        share: float,
        changed: tuple[loops.LoopStep, ...],
        steps: tuple[free.PassStep, ...],
    ) -> Planned:
        ready = steps[-1].model if steps else model
        costs = given or _profiled_costs(ready, budget_bytes, session, options)
        request = plan_request(ready, session, options, budget_bytes, costs)
        if session.name == "default":
            plan, plain = plan_plain(ready, request, strategy, share, progress)
            return (
                analysis,
                steps,
                costs,
                loops.with_loops(plan, changed, costs, ready.graph),
                plain,
            )
        plan = make_plan(prepare(request), strategy, share, progress)
        return analysis, steps, costs, loops.with_loops(plan, changed, costs, ready.graph), None

    attempts = variants(
        source, options.optimize, options.provider, options.loss, isinstance(strategy, Collection)
    )
    (level, model, notes), (analysis, steps, costs, plan, plain) = first_plan(attempts, plan_one)
    model = steps[-1].model if steps else model
    if plain is not None:
        result, timeline = plain.model, plain.timeline
        notes = (
            *notes,
            *plain_notes(plain, budget_bytes),
            *load_notes(result, budget_bytes, session),
        )
    else:
        result = apply_plan(model.prepared.proto, plan, model.prepared.dims)
        timeline = ensure(model.prepared.proto, result, plan, model.prepared.types, session)
    _record(result, level, options, budget_bytes, timeline, steps)
    if not dry_run:
        repoint_external_data(result, path, target)
        write_model(result, target, force=force)
    return Rewrite(
        path=path,
        output=None if dry_run else target,
        options=options,
        budget_bytes=budget_bytes,
        original=original,
        optimized=analysis,
        optimize_level=level,
        plan=plan,
        timeline=timeline,
        model=result,
        assumptions=(
            *(original if plain else analysis).assumptions,
            *notes,
            *_cost_notes(costs, model, options),
        ),
        costs=costs,
        plain=plain,
        passes=steps,
    )


def _analysis(model: OpenModel, session: SessionKind, loss: str | None) -> Analysis:
    """What the model needs in a session of the kind that is planned for."""
    if session.name == "default":
        return analyze_as_loaded(model, session, loss)
    return analyze_open(model, session)


def _by_cost(planned: Planned) -> tuple[float, float]:
    plan = planned[3]
    return plan.extra_cost_fraction, plan.predicted_peak_with_workspace_bytes


def _by_peak(planned: Planned) -> tuple[float, float]:
    return _by_cost(planned)[::-1]


def _check_target(path: Path, target: Path, force: bool) -> None:
    """Refuse early what could not be written, or would overwrite the input."""
    check_output(target, force)
    if target.exists() and target.samefile(path):
        raise UsageError(f"{target} is the input model", "choose another output; inputs stay")
    model = read_model(path)
    if any(True for _ in external_tensors(model)):
        repoint_external_data(model, path, target)


def _budget(options: RewriteOptions, original: Analysis) -> int:
    whole = original.timeline.peak_with_workspace_bytes
    budget = options.budget.resolve(whole) - options.reserve.resolve(whole)
    if budget <= 0:
        raise UsageError(
            f"a budget of {options.budget.text} less a reserve of {options.reserve.text} "
            "leaves nothing"
        )
    return budget


def plan_request(
    model: OpenModel, session: SessionKind, options: RewriteOptions, budget: int, costs: NodeCosts
) -> PlanRequest:
    """What the planner is asked for a model.

    Raises:
        UsageError: a pattern of ``keep`` or ``recompute`` matches nothing.
    """
    return PlanRequest(
        graph=model.graph,
        session=session,
        budget_bytes=budget,
        estimate=costs.estimate,
        values=small_constants(model.prepared.bound.graph),
        costs=costs.seconds,
        keep=matching_tensors(model.graph, options.keep, "--keep"),
        force=matching_tensors(model.graph, options.recompute, "--recompute"),
        forward=model.phases.forward,
        differentiated=differentiated(model.graph, model.phases),
    )


def _check_costs_options(options: RewriteOptions) -> None:
    if options.profile and options.costs is not None:
        raise UsageError(
            "seconds per node are either measured (--profile) or given (--costs)", "choose one"
        )


def _given_costs(source: OpenModel, options: RewriteOptions) -> NodeCosts | None:
    """Estimates, or the seconds of a costs file; None if they are to be measured."""
    device = _device(options)
    if options.profile:
        return None
    if options.costs is None:
        return NodeCosts("estimate", device, options.provider)
    costs = read_costs(options.costs)
    check_costs(costs, source.prepared, options.provider)
    name = str(options.costs)
    if costs.fingerprint is None:  # written by hand: taken for what it says, and nothing more
        return NodeCosts(name, device, options.provider, costs.seconds)
    return measured_costs(name, source.graph, device, options.provider, costs.seconds)


def _profiled_costs(
    model: OpenModel, budget: int, session: SessionKind, options: RewriteOptions
) -> NodeCosts:
    """Measure the graph that is planned: the names of fused nodes are in no costs file."""
    device, analysis = _device(options), analyze_open(model, session)
    if budget < analysis.floor_with_workspace_bytes:  # the planner refuses it, whatever the costs
        return NodeCosts("estimate", device, options.provider)
    found = profile_open(model, ProfileOptions(options.provider))
    return measured_costs("profile", model.graph, device, options.provider, found.seconds)


def _cost_notes(costs: NodeCosts, model: OpenModel, options: RewriteOptions) -> list[str]:
    """How many nodes were measured, where any could have been."""
    if costs.source == "estimate":
        return []
    whole, measured = len(model.graph.nodes), costs.measured_nodes(model.graph)
    origin = f"in {costs.source}"
    if options.profile:
        origin = f"on {options.provider}, {1000 * sum(costs.seconds.values()):,.1f} ms a step"
    if measured == whole:
        return [f"seconds of all {whole} nodes measured ({origin})"]
    scale = ", on the scale of the measured ones" if costs.scale else ""
    return [
        f"seconds of {measured} of {whole} nodes measured ({origin}), of {whole - measured} "
        f"estimated{scale}"
    ]


def _device(options: RewriteOptions) -> Device:
    if options.device is None:
        return device_for(options.provider)
    if options.device not in DEVICES:
        raise UsageError(
            f"there is no device profile '{options.device}'", "profiles: " + ", ".join(DEVICES)
        )
    return DEVICES[options.device]


def _record(
    model: onnx.ModelProto,
    level: str,
    options: RewriteOptions,
    budget: int,
    timeline: Timeline,
    steps: tuple[free.PassStep, ...],
) -> None:
    """Note in the file how it was made, so that ``validate`` can treat the original alike."""
    from memplan.model.metadata import get_metadata, set_metadata

    values = get_metadata(model)
    values.update(
        {
            "optimize": level,
            "provider": options.provider,
            "session": options.session,
            "budget_bytes": budget,
            "predicted_peak_bytes": timeline.peak_bytes,
            "predicted_peak_with_workspace_bytes": timeline.peak_with_workspace_bytes,
            **free.recorded(steps),
        }
    )
    set_metadata(model, values)
