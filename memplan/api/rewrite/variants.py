"""What ``rewrite`` may plan: the model as ONNX Runtime optimizes it offline, and as it is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import onnx

from memplan.errors import (
    InfeasibleError,
    MemplanError,
    ProviderMissingError,
    RuntimeUnavailableError,
    UsageError,
)
from memplan.proto.external import external_tensors
from memplan.proto.metadata import carry_marks
from memplan.proto.read import read_model
from memplan.proto.restore_order import restore_order
from memplan.shapes.prepare import prepare as prepare_model
from memplan.simulate.opened import OpenModel, opened

Planned = TypeVar("Planned")
Attempt = tuple[str, OpenModel, tuple[str, ...]]
"""What may be planned: the level of optimization, the model and what to know about it."""


def variants(
    source: OpenModel, optimize: str, provider: str, loss: str | None, marks: bool
) -> list[Attempt]:
    """What to plan, best first: the model as the runtime optimizes it, then as it is.

    Args:
        source: the model as it is.
        optimize: the runtime's level of optimization, or ``none``.
        provider: what it is optimized for.
        loss: the name of the loss, if the user gave one.
        marks: the author's marks decide, so no fusion may take away a marked tensor.
    """
    plain: Attempt = ("none", source, ())
    if optimize == "none":
        return [plain]
    if any(True for _ in external_tensors(source.prepared.proto)):
        note = "not optimized offline: that would load and inline the external weights"
        return [("none", source, (note,))]
    try:
        model, lost = _optimized(source, optimize, provider, loss)
    except ProviderMissingError as error:
        hint = f"{error.hint}; --optimize none plans without it"
        raise ProviderMissingError(error.message, hint) from None
    except (RuntimeUnavailableError, MemplanError) as error:
        note = f"not optimized offline: {error.message}"
        return [("none", source, (note,))]
    if marks and lost:
        note = f"planned without fusions: they take away {len(lost)} marked tensors ({lost[0]})"
        return [("none", source, (note,))]
    fallback: Attempt = ("none", source, ("planned without fusions: with them no plan was found",))
    return [(optimize, model, ()), fallback]


def first_plan(
    attempts: list[Attempt], plan: Callable[[OpenModel], Planned]
) -> tuple[Attempt, Planned]:
    """The first attempt for which there is a plan, and what was planned.

    Raises:
        InfeasibleError: there is none; the first reason.
        UsageError: the strategy cannot work on the last attempt, the file's own nodes.
    """
    failure: InfeasibleError | None = None
    for attempt in attempts:
        model = attempt[1]
        try:
            return attempt, plan(model)
        except InfeasibleError as error:
            failure = failure or error
        except UsageError:
            # Fusions may have taken away what the strategy goes by: names, or bottlenecks.
            if model is attempts[-1][1]:
                raise
    assert failure is not None
    raise failure


def best_plan(
    ways: list[Callable[[], Planned]], figures: Callable[[Planned], tuple[float, float]]
) -> Planned:
    """Of what several ways plan, the one of least ``figures``.

    Raises:
        InfeasibleError, UsageError: there is no plan by any of them; why not by the last.
    """
    found: list[Planned] = []
    failure: MemplanError | None = None
    for way in ways:
        try:
            found.append(way())
        except (InfeasibleError, UsageError) as error:
            failure = error
    if failure is not None and not found:
        raise failure
    return min(found, key=figures)


def _optimized(
    source: OpenModel, optimize: str, provider: str, loss: str | None
) -> tuple[OpenModel, list[str]]:
    """The model as the runtime optimizes it, and the marked tensors that are then gone."""
    from memplan.runtime.optimize import optimize_offline

    prepared = source.prepared
    with tempfile.TemporaryDirectory(prefix="memplan-") as folder:
        target = Path(folder) / "optimized.onnx"
        optimize_offline(prepared.path, target, optimize, provider)
        saved = read_model(target)
    _check_interface(prepared.proto, saved)
    ordered = restore_order(saved, prepared.proto)
    lost = carry_marks(prepared.proto.graph, ordered.graph)
    model = prepare_model(ordered, prepared.path, prepared.dims)
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
