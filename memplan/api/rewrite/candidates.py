"""What ``rewrite`` may plan, as values that say how each was made from the file.

A *variant* is the model as ONNX Runtime optimizes it offline, or as it is. A *candidate* is a
variant with one choice of what its loops store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from memplan.api.analyze import Analysis, analyze_open
from memplan.api.rewrite.goal import Goal, Source
from memplan.api.rewrite.loops import LoopStep, loop_steps, step_seconds
from memplan.errors import MemplanError, ProviderMissingError, RuntimeUnavailableError
from memplan.loops.choose import FIT, NONE
from memplan.processes import scratch_folder
from memplan.proto.metadata import carry_marks
from memplan.proto.read import read_model
from memplan.proto.restore_order import restore_order
from memplan.shapes.prepare import prepare as prepare_model
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.timeline import Timeline
from memplan.strategies.checkpoints import Collection


@dataclass(frozen=True, slots=True)
class Variant:
    """The model at one ``level`` of the runtime's optimization; ``notes``: what to know of it."""

    level: str
    model: OpenModel
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may be planned.

    ``analysis`` is the variant's. ``loops`` changes what its loops store (empty: as they are),
    which makes any plan cost at least ``least_cost``, a fraction of the step's seconds.
    """

    variant: Variant
    analysis: Analysis
    loops: tuple[LoopStep, ...] = ()
    least_cost: float = 0.0

    @property
    def model(self) -> OpenModel:
        """What is planned, before any pass."""
        return self.loops[-1].model if self.loops else self.variant.model

    @property
    def timeline(self) -> Timeline:
        """The simulation of ``model``."""
        return self.loops[-1].timeline if self.loops else self.analysis.timeline


def variants(source: OpenModel, goal: Goal) -> tuple[Variant, ...]:
    """What to plan, best first: the model as the runtime optimizes it, then as it is.

    Raises:
        ProviderMissingError: the provider that it is to be optimized for does not start.
    """
    level = goal.options.optimize
    if level == "none":
        return (Variant("none", source),)
    try:
        model, lost = _optimized(source, level, goal.options.provider, goal.options.loss)
    except ProviderMissingError as error:
        hint = f"{error.hint}; --optimize none plans without it"
        raise ProviderMissingError(error.message, hint) from None
    except (RuntimeUnavailableError, MemplanError) as error:
        note = f"not optimized offline: {error.message}"
        return (Variant("none", source, (note,)),)
    if lost and isinstance(goal.strategy, Collection):
        # The author's marks decide, so no fusion may take away a marked tensor.
        note = f"planned without fusions: they take away {len(lost)} marked tensors ({lost[0]})"
        return (Variant("none", source, (note,)),)
    note = "planned without fusions: with them no plan was found"
    return Variant(level, model), Variant("none", source, (note,))


def candidates(variant: Variant, source: Source, goal: Goal) -> Iterator[Candidate]:
    """The variant with every choice of what its loops store, by rising cost.

    Raises:
        UsageError: what is asked of the loops cannot be done.
    """
    model = variant.model
    alike = model is source.model and goal.session.name == "tuned"
    analysis = source.original if alike else analyze_open(model, goal.session)
    costs = goal.early_costs
    changes = loop_steps(
        model, goal.session, goal.loops, costs, goal.budget_bytes, goal.options.loss
    )
    if goal.loops in (FIT, NONE):
        yield Candidate(variant, analysis)
    whole = step_seconds(costs, model.graph)
    for change in changes:
        least = change.seconds / whole if whole else 0.0
        yield Candidate(variant, analysis, (change,), least)


def _optimized(
    source: OpenModel, optimize: str, provider: str, loss: str | None
) -> tuple[OpenModel, list[str]]:
    """The model as the runtime optimizes it, and the marked tensors that it then lacks."""
    from memplan.runtime.optimize import optimize_offline

    prepared = source.prepared
    with scratch_folder() as folder:
        target = folder / "optimized.onnx"
        optimize_offline(prepared.path, target, optimize, provider, prepared.weights)
        saved = read_model(target, prepared.beside)
    _check_interface(prepared.proto, saved)
    ordered = restore_order(saved, prepared.proto)
    lost = carry_marks(prepared.proto.graph, ordered.graph)
    model = prepare_model(ordered, prepared.path, prepared.dims, prepared.weights)
    return opened(model, loss), lost


def _check_interface(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """The optimizer must leave names and types of inputs and outputs alone."""
    for field_name in ("input", "output"):
        names = [value.name for value in getattr(before.graph, field_name)]
        if names != [value.name for value in getattr(after.graph, field_name)]:
            raise MemplanError(f"the optimizer changed the graph {field_name}s")
        # It may add inferred shapes; the interface stays as the user wrote it.
        del getattr(after.graph, field_name)[:]
        getattr(after.graph, field_name).extend(getattr(before.graph, field_name))
