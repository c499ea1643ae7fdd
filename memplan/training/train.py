"""``memplan run``: a step, data and a number of steps → a trained state, a log and checkpoints."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from memplan.api.state_modes import parse_state
from memplan.errors import MemplanError, TrainingError, UsageError
from memplan.ir.roles import SHARED
from memplan.options import TrainOptions
from memplan.processes.locks import kept
from memplan.proto.paths import as_path
from memplan.proto.write import check_output, followed, keep_apart
from memplan.runtime.resident_set import GrowthMeter, ProcessGrowth
from memplan.training.batches import SYNTHETIC, Batches, synthetic_batches
from memplan.training.forward_file import check_forward
from memplan.training.log import TrainingLog, check_log
from memplan.training.predict import Predicted
from memplan.training.step_file import read_step
from memplan.training.telling import Binding, StepReport
from memplan.training.trainer import Trainer

SCHEMA = "memplan.run/1"

Progress = Callable[["StepReport", int, int | None], bool]
"""Is given a step's report, the number of steps and the predicted peak in bytes (None: unknown);
its answer is whether to go on."""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The answer of ``run``.

    ``reports`` are those of the steps that this run took, ``resumed`` the number of steps before
    them. ``data`` says where batches came from, ``predicted`` what every step takes. ``doubts``:
    those of the notes that say what is odd about the file. ``process``: how far this process grew;
    None where the system does not say.
    """

    path: Path
    provider: str
    loss: str | None
    reports: tuple[StepReport, ...]
    resumed: int
    data: str
    synthetic: bool
    bindings: tuple[Binding, ...]
    predicted: Predicted | None
    notes: tuple[str, ...]
    checkpoint: Path | None
    stopped: bool
    doubts: tuple[str, ...] = ()
    process: ProcessGrowth | None = None

    @property
    def steps(self) -> int:
        """The number of the last step."""
        return self.resumed + len(self.reports)

    @property
    def last_loss(self) -> float | None:
        """The loss of the last step of this run."""
        return self.reports[-1].loss if self.reports and self.loss else None

    @property
    def metrics(self) -> dict[str, list[float]]:
        """What was told beside the loss, by name, step by step."""
        names = self.reports[-1].metrics if self.reports else {}
        return {name: [report.metrics[name] for report in self.reports] for name in names}

    @property
    def loss_scale(self) -> float | None:
        """What the gradients of the last step began with; None where the loss is not scaled."""
        return self.reports[-1].loss_scale if self.reports else None

    @property
    def skipped(self) -> tuple[int, ...]:
        """The numbers of the steps that changed nothing, as a gradient was not finite."""
        return tuple(report.step for report in self.reports if report.skipped)

    @property
    def step_seconds(self) -> float | None:
        """The median, without the first step of this run where there are others."""
        seconds = [report.seconds for report in self.reports]
        return statistics.median(seconds[1:] or seconds) if seconds else None

    def as_json(self) -> dict[str, object]:
        """The JSON object of the contract."""
        own = [b for b in self.bindings if b.in_place]
        other = [b for b in self.bindings if not b.in_place]
        peak = self.predicted
        return {
            "schema": SCHEMA,
            "model": str(self.path),
            "provider": self.provider,
            "steps": self.steps,
            "resumed_from": self.resumed,
            "stopped": self.stopped,
            "data": self.data,
            "synthetic": self.synthetic,
            "loss": self.loss,
            "losses": [report.loss for report in self.reports] if self.loss else [],
            "metrics": self.metrics,
            "loss_scale": self.loss_scale,
            "skipped_steps": list(self.skipped),
            "step_seconds": self.step_seconds,
            "peak_bytes": None if peak is None else peak.peak_bytes,
            "resident_bytes": None if peak is None else peak.resident_bytes,
            "predicted_dynamic_bytes": None if peak is None else peak.dynamic_bytes,
            "process": None if self.process is None else self.process.as_json(),
            "state": {
                "in_place": len(own),
                "in_place_bytes": sum(b.nbytes for b in own),
                "second_buffers": len(other),
                "second_buffer_bytes": sum(b.nbytes for b in other),
                "reasons": {b.output: b.reason for b in other},
            },
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "notes": list(self.notes),
        }


def run(
    path: Path,
    options: TrainOptions,
    dims: Mapping[str, int] | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
    begin: Callable[[int], None] | None = None,
) -> TrainingRun:
    """Train with the step in ``path``.

    Args:
        path: a training step.
        options: what is asked for.
        dims: sizes of symbolic dimensions.
        force: replace files that are there (a checkpoint and a log that are resumed are gone on
            with anyway).
        progress: is given the report of every step; False from it ends the run there.
        begin: is given the bytes of the state, before any of it is made.

    Raises:
        ModelError, UsageError, RuntimeUnavailableError: see :class:`Trainer`.
        TrainingError: the loss is not a number, or the last state.

    Whatever ends the run, a checkpoint that was asked for is written first, if this run has taken a
    step, the state is that after a whole one and no checkpoint that is finite would be replaced by
    one that is not. Checkpoint and log are this run's until it ends, and as they were if it is
    refused.
    """
    file = as_path(path)
    _check(file, options, force)
    meter = GrowthMeter()
    with ExitStack() as stack:
        for target in (options.checkpoint, options.log):  # which other runs are refused
            if target is not None:
                stack.enter_context(kept(followed(target)))
        trainer = stack.enter_context(closing(_trainer(file, options, dims, begin)))
        meter.loaded()
        resumed = trainer.steps
        batches, told = _batches(trainer, options)
        log = None
        if options.log is not None:
            goes_on = resumed if options.resume else None
            log = TrainingLog(options.log, goes_on, force=force, metrics=trainer.file.metrics)
            stack.callback(log.close)
        reports, problems = _steps(trainer, batches, options, log, progress)
        grown = meter.growth()
        stopped = trainer.steps < options.steps
        if options.export_forward is not None and options.forward is not None and not stopped:
            trainer.export_forward(options.export_forward, options.forward, force=force)
        return TrainingRun(
            path=path,
            provider=trainer.request.provider,
            loss=trainer.loss_name,
            reports=tuple(reports),
            resumed=resumed,
            data=told,
            synthetic=options.data is None,
            bindings=trainer.bindings,
            predicted=trainer.predicted(),
            notes=(*trainer.notes, *(log.notes if log is not None else ()), *problems),
            checkpoint=options.checkpoint,
            stopped=stopped,
            doubts=trainer.file.contract.notes,
            process=grown,
        )


def _check(path: Path, options: TrainOptions, force: bool) -> None:
    """Refuse what could not be written at the end, before any work.

    Raises:
        UsageError: it cannot, or would overwrite what is read or other outputs; or options
            contradict each other.
    """
    if options.checkpoint is None and (options.resume or options.checkpoint_every):
        raise UsageError("--checkpoint-every and --resume require --checkpoint", "give a file")
    if options.ready_batches and options.data is None:
        raise UsageError("--ready-batches requires --data", "give a file")
    if options.export_forward is not None and options.forward is None:
        raise UsageError(
            "--export-forward requires --forward, the model that takes the trained values",
            "--forward MODEL.onnx: the one that grad was given, or the network in evaluation",
        )
    if options.forward is not None and options.export_forward is None:
        raise UsageError("--forward requires --export-forward", "give the file to write")
    keep_apart(options.outputs, path, options.data, options.weights_file, options.forward)
    if options.checkpoint is not None:
        check_output(options.checkpoint, force or options.resume)
    if options.export_forward is not None:
        check_output(options.export_forward, force)
    if options.log is not None:
        check_log(options.log, replaced=force or options.resume)


def _trainer(
    path: Path,
    options: TrainOptions,
    dims: Mapping[str, int] | None,
    begin: Callable[[int], None] | None,
) -> Trainer:
    """The trainer alone: the step that was read, with all first values, is gone behind this."""
    step = read_step(path, dims, parse_state(options.state).pairs)
    if options.forward is not None:
        check_forward(options.forward, step.named(*SHARED))
    if begin is not None:
        begin(step.state_bytes)
    goes_on = options.resume and options.checkpoint is not None and options.checkpoint.exists()
    return Trainer(
        step,
        weights=options.weights_file,
        init=options.init,
        resume=options.checkpoint if goes_on else None,
        lr=options.lr,
        hyperparameters=_numbers(options.hyper),
        provider=None if options.provider == "auto" else options.provider,
        threads=options.threads,
        in_place="apart" not in options.state,
        seed=options.seed,
    )


def _numbers(values: Sequence[str]) -> dict[str, float]:
    found = {}
    for value in values:
        name, split, number = value.rpartition("=")
        if not split:
            raise UsageError(f"--hyper {value}: expected NAME=NUMBER")
        try:
            found[name] = float(number)
        except ValueError:
            raise UsageError(f"--hyper {value}: expected a number, got '{number}'") from None
    return found


def _batches(trainer: Trainer, options: TrainOptions) -> tuple[Batches, str]:
    """Where batches come from, and what to say of it."""
    slots, seed = trainer.batch_slots, options.seed
    if options.data is None:
        arrays = synthetic_batches(trainer.file, seed)
        found = Batches(slots, arrays, shuffle=False, seed=seed, ready_batches=True)
        return found, f"SYNTHETIC: {SYNTHETIC} batches of random numbers, over and over (no --data)"
    ready = options.ready_batches
    found = Batches(slots, options.data, shuffle=options.shuffle, seed=seed, ready_batches=ready)
    samples = "" if found.samples is None else f"{found.samples:,} samples, "
    return found, f"{options.data}: {samples}{found.count:,} batches per epoch"


def _steps(
    trainer: Trainer,
    batches: Batches,
    options: TrainOptions,
    log: TrainingLog | None,
    progress: Progress | None,
) -> tuple[list[StepReport], list[str]]:
    """The steps that are left, and what went wrong with checkpoints."""
    reports: list[StepReport] = []
    left = max(options.steps - trainer.steps, 0)
    keeper = _Keeper(trainer, options)
    try:
        for report in trainer.train(batches, left):
            reports.append(report)
            if log is not None:
                log.write(report)
            keeper.after(report.step)
            predicted = None if progress is None else trainer.predicted()
            peak = None if predicted is None else predicted.peak_bytes
            if progress is not None and not progress(report, options.steps, peak):
                break
    except BaseException as error:
        keeper.at_failure(error)
        raise
    if log is not None:
        log.begin()
    keeper.at_end()
    return reports, keeper.problems


class _Keeper:
    """Writes checkpoints. One that cannot be written in the middle ends no run: the one before is
    as it was, and the next is tried."""

    def __init__(self, trainer: Trainer, options: TrainOptions) -> None:
        self.trainer, self.begun = trainer, trainer.steps
        self.path, self.every = options.checkpoint, options.checkpoint_every
        self.saved = -1
        self.problems: list[str] = []

    def after(self, step: int) -> None:
        if self.path is None or not self.every or step % self.every:
            return
        try:
            self._save(self.path)
        except TrainingError as error:  # so would be every one from here on
            self.problems.append(error.message)
            self.every = None
        except UsageError as error:
            self.problems.append(f"after step {step}: {error.message}")

    def at_end(self) -> None:
        """Write the last state, if it is one.

        Raises:
            UsageError: it cannot be written.
            TrainingError: it is not finite, and the one that is there is.
        """
        if self.path is not None and self.trainer.is_whole and self.saved != self.trainer.steps:
            self._save(self.path)

    def at_failure(self, error: BaseException) -> None:
        """The same where an error has ended the run, which says what is left behind. A run without
        a step leaves nothing: what it was refused for may be the very checkpoint."""
        if self.path is None or self.trainer.steps == self.begun:
            return
        try:
            self.at_end()
            told = f"{self.path} holds the state after step {self.saved}; --resume goes on"
            told = told if self.saved >= 0 else ""
        except MemplanError as other:
            told = other.message
        hint = getattr(error, "hint", "")
        error.hint = "; ".join(part for part in (hint, told) if part)  # type: ignore[attr-defined]

    def _save(self, path: Path) -> None:
        self.trainer.save(path)
        self.saved = self.trainer.steps
