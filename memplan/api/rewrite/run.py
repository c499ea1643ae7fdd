"""``rewrite``: a file and a budget → a file that fits."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx

from memplan.api.analyze import Analysis, analyze_as_loaded, analyze_open
from memplan.api.profile import ProfileOptions, profile_open
from memplan.api.rewrite import loops as loops
from memplan.api.rewrite.result import Rewrite, RewriteOptions, default_output
from memplan.api.rewrite.variants import best_plan, first_plan, variants
from memplan.errors import UsageError
from memplan.ir.matching import matching_tensors
from memplan.ir.phases import differentiated
from memplan.loops.choose import FIT, NONE
from memplan.ops.cost import DEVICES, Device, device_for
from memplan.passes import manager as free
from memplan.passes.base import Pass
from memplan.plain.fences import OLDEST_OPSET
from memplan.plain.finish import PlainModel
from memplan.plain.plan import plan_plain
from memplan.planning.apply import apply_plan
from memplan.planning.costs import NodeCosts, check_costs, measured_costs, read_costs
from memplan.planning.plan import Plan
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.planning.verify import ensure
from memplan.proto.external import external_tensors, repoint_external_data
from memplan.proto.opset import default_opset, raise_opset
from memplan.proto.read import read_model
from memplan.proto.write import check_output, write_model
from memplan.shapes.fold import small_constants
from memplan.simulate.opened import OpenModel, open_model
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.timeline import Timeline
from memplan.solver.strategy import Progress, Strategy
from memplan.strategies.builtin import Search, parse_strategy
from memplan.strategies.checkpoints import Collection
from memplan.units import parse_size

__all__ = ["Rewrite", "RewriteOptions", "default_output", "plan_request", "rewrite"]

Planned = tuple[Analysis, tuple[free.PassStep, ...], NodeCosts, Plan, PlainModel | None]
# The pass that orders nodes may take this share of the time for planning, and at most so long.
_ORDER_SHARE, _ORDER_SECONDS = 0.2, 2.0


@dataclass(frozen=True, slots=True)
class _Planning:
    """What every way to plan has in common.

    ``given``: costs that need not be measured; ``wish``: what is asked of loops
    (:func:`memplan.api.rewrite.loops.loops_wish`).
    """

    options: RewriteOptions
    session: SessionKind
    strategy: Strategy
    passes: tuple[Pass, ...]
    budget_bytes: int
    given: NodeCosts | None
    wish: str
    progress: Progress | None

    def best(self, analysis: Analysis, model: OpenModel) -> Planned:
        """The cheapest plan, of those with the loops as they are and with changed ones."""
        options = self.options
        costs = self.given or NodeCosts("estimate", _device(options), options.provider)
        changes = loops.loop_steps(
            model, self.session, self.wish, costs, self.budget_bytes, options.loss
        )
        choices = [(change,) for change in changes]
        asked = choices if self.wish not in (FIT, NONE) else [(), *choices]
        base = loops.step_seconds(costs, model.graph)
        share = options.time_limit / len(asked)
        plan_way = partial(self._with_loops, analysis, model, share)
        return loops.best_with_loops(asked, plan_way, lambda planned: _by_cost(planned)[0], base)

    def _with_loops(
        self,
        analysis: Analysis,
        model: OpenModel,
        share: float,
        changed: tuple[loops.LoopStep, ...],
    ) -> Planned:
        """The best plan within ``share`` seconds for one choice of loops, free passes first."""
        ready = changed[-1].model if changed else model
        timeline = changed[-1].timeline if changed else analysis.timeline
        steps = (*changed, *free.PassManager(self.passes).run(ready, timeline))
        ways = [steps]
        if not isinstance(self.strategy, Search) and free.without_order(steps) is not steps:
            # A published strategy may get on better in the order that it was made for.
            ways.append(free.without_order(steps))
        figures = _by_peak if getattr(self.strategy, "ignores_budget", False) else _by_cost
        plan_way = partial(self._behind, analysis, model, share, changed)
        return best_plan([partial(plan_way, way) for way in ways], figures)

    def _behind(
        self,
        analysis: Analysis,
        model: OpenModel,
        share: float,
        changed: tuple[loops.LoopStep, ...],
        steps: tuple[free.PassStep, ...],
    ) -> Planned:
        """A plan for the model that ``steps`` lead to."""
        ready = steps[-1].model if steps else model
        costs = self.given or _profiled_costs(ready, self.budget_bytes, self.session, self.options)
        request = plan_request(ready, self.session, self.options, self.budget_bytes, costs)
        plain: PlainModel | None = None
        if self.session.name == "default":
            plan, plain = plan_plain(ready, request, self.strategy, share, self.progress)
        else:
            plan = make_plan(prepare(request), self.strategy, share, self.progress)
        return analysis, steps, costs, loops.with_loops(plan, changed, costs, ready.graph), plain


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
    source, folder = _source(path, dims, options)
    original = _analysis(source, session, options.loss)
    budget_bytes = _budget(options, original)
    given = _given_costs(source, options)
    wish = loops.loops_wish(options.scan_recompute, strategy, session)
    planning = _Planning(options, session, strategy, passes, budget_bytes, given, wish, progress)

    def plan_one(model: OpenModel) -> Planned:
        alike = model is source and session.name == "tuned"
        return planning.best(original if alike else analyze_open(model, session), model)

    attempts = variants(
        source, options.optimize, options.provider, options.loss, isinstance(strategy, Collection)
    )
    (level, model, notes), (analysis, steps, costs, plan, plain) = first_plan(attempts, plan_one)
    model = steps[-1].model if steps else model
    if plain is not None:
        result, timeline = plain.model, plain.timeline
        notes = (*notes, *plain.notes)
    else:
        result = apply_plan(model.prepared.proto, plan, model.prepared.dims)
        timeline = ensure(model.prepared.proto, result, plan, model.prepared.types, session)
    _record(result, level, options, budget_bytes, timeline, steps)
    if folder is not None:
        notes = (*notes, f"opset raised to {OLDEST_OPSET}: plain sessions need it")
        folder.cleanup()
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


def _source(
    path: Path, dims: Mapping[str, int] | None, options: RewriteOptions
) -> tuple[OpenModel, tempfile.TemporaryDirectory[str] | None]:
    """The model, with a newer opset if the session asks for that.

    It then lies in a temporary folder, which must outlive it: the runtime reads it from there.
    """
    model = open_model(path, dims, options.loss)
    if options.session != "default" or default_opset(model.prepared.proto) >= OLDEST_OPSET:
        return model, None
    raised = raise_opset(model.prepared.proto, OLDEST_OPSET, "plans for plain sessions")
    folder = tempfile.TemporaryDirectory(prefix="memplan-")
    copy = Path(folder.name) / path.name
    write_model(raised, copy, force=True)
    return open_model(copy, dims, options.loss), folder


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
    from memplan.proto.metadata import get_metadata, set_metadata

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
