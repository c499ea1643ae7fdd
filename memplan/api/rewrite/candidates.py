"""What ``rewrite`` may plan, as values that say how each was made from the file.

A *variant* is the model as ONNX Runtime optimizes it offline, or as it is. A *candidate* is a
variant with one choice of what its loops store, and of what goes into chunks behind all passes,
which so run once for all choices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import onnx

from memplan.api.analysis import Analysis, analyze_open
from memplan.api.rewrite.goal import Goal, Source
from memplan.api.rewrite.loop_storage import AUTO, NONE, LoopStep, loop_steps, step_seconds
from memplan.api.state_modes import like_state
from memplan.errors import MemplanError, ModelError, ProviderMissingError, RuntimeUnavailableError
from memplan.ops.sharp_edges import (
    Edge,
    SharpEdge,
    disabled_notes,
    edge_notes,
    sharp_edges,
    wrong_optimizers,
)
from memplan.passes.chunk.asked import NAME as CHUNK
from memplan.passes.chunk.choose_chunks import Chunks
from memplan.passes.graph_pass import Pass
from memplan.passes.manager import PassStep, run_passes, without_order
from memplan.planning.plain.as_loaded import as_loaded, changes_at_load
from memplan.planning.plain.plain_plan import in_file_order
from memplan.processes.scratch import scratch_folder
from memplan.proto.metadata import carry_marks
from memplan.proto.read import read_model
from memplan.proto.restore_order import restore_order
from memplan.shapes.prepare import prepare as prepare_model
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import Timeline, simulate
from memplan.solver.strategies.builtin import Search
from memplan.solver.strategies.checkpoints import Collection

_LOADS = 4  # how often a model is optimized that goes on changing
_OPTIMIZING = 0.4  # of the time, for the runtime to optimize a model
HELD_NOTE = (
    "planned and written as ONNX Runtime holds the model on the CPU once it is loaded, with the "
    "Casts that it puts around nodes without a float16 kernel: plan anew for other providers"
)


@dataclass(frozen=True, slots=True)
class Variant:
    """The model at one ``level`` of the runtime's optimization; ``notes``: what to know of it.
    ``analysis``: what it takes in a session of the kind that is planned for."""

    level: str
    model: OpenModel
    analysis: Analysis
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may be planned.

    ``loops`` changes what the variant's loops store (empty: as they are), which makes any plan cost
    at least ``least_cost``, a fraction of the step's seconds. ``chunk`` makes chunks behind the
    passes; None: there are none.
    """

    variant: Variant
    loops: tuple[LoopStep, ...] = ()
    least_cost: float = 0.0
    chunk: Chunks | None = None

    @property
    def kind(self) -> str:
        """What goes into chunks, in a few words."""
        if self.chunk is None:
            return "without"
        count = self.chunk.count
        return f"{self.chunk.kind} in {count} chunks" if count else self.chunk.kind

    @property
    def model(self) -> OpenModel:
        """What is planned, before any pass."""
        return self.loops[-1].model if self.loops else self.variant.model

    @property
    def timeline(self) -> Timeline:
        """The simulation of ``model``."""
        return self.loops[-1].timeline if self.loops else self.variant.analysis.timeline


def variants(source: Source, goal: Goal) -> Iterator[Variant]:
    """What to plan, best first: the model as the runtime optimizes it; as it is, if that comes to
    nothing. Where the provider that it is for does not start on this machine, as it is.

    Raises:
        ModelError: plain sessions, which it is to be planned for, compute it wrongly.
    """
    prepared, tuned = source.model.prepared, goal.session.name == "tuned"
    edges = sharp_edges(prepared.proto, prepared.types)
    note = "planned without fusions: with them no plan was found"
    left_out = edges if tuned else ()  # a plain session fuses by itself, right or wrong
    level = goal.options.optimize
    if level == "none":
        yield _as_held(source, goal)
        return
    try:
        model, lost = _optimized(source.model, goal, left_out)
    except ProviderMissingError as error:
        note = f"planned with the file's own nodes, none fused: {error.message}"
    except (RuntimeUnavailableError, MemplanError) as error:
        note = f"not optimized offline: {error.message}"
    else:
        if lost and isinstance(goal.strategy, Collection):
            # The author's marks decide, so no fusion may take away a marked tensor.
            note = f"planned without fusions: they take away {len(lost)} marked tensors ({lost[0]})"
        else:
            if not tuned:
                _require_right(edges, model)
            analysis = analyze_open(model, goal.session, held=tuned)
            yield Variant(level, model, analysis, disabled_notes(left_out))
    own = _as_held(source, goal)
    yield replace(own, notes=(*own.notes, note))


def _require_right(edges: Sequence[SharpEdge], fused: OpenModel) -> None:
    """Refuse a file that plain sessions compute wrongly, whatever is planned.

    Raises:
        ModelError: one of these nodes was fused wrongly.
    """
    left = sharp_edges(fused.prepared.proto, fused.prepared.types)
    apart = {edge.output for edge in left if edge.edge is Edge.POOL}
    wrong = [edge for edge in left if edge.edge is Edge.FUSED]
    wrong += [edge for edge in edges if edge.edge is Edge.POOL and edge.output not in apart]
    if wrong:
        raise ModelError(
            f"a plain session of ONNX Runtime computes this file wrongly: {edge_notes(wrong)[0]}",
            "use --session tuned, or change these nodes as 'memplan analyze' says",
        )


def _as_held(source: Source, goal: Goal) -> Variant:
    """The model with its own nodes; on the CPU also with the Casts that any session inserts.

    A plan for the file's nodes alone would not be the plan of what runs.
    """
    model, session = source.model, goal.session
    notes: tuple[str, ...] = ()
    if (session.name, session.provider) == ("tuned", "cpu") and changes_at_load(
        model.graph, session
    ):
        try:
            held = as_loaded(model, session, goal.options.loss)
        except MemplanError as error:
            notes = (f"not planned as it is loaded: {error.message}",)
        else:
            if not held.unchanged:
                prepared = replace(held.model.prepared, path=model.prepared.path)
                carry_marks(model.prepared.proto.graph, prepared.proto.graph)
                found = replace(held.model, prepared=prepared)
                return Variant("none", found, analyze_open(found, session, held=True), (HELD_NOTE,))
    if source.analyzed is model and session.name == "tuned":
        return Variant("none", model, source.original, notes)
    return Variant("none", model, analyze_open(model, session), notes)


def candidates(variant: Variant, goal: Goal) -> Iterator[Candidate]:
    """The variant with every choice of what its loops store, by rising cost; then with chunks, if
    they may be made: where the least peak is asked for, what lowers the floor most comes first.

    Raises:
        UsageError: what is asked of the loops cannot be done.
    """
    every = tuple(_with_loops(variant, goal))
    asked = goal.chunk
    if asked is None or asked.optional:
        yield from every
    if asked is not None:
        for each in every[:1] if asked.optional else every:
            for kind, count in asked.tries(goal.lowest):
                yield replace(each, chunk=Chunks(count, goal.room_bytes, kind=kind))


def _with_loops(variant: Variant, goal: Goal) -> Iterator[Candidate]:
    """The variant with every choice of what its loops store, by rising cost."""
    model, costs = variant.model, goal.costs
    changes = loop_steps(model, goal.session, goal.loops, costs, goal.room_bytes, goal.options.loss)
    if goal.loops in (AUTO, NONE):
        yield Candidate(variant)
    whole = step_seconds(costs, model.graph)
    for change in changes:
        yield Candidate(variant, (change,), change.seconds / whole if whole else 0.0)


def steps_of(
    candidate: Candidate, goal: Goal, known: Sequence[PassStep] = ()
) -> tuple[PassStep, ...]:
    """What is done to a candidate before anything is recomputed.

    Args:
        candidate: the candidate.
        goal: what it is planned for.
        known: what was done to another candidate of the same model, whose first passes need not run
            again where they are the same.

    Raises:
        UsageError: an option of a pass names what is not there.
    """
    chunk, tuned = candidate.chunk, goal.session.name == "tuned"
    passes = goal.passes if chunk is None or not tuned else (*goal.passes, chunk)
    pairs = zip(known[len(candidate.loops) :], passes, strict=False)
    done = tuple(step for step, _ in takewhile(lambda pair: pair[0].name == pair[1].name, pairs))
    ran = run_passes(passes, candidate.model, candidate.timeline, goal.passing, done)
    if chunk is not None and not tuned:
        ran = (*ran, pinned_chunks(chunk, reached(candidate, ran), goal.session))
    return (*candidate.loops, *ran)


def reached(candidate: Candidate, steps: Sequence[PassStep]) -> PassStep | Candidate:
    """The last of the steps that were done to a candidate; itself, if there are none."""
    return steps[-1] if steps else candidate


def pinned_chunks(chunk: Pass, before: PassStep | Candidate, session: SessionKind) -> PassStep:
    """Chunks for a plain session, which runs them one after the other because of the pins that the
    plan adds: what they save shows behind these."""
    pinned = simulate(before.model.graph, in_file_order(session))
    found = chunk.apply(before.model, pinned)
    changed = found.model is not before.model
    after = simulate(found.model.graph, session) if changed else before.timeline
    return PassStep(chunk.name, found.model, after, changed, note=found.note, chunks=found.chunks)


def chunk_step(steps: Sequence[PassStep]) -> int | None:
    """The place of the step that made chunks; None: there are none."""
    return next((k for k, step in enumerate(steps) if step.changed and step.name == CHUNK), None)


def chunk_cost(candidate: Candidate, steps: Sequence[PassStep], goal: Goal) -> float:
    """What chunks take, as a fraction of the step's seconds, estimated for all nodes: those of
    chunks were never measured."""
    place = chunk_step(steps)
    if place is None:
        return 0.0
    before = reached(candidate, steps[:place]).model
    estimate = goal.costs.estimate
    return float(sum(estimate(steps[place].model.graph)) / sum(estimate(before.graph)) - 1)


def orders_of(
    candidate: Candidate, steps: tuple[PassStep, ...], goal: Goal
) -> tuple[tuple[PassStep, ...], ...]:
    """The steps; also without the new node order for a published strategy, which may get on better
    in the order that it was made for, and where a budget may do without an order that saves
    workspace alone and costs memory that runs show. Chunks are made in the new order alone."""
    before = without_order(steps)
    if before is steps or candidate.chunk is not None:
        return (steps,)
    last = reached(candidate, before)
    raised = steps[-1].timeline.peak_bytes > last.timeline.peak_bytes
    own = isinstance(goal.strategy, Search) and not (raised and not goal.lowest)
    return (steps,) if own else (steps, before)


def _optimized(
    source: OpenModel, goal: Goal, edges: Sequence[SharpEdge]
) -> tuple[OpenModel, list[str]]:
    """The model as the runtime optimizes it, without what it gets wrong, and the marked tensors
    that it then lacks."""
    prepared, loss = source.prepared, goal.options.loss
    with scratch_folder() as folder:
        saved = _saved(source, goal, wrong_optimizers(edges), folder)
    _check_interface(prepared.proto, saved)
    ordered = restore_order(saved, prepared.proto)
    lost = carry_marks(prepared.proto.graph, ordered.graph)
    model = prepare_model(ordered, prepared.path, prepared.dims, prepared.weights)
    return like_state(opened(model, loss), source), lost


def _saved(source: OpenModel, goal: Goal, without: Sequence[str], folder: Path) -> onnx.ModelProto:
    """What the runtime's optimizer leaves. A plain session optimizes what it loads, and some of its
    fusions make nodes that it only merges with others the next time: so for these it is asked
    until nothing changes."""
    from memplan.runtime.optimize import optimize_offline

    prepared = source.prepared
    path, weights = prepared.path, prepared.weights
    before = sorted(node.name for node in prepared.proto.graph.node)
    for count in range(1 if goal.session.name == "tuned" else _LOADS):
        target = folder / f"optimized_{count}.onnx"
        left = goal.deadline.share(_OPTIMIZING).left
        limit = None if math.isinf(left) else max(0.1, round(left, 1))
        optimize_offline(path, target, goal.options.provider, weights, without, limit)
        saved = read_model(target, prepared.beside)
        names = sorted(node.name for node in saved.graph.node)
        if names == before:
            break
        path, weights, before = target, prepared.beside, names
    return saved


def _check_interface(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """The optimizer must leave names and types of inputs and outputs alone."""
    for field_name in ("input", "output"):
        names = [value.name for value in getattr(before.graph, field_name)]
        if names != [value.name for value in getattr(after.graph, field_name)]:
            raise MemplanError(f"the optimizer changed the graph {field_name}s")
        # It may add inferred shapes; the interface stays as the user wrote it.
        del getattr(after.graph, field_name)[:]
        getattr(after.graph, field_name).extend(getattr(before.graph, field_name))
