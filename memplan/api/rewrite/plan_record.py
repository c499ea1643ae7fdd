"""What a rewrite decided, as a plan file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from memplan import __version__
from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.rewrite.cheapest import Planned
from memplan.api.rewrite.finish import Proved
from memplan.api.rewrite.goal import Goal, Source
from memplan.api.rewrite.loop_storage import LoopStep
from memplan.ir.graph import Graph
from memplan.passes.manager import PassStep
from memplan.passes.order import Order
from memplan.planning.certificate import no_bound
from memplan.planning.costs import NodeCosts
from memplan.planning.plan_file import (
    LoopDecision,
    PassDecision,
    PlainDecision,
    PlanFile,
    PlannedModel,
    Settings,
    TensorDecision,
)
from memplan.planning.plan_rows import WORDS, origins_of, sequence_steps, tensor_rows
from memplan.proto.metadata import IN_PLACE
from memplan.runtime.installed import installed_runtime

_PIECE = re.compile(r"(.+)/chunk\d+")


def versions() -> tuple[str | None, str]:
    """The ONNX Runtime (None: there is none) and the memplan that make plans here."""
    return installed_runtime() or None, __version__


def recorded_plan(source: Source, proved: Proved) -> PlanFile:
    """The plan of a model that was rewritten and proved."""
    goal, planned, plan = proved.goal, proved.planned, proved.planned.plan
    options, plain = goal.options, planned.plain
    known = not no_bound(plan.bound_kind)
    runtime, memplan = versions()
    return PlanFile(
        memplan=memplan,
        accounting=ACCOUNTING_VERSION,
        model=PlannedModel(
            fingerprint=source.original.fingerprint,
            nodes=len(source.model.graph.nodes),
            tensors=len(source.model.graph.tensors),
            runtime=runtime,
            planned=planned.model.prepared.fingerprint,
        ),
        session=options.session,
        provider=options.provider,
        dims=source.model.prepared.dims,
        optimize=planned.candidate.variant.level,
        settings=_settings(source, goal, planned),
        budget_bytes=goal.budget_bytes,
        baseline_peak_bytes=source.original.timeline.peak_bytes,
        predicted_peak_bytes=proved.timeline.peak_bytes,
        predicted_peak_with_workspace_bytes=proved.timeline.peak_with_workspace_bytes,
        extra_cost_fraction=max(0.0, plan.extra_cost_fraction),
        bound_fraction=plan.bound_fraction if known else 0.0,
        bound_kind=plan.bound_kind if known else "trivial",
        strategy=plan.strategy,
        tensors=tensor_decisions(source, planned, goal.costs),
        chunks=tuple(chunk for step in planned.steps for chunk in step.chunks),
        chunk_cost_fraction=planned.chunk_cost,
        loops=_loops(planned),
        passes=tuple(
            PassDecision(step.name, step.changed)
            for step in planned.steps
            if not isinstance(step, LoopStep)
        ),
        plain=None if plain is None else PlainDecision(plain.fenced, plain.pinned),
        order=_order(planned),
        sequence=sequence_steps(plan),
    )


def _settings(source: Source, goal: Goal, planned: Planned) -> Settings:
    options = goal.options
    in_place = (IN_PLACE,) if source.model.graph.state is not None else ()
    return Settings(
        loss=options.loss,
        state=options.state or in_place,
        wrt=options.wrt,
        device=options.device,
        forms=tuple(sorted(WORDS.get(kind, kind) for kind in goal.forms)),
        tags=planned.plan.tags,
    )


def _loops(planned: Planned) -> tuple[LoopDecision, ...]:
    steps = (step for step in planned.steps if isinstance(step, LoopStep))
    pairs = (pair for step in steps for pair in step.pairs)
    return tuple(LoopDecision(pair.forward, pair.backward, pair.recomputed) for pair in pairs)


def _order(planned: Planned) -> tuple[str, ...]:
    """The nodes behind the pass that ordered them, if it changed anything."""
    for step in planned.steps:
        if step.changed and step.name == Order.name:
            return tuple(node.name for node in step.model.graph.nodes)
    return ()


def tensor_decisions(
    source: Source, planned: Planned, costs: NodeCosts
) -> tuple[TensorDecision, ...]:
    """What becomes of the tensors, a row each."""
    plan, model = planned.plan, planned.model
    graph = plan.extended.graph
    estimated = costs.estimate(graph)
    seconds = [costs.seconds.get(node.name, estimated[node.id]) for node in graph.nodes]
    pieces: Mapping[str, int] = {}
    before = planned.candidate.model
    for step in planned.steps:
        if step.chunks:
            pieces = _pieces(_new(before.graph, step))
        before = step.model
    origins = origins_of(source.model)
    return tensor_rows(plan, model.phases, model.modules, seconds, pieces, origins)


def _new(before: Graph, step: PassStep) -> frozenset[str]:
    """Names of the nodes that a pass put in."""
    known = {node.name for node in before.nodes}
    return frozenset(node.name for node in step.model.graph.nodes if node.name not in known)


def _pieces(names: frozenset[str]) -> dict[str, int]:
    """Of the parts of nodes in chunks: how many parts the node has, by name of the part."""
    wholes = {name: found[1] for name in names if (found := _PIECE.fullmatch(name))}
    counts = Counter(wholes.values())
    return {name: counts[whole] for name, whole in wholes.items()}
