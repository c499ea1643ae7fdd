"""``capture``: a training step of PyTorch → a training graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.api.capture.capture_check import CaptureDiffersError, Check, Verdict
from memplan.api.capture.capture_result import Capture
from memplan.api.capture.captured_weights import MOST_EMBEDDED, WeightPlace, embed, write_captured
from memplan.api.capture.kernel_support import kernel_notes, require_kernels
from memplan.autodiff.counter_dropouts import OPERATOR, CounterDropout, parse_dropout
from memplan.autodiff.optimizers.scaling import parse_loss_scale
from memplan.errors import InvalidNodeError, MemplanError, UsageError
from memplan.proto.edit import copied
from memplan.proto.paths import as_output
from memplan.proto.weights import data_file
from memplan.proto.write import check_target
from memplan.pytorch.installed_torch import named_in_failures, require_torch, torch_notes
from memplan.pytorch.load_function import returned_by, split_target, users_code
from memplan.pytorch.torch_step import TorchStep, as_step
from memplan.units import counted, format_bytes

if TYPE_CHECKING:
    from memplan.api.capture.captured_file import Finished
    from memplan.api.capture.reference import Reference
    from memplan.api.capture.step_gradients import Trained
    from memplan.pytorch.reading import Reading

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a caller asks for; ``target`` is the file, if one is to be written."""

    check: bool
    weights: str
    target: Path | None
    counter: CounterDropout | None
    portable: bool


@dataclass(frozen=True, slots=True)
class _Built:
    """A training graph, what it takes, and what came of holding it against PyTorch."""

    trained: Trained
    done: Finished
    peak_bytes: int
    stash_bytes: int
    check: Check | None = None


def capture(
    step: TorchStep | tuple[object, ...] | Mapping[str, object] | str,
    output: Path | str | None = None,
    *,
    dynamic: str | Mapping[str, Mapping[int, str]] | None = None,
    weights: str = "auto",
    check: bool = True,
    frozen: str | None = None,
    dropout: str = OPERATOR,
    portable: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Capture:
    """Capture one training step of PyTorch: forward, loss, backward and update.

    Args:
        step: a :class:`~memplan.pytorch.torch_step.TorchStep`, a tuple or dictionary of its
            fields, or ``FILE.py:FUNCTION``: a function without arguments that returns one. Its code
            is run.
        output: where to write; None: nowhere.
        dynamic: names of dynamic dimensions, instead of the step's own.
        weights: ``embed`` them in the file, ``copy`` them to ``OUTPUT.data``, or leave them out
            (``none``); ``auto`` embeds up to 256 MiB.
        check: hold the step against PyTorch's (:mod:`memplan.api.capture.checker`).
        frozen: ``constants`` or ``inputs``, instead of the step's own.
        dropout: ``operator`` draws masks; ``counter`` or ``counter{seed=7}`` makes them of the
            number of the step (:mod:`memplan.autodiff.counter_dropouts`).
        portable: write max pools and ``LogSoftmax`` by operators that WebGPU runs.
        force: overwrite ``output``.
        progress: called with what is being done.

    Raises:
        CaptureDiffersError: the captured step is not PyTorch's; nothing was written.
        ModelError: PyTorch refuses the model or cannot take the step, or it has an operator without
            a gradient.
        RuntimeUnavailableError: PyTorch is not installed, too old, or so new that it fails.
        UsageError: the function fails, returns something else, or has an optimizer that cannot be
            captured; an output cannot be written.
    """
    counter = parse_dropout(dropout)
    require_torch()
    target = as_output(output)
    if target is not None:
        script = Path(split_target(step)[0]) if isinstance(step, str) else None
        check_target(target, force, script)
        if weights == WeightPlace.COPY:
            check_target(data_file(target), force, script)
    changes = {"dynamic": dynamic, "frozen": frozen}
    changes = {name: value for name, value in changes.items() if value is not None}
    # What the step changes to another folder for must not move the output.
    written = None if target is None else Path(os.path.abspath(target))
    wanted = _Wanted(check, weights, written, counter, portable)
    from_file = users_code(split_target(step)[0]) if isinstance(step, str) else nullcontext()
    with named_in_failures("capture"), from_file:
        found, source = _step(step, changes)
        return _captured(found, source, wanted, force, target, progress)


def _captured(
    step: TorchStep,
    source: str,
    wanted: _Wanted,
    force: bool,
    shown: Path | None,
    progress: Progress | None,
) -> Capture:
    """``shown``: the output as it was asked for, which the step may have moved away from."""
    from memplan.pytorch.reading import read_step
    from memplan.pytorch.torch_defaults import PLAIN, defaults

    say = progress or (lambda _: None)
    say("exporting")
    reading, target = read_step(step), wanted.target
    beside = wanted.weights == WeightPlace.AUTO and _nbytes(reading) > MOST_EMBEDDED
    if target is not None and beside:
        check_target(data_file(target), force)
    try:
        with defaults(PLAIN):
            built = _checked(reading, wanted, say)
    finally:
        reading.state.put_back()
    say("writing")
    data = _write(built.done, target, force)
    data = None if data is None or shown is None else shown.with_name(data.name)
    return _answer(reading, built, wanted, shown, data, source)


def _write(done: Finished, target: Path | None, force: bool) -> Path | None:
    """Write a graph, or put its weights into it where no file is wanted; the file beside it."""
    if target is not None:
        return write_captured(done.model, done.weights, done.place, target, force)
    if done.place is WeightPlace.EMBED:
        embed(done.model, done.weights)
    return None


def _step(given: object, changes: Mapping[str, Any]) -> tuple[TorchStep, str]:
    """The step that is given, with some of its settings changed, and what it is called."""
    if isinstance(given, str):
        # Before the user's folder is on the import path: a random.py there is not for PyTorch.
        from memplan.api.capture import (  # noqa: F401
            captured_file,
            checker,
            reference,
            step_gradients,
        )
        from memplan.pytorch import reading  # noqa: F401

        path, name = split_target(given)
        returned = returned_by(path, name)
        try:
            return replace(as_step(returned), **changes), given
        except UsageError as error:
            raise UsageError(f"{given} returns: {error.message}", error.hint) from None
    step = as_step(given)
    return replace(step, **changes), type(step.model).__name__


def _nbytes(reading: Reading) -> int:
    return sum(tensor.nbytes for tensor in reading.tensors.values())


def _checked(reading: Reading, wanted: _Wanted, say: Progress) -> _Built:
    """The training graph, held against PyTorch's step if that is asked for.

    Raises:
        CaptureDiffersError: it is not PyTorch's step.
        ModelError: there is none, or PyTorch itself cannot take the step.
    """
    from memplan.api.capture.checker import check_captured
    from memplan.api.capture.reference import Reference

    say("differentiating")
    reference = Reference(reading) if wanted.check else None
    try:
        built = _built(reading, wanted)
    except UsageError:
        raise
    except MemplanError as error:
        if isinstance(error, InvalidNodeError) and (at := reading.place_of_node(error.node)):
            error.message = f"{error.message} ({at})"
        if reference is not None:
            error.hint = _kept_beside(reference, error.hint)
        raise
    if reference is None:
        return built
    say("checking against PyTorch")
    found = check_captured(reference, built.done, built.trained, built.peak_bytes)
    if found.verdict is Verdict.DIFFERS:
        raise CaptureDiffersError(
            f"the captured step is not PyTorch's: {found.summary}; nothing was written",
            "; ".join([*found.causes, "--no-check (check=False) writes it all the same"]),
            found,
        )
    return replace(built, check=found)


def _kept_beside(reference: Reference, hint: str) -> str:
    """A hint for a step that cannot be captured, with what it changes in Python."""
    from memplan.api.capture.reference import CAUSE, quoted

    try:
        changed = reference.changed
    except Exception:  # PyTorch does not take it either
        return hint
    return f"{hint}; steps change {quoted(changed)}: {CAUSE}" if changed else hint


def _built(reading: Reading, wanted: _Wanted) -> _Built:
    from memplan.api.capture.captured_file import finish
    from memplan.api.capture.step_gradients import differentiated, sink_maker

    exported = reading.forward()
    make_sink = sink_maker(reading.optimizer, reading.treatment, reading.averages)
    named = [each for each in exported.parameters if each in reading.trainable]
    counter, portable = wanted.counter, wanted.portable
    trained = differentiated(exported.model, "loss", named, make_sink, counter, portable=portable)
    require_kernels(trained.model)
    done = finish(reading, exported, trained, wanted.weights, wanted.target)
    return _Built(trained, done, *_sizes(reading, done))


def _sizes(reading: Reading, done: Finished) -> tuple[int, int]:
    """The peak with kernel workspace, and the stash."""
    from onnx import helper

    from memplan.api.analysis import analyze

    model = copied(done.model)
    given = {value.name for value in model.graph.input}
    for name, weight in done.weights.items():
        if name not in given:  # a constant, which is put in when the file is written
            info = helper.make_tensor_value_info(name, weight.dtype, list(weight.shape))
            model.graph.input.append(info)
    analysis = analyze(model, dims=reading.dims)
    stash = sum(item.nbytes for item in analysis.stashes)
    return analysis.timeline.peak_with_workspace_bytes, stash


def _answer(
    reading: Reading,
    built: _Built,
    wanted: _Wanted,
    output: Path | None,
    data: Path | None,
    source: str,
) -> Capture:
    from memplan.api.grad.notes import notes_on_holding

    done, optimizer = built.done, reading.optimizer
    scale = parse_loss_scale(reading.treatment.scale)
    peak, nodes = format_bytes(built.peak_bytes), counted(len(done.model.graph.node), "node")
    return Capture(
        source=source,
        output=output,
        data=data,
        model=done.model,
        peak_bytes=built.peak_bytes,
        stash_bytes=built.stash_bytes,
        contract=done.contract,
        trained=built.trained.wrt,
        frozen=done.frozen,
        frozen_inputs=done.given,
        dropout=OPERATOR if wanted.counter is None else wanted.counter.text,
        counted_masks=built.trained.counted.masks,
        ema_decay=None if reading.averages is None else reading.averages.decay,
        unused=done.unused,
        dims=reading.dims,
        optimizer=optimizer.name if optimizer is not None else None,
        lr=optimizer.lr if optimizer is not None else None,
        loss_scale="none" if scale is None else scale.text,
        clip_norm=reading.treatment.clip_norm or None,
        clip_value=reading.treatment.clip_value or None,
        weights=str(done.place),
        weight_bytes=sum(weight.nbytes for weight in done.weights.values()),
        notes=(
            f"peak {peak} with kernel workspace, {nodes}",
            *torch_notes(),
            *reading.notes,
            *notes_on_holding(built.trained.sink),
            *built.trained.counted.notes,
            *done.notes,
            *kernel_notes(done.model),
        ),
        torch=version("torch"),
        sizes=reading.sizes,
        check=built.check,
    )
