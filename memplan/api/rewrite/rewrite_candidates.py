"""What ``rewrite`` may plan, as values that say how each was made from the file.

A *variant* is the model as ONNX Runtime optimizes it offline, or as it is. A *candidate* is a
variant with one choice of what its loops store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from memplan.passes.chunk.choose_chunks import ChunkRegions
from memplan.passes.chunk.chunk_layers import ChunkLayers
from memplan.planning.plain.as_loaded import as_loaded, changes_at_load
from memplan.processes.scratch import scratch_folder
from memplan.proto.metadata import carry_marks, get_metadata, set_metadata
from memplan.proto.read import read_model
from memplan.proto.restore_order import restore_order
from memplan.shapes.prepare import prepare as prepare_model
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.timeline import Timeline
from memplan.solver.strategies.checkpoints import Collection

_CHUNKS = {made.kind: made for made in (ChunkRegions, ChunkLayers)}
_LOADS = 4  # how often a model is optimized that goes on changing
HELD_NOTE = (
    "planned and written as ONNX Runtime holds the model on the CPU once it is loaded, with the "
    "Casts that it puts around nodes without a float16 kernel: plan anew for other providers"
)


@dataclass(frozen=True, slots=True)
class Variant:
    """The model at one ``level`` of the runtime's optimization; ``notes``: what to know of it.

    ``held``: the runtime saved it, so the nodes are what a tuned session will hold.
    """

    level: str
    model: OpenModel
    notes: tuple[str, ...] = ()
    held: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may be planned.

    ``analysis`` is the variant's. ``loops`` changes what its loops store (empty: as they are),
    which makes any plan cost at least ``least_cost``, a fraction of the step's seconds. ``chunk``
    makes chunks before nodes are ordered; None: there are none.
    """

    variant: Variant
    analysis: Analysis
    loops: tuple[LoopStep, ...] = ()
    least_cost: float = 0.0
    chunk: ChunkRegions | ChunkLayers | None = None

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
        return self.loops[-1].timeline if self.loops else self.analysis.timeline


def variants(source: OpenModel, goal: Goal) -> tuple[Variant, ...]:
    """What to plan, best first: the model as the runtime optimizes it, then as it is. Where the
    provider that it is for does not start on this machine, as it is.

    Raises:
        ModelError: plain sessions, which it is to be planned for, compute it wrongly.
    """
    level = goal.options.optimize
    edges = sharp_edges(source.prepared.proto, source.prepared.types)
    own = _as_held(source, goal)
    if level == "none":
        return (own,)
    tuned = goal.session.name == "tuned"
    left_out = edges if tuned else ()  # a plain session fuses by itself, right or wrong
    try:
        model, lost = _optimized(source, goal, left_out)
    except ProviderMissingError as error:
        return (_noted(own, f"planned with the file's own nodes, none fused: {error.message}"),)
    except (RuntimeUnavailableError, MemplanError) as error:
        return (_noted(own, f"not optimized offline: {error.message}"),)
    if lost and isinstance(goal.strategy, Collection):
        # The author's marks decide, so no fusion may take away a marked tensor.
        note = f"planned without fusions: they take away {len(lost)} marked tensors ({lost[0]})"
        return (_noted(own, note),)
    if not tuned:
        _require_right(edges, model)
    return Variant(level, model, disabled_notes(left_out), held=tuned), _noted(
        own, "planned without fusions: with them no plan was found"
    )


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


def _noted(variant: Variant, *notes: str) -> Variant:
    return replace(variant, notes=(*variant.notes, *notes))


def _as_held(source: OpenModel, goal: Goal) -> Variant:
    """The model with its own nodes; on the CPU also with the Casts that any session inserts.

    A plan for the file's nodes alone would not be the plan of what runs.
    """
    session = goal.session
    if (session.name, session.provider) != ("tuned", "cpu") or not changes_at_load(
        source.graph, session
    ):
        return Variant("none", source)
    try:
        held = as_loaded(source, session, goal.options.loss)
    except MemplanError as error:
        return Variant("none", source, (f"not planned as it is loaded: {error.message}",))
    if held.unchanged:
        return Variant("none", source)
    model = replace(held.model, prepared=replace(held.model.prepared, path=source.prepared.path))
    carry_marks(source.prepared.proto.graph, model.prepared.proto.graph)
    return Variant("none", model, (HELD_NOTE,), held=True)


def candidates(variant: Variant, source: Source, goal: Goal) -> Iterator[Candidate]:
    """The variant with every choice of what its loops store, by rising cost; then with chunks, if
    they may be made.

    Raises:
        UsageError: what is asked of the loops cannot be done.
    """
    every = tuple(_with_loops(variant, source, goal))
    if goal.chunk is None or goal.chunk.optional:
        yield from every
    if goal.chunk is not None:
        whole = every[:1] if goal.chunk.optional else every
        for each in whole:
            for kind, count in goal.chunk.tries:
                yield replace(each, chunk=_CHUNKS[kind](count, goal.budget_bytes))


def analysis_of(variant: Variant, source: Source, goal: Goal) -> Analysis:
    """What a variant takes, which is known of the file as it is in a tuned session."""
    if source.analyzed is variant.model and goal.session.name == "tuned":
        return source.original
    return analyze_open(variant.model, goal.session, held=variant.held)


def _with_loops(variant: Variant, source: Source, goal: Goal) -> Iterator[Candidate]:
    """The variant with every choice of what its loops store, by rising cost."""
    model = variant.model
    analysis = analysis_of(variant, source, goal)
    costs = goal.costs
    changes = loop_steps(
        model, goal.session, goal.loops, costs, goal.budget_bytes, goal.options.loss
    )
    if goal.loops in (AUTO, NONE):
        yield Candidate(variant, analysis)
    whole = step_seconds(costs, model.graph)
    for change in changes:
        least = change.seconds / whole if whole else 0.0
        yield Candidate(variant, analysis, (change,), least)


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
    set_metadata(ordered, get_metadata(prepared.proto))
    model = prepare_model(ordered, prepared.path, prepared.dims, prepared.weights)
    return like_state(opened(model, loss), source), lost


def _saved(source: OpenModel, goal: Goal, without: Sequence[str], folder: Path) -> onnx.ModelProto:
    """What the runtime's optimizer leaves. A plain session optimizes what it loads, and some of its
    fusions make nodes that it only merges with others the next time: so for these it is asked
    until nothing changes."""
    from memplan.runtime.optimize import optimize_offline

    prepared = source.prepared
    path, weights = prepared.path, prepared.weights
    before: list[str] = []
    for count in range(1 if goal.session.name == "tuned" else _LOADS):
        target = folder / f"optimized_{count}.onnx"
        optimize_offline(path, target, goal.options.provider, weights, without)
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
