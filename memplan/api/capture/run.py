"""``capture``: a training step of PyTorch → a training graph."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.api.capture.result import Capture, Road
from memplan.api.capture.weights import WeightPlace, choose_place, data_file, embed, write_captured
from memplan.errors import MemplanError, UsageError
from memplan.proto.paths import as_output
from memplan.proto.write import check_output
from memplan.pytorch.installed import require_torch
from memplan.pytorch.load import returned_by, split_target
from memplan.pytorch.step import TorchStep, as_step
from memplan.units import counted, format_bytes

if TYPE_CHECKING:
    from memplan.api.capture.finish import Finished
    from memplan.api.capture.gradients import Trained
    from memplan.pytorch.program import Exported
    from memplan.pytorch.reading import Reading

VIA = ("auto", "grad", "joint")


@dataclass(frozen=True, slots=True)
class _Taken:
    """A road that led to a graph."""

    road: Road
    exported: Exported
    trained: Trained


def capture(
    step: TorchStep | tuple[object, ...] | Mapping[str, object] | str,
    output: Path | str | None = None,
    *,
    via: str = "auto",
    dynamic: str | Mapping[str, Mapping[int, str]] | None = None,
    loss_scale: str | float | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    weights: str = "auto",
    frozen: str | None = None,
    ema: float | None = None,
    force: bool = False,
) -> Capture:
    """Capture one training step of PyTorch: forward, loss, backward and update.

    Args:
        step: a :class:`~memplan.pytorch.step.TorchStep`, a tuple or dictionary of its fields, or
            ``FILE.py:FUNCTION``: a function without arguments that returns one. Its code is run.
        output: where to write; None: nowhere.
        via: ``grad``: PyTorch's forward graph and memplan's gradients; ``joint``: autograd's own
            backward; ``auto``: whichever has the lower simulated peak.
        dynamic: names of dynamic dimensions, instead of the step's own.
        loss_scale: ``none``, ``dynamic{init_scale=1024}`` or a number, instead of its scaler.
        clip_norm: a bound, instead of its own clipping.
        clip_value: the same.
        weights: ``embed`` them in the file, ``copy`` them to ``OUTPUT.data``, or leave them out
            (``none``); ``auto`` embeds up to 256 MiB.
        frozen: ``constants`` or ``inputs``, instead of the step's own.
        ema: the decay of an average of every trained parameter, instead of the step's own.
        force: overwrite ``output``.

    Raises:
        ModelError: PyTorch refuses the model, or it has an operator without a gradient.
        RuntimeUnavailableError: PyTorch is not installed.
        UsageError: the function fails, returns something else, or has an optimizer that cannot be
            captured; an output cannot be written.
    """
    if via not in VIA:
        raise UsageError(f"there is no road '{via}'", f"there are {', '.join(VIA)}")
    require_torch()
    target = as_output(output)
    if target is not None:
        check_output(target, force)
    found, source = _step(step)
    if dynamic is not None:
        found = replace(found, dynamic=dynamic)
    if loss_scale is not None:
        found = replace(found, scaler=loss_scale)
    if clip_norm is not None or clip_value is not None:
        found = replace(found, clip_norm=clip_norm, clip_value=clip_value)
    if frozen is not None:
        found = replace(found, frozen=frozen)
    if ema is not None:
        found = replace(found, ema=ema)
    from memplan.api.capture.finish import finish
    from memplan.pytorch.reading import read_step

    reading = read_step(found)
    taken, tried = _roads(reading, via)
    done = finish(reading, taken.exported, taken.trained)
    place = choose_place(weights, done.weights, target)
    if place is WeightPlace.COPY and target is not None:
        check_output(data_file(target), force)
    if target is not None:
        write_captured(done.model, done.weights, place, target, force)
    elif place is WeightPlace.EMBED:
        embed(done.model, done.weights)
    data = data_file(target) if target is not None and place is WeightPlace.COPY else None
    return _answer(reading, done, taken, tried, place, target, data, source)


def _step(given: object) -> tuple[TorchStep, str]:
    if isinstance(given, str):
        path, name = split_target(given)
        returned = returned_by(path, name)
        try:
            return as_step(returned), given
        except UsageError as error:
            raise UsageError(f"{given} returns: {error.message}", error.hint) from None
    step = as_step(given)
    return step, type(step.model).__name__


def _roads(reading: Reading, via: str) -> tuple[_Taken, tuple[Road, ...]]:
    """The road to take, and what was tried.

    Raises:
        ModelError: no road leads to a graph.
    """
    names = ("grad", "joint") if via == "auto" else (via,)
    taken: list[_Taken] = []
    failed: list[tuple[Road, MemplanError]] = []
    for name in names:
        try:
            taken.append(_take(reading, name))
        except UsageError:
            raise
        except MemplanError as error:
            failed.append((Road(name, failure=error.message), error))
    if not taken:
        raise failed[0][1]
    if len(taken) > 1:
        taken = [_measured(reading, road) for road in taken]
    best = min(taken, key=lambda item: item.road.peak_bytes or 0)
    roads = {item.name: item for item in (*(t.road for t in taken), *(road for road, _ in failed))}
    return best, tuple(roads[name] for name in names)


def _take(reading: Reading, name: str) -> _Taken:
    from memplan.api.capture.gradients import by_autograd, by_grad
    from memplan.api.capture.update import sink_maker

    begin = time.perf_counter()
    exported = reading.forward() if name == "grad" else reading.joint()
    make_sink = sink_maker(reading.optimizer, reading.treatment, reading.averages, exported.renewed)
    if name == "grad":
        wanted = [each for each in exported.parameters if each in reading.trainable]
        trained = by_grad(exported.model, exported.loss, wanted, make_sink)
    else:
        trained = by_autograd(exported, make_sink)
    road = Road(name, len(trained.model.graph.node), time.perf_counter() - begin)
    return _Taken(road, exported, trained)


def _measured(reading: Reading, taken: _Taken) -> _Taken:
    from memplan.api.analyze import analyze

    analysis = analyze(taken.trained.model, dims=reading.dims)
    stash = sum(item.nbytes for item in analysis.stashes)
    peak = analysis.timeline.peak_with_workspace_bytes
    return replace(taken, road=replace(taken.road, peak_bytes=peak, stash_bytes=stash))


def _answer(
    reading: Reading,
    done: Finished,
    taken: _Taken,
    tried: tuple[Road, ...],
    place: WeightPlace,
    output: Path | None,
    data: Path | None,
    source: str,
) -> Capture:
    from memplan.api.capture.update import scale_of
    from memplan.api.grad.notes import notes_on_holding

    optimizer, scale = reading.optimizer, scale_of(reading.treatment)
    return Capture(
        source=source,
        output=output,
        data=data,
        model=done.model,
        via=taken.road.name,
        roads=tried,
        contract=done.contract,
        trained=taken.trained.wrt,
        frozen=done.frozen,
        frozen_inputs=done.given,
        ema_decay=None if reading.averages is None else reading.averages.decay,
        unused=done.unused,
        dims=reading.dims,
        optimizer=optimizer.name if optimizer is not None else None,
        lr=optimizer.lr if optimizer is not None else None,
        loss_scale="none" if scale is None else scale.text,
        clip_norm=reading.treatment.clip_norm or None,
        clip_value=reading.treatment.clip_value or None,
        weights=str(place),
        weight_bytes=sum(weight.nbytes for weight in done.weights.values()),
        notes=(
            *_road_notes(tried, taken.road.name),
            *reading.notes,
            *notes_on_holding(taken.trained.sink),
            *done.notes,
        ),
        torch=version("torch"),
        sizes=reading.sizes,
    )


def _road_notes(roads: tuple[Road, ...], via: str) -> tuple[str, ...]:
    """What decided between the roads."""
    if len(roads) < 2:
        return ()
    failed = [road for road in roads if road.failure]
    if failed:
        return (f"via {via}: the road '{failed[0].name}' is closed: {failed[0].failure}",)
    own = next(road for road in roads if road.name == via)
    other = next(road for road in roads if road.name != via)
    return (
        f"via {via}: peak {format_bytes(own.peak_bytes or 0)}, "
        f"{counted(own.nodes, 'node')}; via {other.name}: "
        f"{format_bytes(other.peak_bytes or 0)}, {counted(other.nodes, 'node')}",
    )
