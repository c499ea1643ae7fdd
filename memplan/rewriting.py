"""``rewrite``: a file and a budget → a file that fits."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import onnx

from memplan.analysis import Analysis, OpenModel, analyze_open, open_model, opened
from memplan.errors import InfeasibleError, MemplanError, RuntimeUnavailableError, UsageError
from memplan.graph.marks import carry_marks
from memplan.graph.phases import differentiated
from memplan.graph.types import Graph
from memplan.model.external import external_tensors, repoint_external_data
from memplan.model.fold import small_constants
from memplan.model.prepare import prepare as prepare_model
from memplan.model.read import read_model
from memplan.model.sorting import restore_order
from memplan.model.write import check_output, write_model
from memplan.ops.cost import DEVICES, Device, device_for, node_costs
from memplan.planning.outcome import Progress, Strategy
from memplan.planning.peers.checkpoints import Collection
from memplan.planning.plan import Plan
from memplan.planning.planner import PlanRequest, make_plan, prepare
from memplan.planning.strategies import parse_strategy
from memplan.rewriter.apply import apply_plan
from memplan.rewriter.postconditions import ensure
from memplan.simulate.session import SessionKind, session_kind
from memplan.simulate.timeline import Timeline
from memplan.units import SizeSpec, parse_size

SCHEMA = "memplan.rewrite/1"

Attempt = tuple[str, OpenModel, tuple[str, ...]]
"""What may be planned: the level of optimization, the model and what to know about it."""


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """How to rewrite. Sizes as in :mod:`memplan.units`; a percentage is of the peak before."""

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
    device: str | None = None
    loss: str | None = None


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The answer of ``rewrite``.

    ``original`` is the file as it was, ``optimized`` as the runtime's optimizer left it (the same
    object when nothing was optimized), both simulated in a tuned session; ``timeline`` is the
    rewritten model's. ``output`` is None after a dry run.
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
            "recomputed_nodes": plan.clones,
            "recomputed": dict(plan.recomputed),
            "refusals": dict(plan.refusals),
            "planning_seconds": plan.planning_seconds,
            "output": str(self.output) if self.output is not None else None,
            "assumptions": list(self.assumptions),
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
        ModelError, UsageError: bad model, option or output path.
    """
    options = RewriteOptions(parse_size(budget)) if isinstance(budget, str) else budget
    session = _session(options)
    strategy = parse_strategy(options.strategy)
    target = output if output is not None else default_output(path)
    if not dry_run:
        _check_target(path, target, force)
    source = open_model(path, dims, options.loss)
    original = analyze_open(source, session)
    budget_bytes = _budget(options, original)
    attempts = _variants(source, options, isinstance(strategy, Collection))
    level, model, notes, plan = _first_plan(
        attempts, partial(_plan, session, options, budget_bytes, strategy, progress)
    )
    analysis = original if model is source else analyze_open(model, session)
    result = apply_plan(model.prepared.proto, plan, model.prepared.dims)
    _record(result, level, options)
    timeline = ensure(model.prepared.proto, result, plan, model.prepared.types, session)
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
        assumptions=(*analysis.assumptions, *notes),
    )


def _first_plan(
    attempts: list[Attempt], plan: Callable[[OpenModel], Plan]
) -> tuple[str, OpenModel, tuple[str, ...], Plan]:
    """The first attempt for which there is a plan, and the plan.

    Raises:
        InfeasibleError: there is none; the first reason.
        UsageError: the strategy cannot work on the last attempt, the file's own nodes.
    """
    failure: InfeasibleError | None = None
    for level, model, notes in attempts:
        try:
            return level, model, notes, plan(model)
        except InfeasibleError as error:
            failure = failure or error
        except UsageError:
            # Fusions may have taken away what the strategy goes by: names, or bottlenecks.
            if model is attempts[-1][1]:
                raise
    assert failure is not None
    raise failure


def _plan(
    session: SessionKind, options: RewriteOptions, budget_bytes: int, strategy: Strategy,
    progress: Progress | None, model: OpenModel,
) -> Plan:  # fmt: skip
    request = _request(model, session, options, budget_bytes)
    return make_plan(prepare(request), strategy, options.time_limit, progress)


def _check_target(path: Path, target: Path, force: bool) -> None:
    """Refuse early what could not be written, or would overwrite the input."""
    check_output(target, force)
    if target.exists() and target.samefile(path):
        raise UsageError(f"{target} is the input model", "choose another output; inputs stay")
    model = read_model(path)
    if any(True for _ in external_tensors(model)):
        repoint_external_data(model, path, target)


def _session(options: RewriteOptions) -> SessionKind:
    if options.session != "tuned":
        raise UsageError(
            "plans for plain default sessions are not available yet",
            "use --session tuned and load the result with memplan.load(path)",
        )
    return session_kind(options.session, options.provider)


def _budget(options: RewriteOptions, original: Analysis) -> int:
    whole = original.timeline.peak_with_workspace_bytes
    budget = options.budget.resolve(whole) - options.reserve.resolve(whole)
    if budget <= 0:
        raise UsageError(
            f"a budget of {options.budget.text} less a reserve of {options.reserve.text} "
            "leaves nothing"
        )
    return budget


def _variants(source: OpenModel, options: RewriteOptions, marks: bool) -> list[Attempt]:
    """What to plan, best first: the model as the runtime optimizes it, then as it is.

    ``marks``: the author's marks decide, so no fusion may take away a marked tensor.
    """
    plain: Attempt = ("none", source, ())
    if options.optimize == "none":
        return [plain]
    if any(True for _ in external_tensors(source.prepared.proto)):
        note = "not optimized offline: that would load and inline the external weights"
        return [("none", source, (note,))]
    try:
        model, lost = _optimized(source, options)
    except (RuntimeUnavailableError, MemplanError) as error:
        note = f"not optimized offline: {error.message}"
        return [("none", source, (note,))]
    if marks and lost:
        note = f"planned without fusions: they take away {len(lost)} marked tensors ({lost[0]})"
        return [("none", source, (note,))]
    fallback: Attempt = ("none", source, ("planned without fusions: with them no plan was found",))
    return [(options.optimize, model, ()), fallback]


def _optimized(source: OpenModel, options: RewriteOptions) -> tuple[OpenModel, list[str]]:
    """The model as the runtime optimizes it, and the marked tensors that are then gone."""
    from memplan.runtime.optimize import optimize_offline

    prepared = source.prepared
    with tempfile.TemporaryDirectory(prefix="memplan-") as folder:
        target = Path(folder) / "optimized.onnx"
        optimize_offline(prepared.path, target, options.optimize, options.provider)
        saved = read_model(target)
    _check_interface(prepared.proto, saved)
    ordered = restore_order(saved, prepared.proto)
    lost = carry_marks(prepared.proto.graph, ordered.graph)
    model = prepare_model(ordered, prepared.path, prepared.dims)
    return opened(model, options.loss), lost


def _check_interface(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """The optimizer must leave names and types of inputs and outputs alone."""
    for field_name in ("input", "output"):
        names = [value.name for value in getattr(before.graph, field_name)]
        if names != [value.name for value in getattr(after.graph, field_name)]:
            raise MemplanError(f"the optimizer changed the graph {field_name}s")
        # It may add inferred shapes; the interface stays as the user wrote it.
        del getattr(after.graph, field_name)[:]
        getattr(after.graph, field_name).extend(getattr(before.graph, field_name))


def _request(
    model: OpenModel, session: SessionKind, options: RewriteOptions, budget: int
) -> PlanRequest:
    device = _device(options)
    return PlanRequest(
        graph=model.graph,
        session=session,
        budget_bytes=budget,
        estimate=partial(_estimate, device, options.provider),
        values=small_constants(model.prepared.bound.graph),
        costs=read_costs(options.costs) if options.costs is not None else {},
        keep=matching_tensors(model.graph, options.keep, "--keep"),
        force=matching_tensors(model.graph, options.recompute, "--recompute"),
        forward=model.phases.forward,
        differentiated=differentiated(model.graph, model.phases),
    )


def _estimate(device: Device, provider: str, graph: Graph) -> list[float]:
    return node_costs(graph, device, provider)


def _device(options: RewriteOptions) -> Device:
    if options.device is None:
        return device_for(options.provider)
    if options.device not in DEVICES:
        raise UsageError(
            f"there is no device profile '{options.device}'", "profiles: " + ", ".join(DEVICES)
        )
    return DEVICES[options.device]


def read_costs(path: Path) -> dict[str, float]:
    """Seconds per node name from a costs file (``{"seconds": {name: seconds}}``).

    Raises:
        UsageError: unreadable, or of another shape.
    """
    try:
        data = json.loads(path.read_text())
        costs = {str(name): float(value) for name, value in data["seconds"].items()}
        for name, value in costs.items():
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} takes {value} seconds")
        return costs
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{path} is no costs file: {error}", 'expected {"seconds": {"node name": 1.2e-3}}'
        ) from None


def matching_tensors(graph: Graph, patterns: tuple[str, ...], option: str) -> frozenset[int]:
    """Computed tensors whose name, or whose producer's name, matches one of the globs.

    Raises:
        UsageError: a pattern matches nothing.
    """
    found: set[int] = set()
    for pattern in patterns:
        hits = {
            tensor.id
            for tensor in graph.tensors
            if tensor.producer >= 0
            and (
                fnmatchcase(tensor.name, pattern)
                or fnmatchcase(graph.nodes[tensor.producer].name, pattern)
            )
        }
        if not hits:
            raise UsageError(
                f"{option} {pattern}: no tensor or node of that name",
                "names are listed by 'memplan analyze'; fusions may have renamed them "
                "(--optimize none keeps them)",
            )
        found |= hits
    return frozenset(found)


def _record(model: onnx.ModelProto, level: str, options: RewriteOptions) -> None:
    """Note in the file how it was made, so that ``validate`` can treat the original alike."""
    from memplan.model.metadata import get_metadata, set_metadata

    values = get_metadata(model)
    values.update({"optimize": level, "provider": options.provider, "session": options.session})
    set_metadata(model, values)
