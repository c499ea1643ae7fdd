"""``memplan.Trainer``: a training loop in five lines."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from os import PathLike
from typing import Any

import numpy.typing as npt

from memplan.api.source import Model
from memplan.errors import MemplanError, RuntimeUnavailableError, TrainingError, UsageError
from memplan.ir.roles import FOUND_INF, LOSS_SCALE, Role
from memplan.options import TrainOptions
from memplan.processes.deferred import deferred_signals
from memplan.proto.metadata import planned_for
from memplan.proto.model_checks import require_device
from memplan.runtime.installed import require_runtime
from memplan.runtime.messages import RunRequest
from memplan.runtime.room import require_room
from memplan.training.batches import Batch, Batches, checked_batch
from memplan.training.checkpoint import Progress, Wanted
from memplan.training.initial import Begin, Init, first_state, initial_state
from memplan.training.knobs import Knobs, Rate
from memplan.training.placing import NO_GUARD, find_failed, place
from memplan.training.predict import Predicted, predict
from memplan.training.state import StepMemory, TrainingState, require_names
from memplan.training.step_file import StepFile, read_step, require_update
from memplan.training.telling import Binding, StepReport, description
from memplan.training.trained_weights import Weights

Array = npt.NDArray[Any]


class Trainer(TrainingState[int]):
    """Trains with a step: state stays in the session's memory; a batch goes in, the loss comes out.

        trainer = memplan.Trainer("step.onnx", lr=1e-3)
        for batch in batches:
            loss = trainer.step(batch)
        trainer.save("run.npz")

    Args:
        model: a training step: a path, a ``ModelProto``, or one that was read.
        weights: first values by name: a mapping of arrays or a file (``.npz``, ``.safetensors``,
            ``.onnx``). Other first values are those of the file. Optimizer state without any starts
            at 0, running variances at 1, and ``notes`` says so.
        init: ``"random"`` for parameters without a value.
        resume: a checkpoint to go on from, in place of ``weights`` and ``init``.
        lr: the learning rate: a number, or a function of the number of the step (the first is 1).
            Without it, the file's own.
        hyperparameters: further inputs that change by somebody's will, by name.
        state: output → input: whose next value an output is, where the file does not tell.
        outputs: further outputs whose values are wanted after every step, see :attr:`outputs`.
        provider: ``cpu`` or ``cuda``; by default the one that the file was planned for.
        dims: sizes of symbolic dimensions.
        threads: within an operator; 0 leaves them to the runtime.
        spin: whether they wait for work on the processor, which is quicker where nothing else runs
            there; else they sleep.
        in_place: whether new values are written over old ones where that is right.
        guard: whether the state survives a loss that is not a number. Without it all that may be is
            written in place, and such a step cannot be undone.
        seed: of random first values and of the runtime's random operators.
        measure: run under the profiler, for :meth:`measured_peaks`.

    Of a step whose loss is scaled, ``loss_scale`` is what the gradients of the last step began
    with, and ``skipped`` says that one of them was not finite: what its optimizer updates stayed.
    ``metrics`` are the numbers beside its loss, by name. ``file`` is the step that was read and
    ``batch_slots`` its inputs that make up a batch; ``session`` and ``memory`` have the state.

    Raises:
        ModelError: the file cannot be read, or renews nothing.
        UsageError: a value is missing, or does not fit.
        RuntimeUnavailableError: ONNX Runtime is missing, or refuses the file or the provider; or
            the state does not fit into memory.
    """

    def __init__(
        self,
        model: Model | StepFile,
        weights: Weights | None = None,
        *,
        init: Init = None,
        resume: PathLike[str] | str | Begin | None = None,
        lr: Rate | None = None,
        hyperparameters: Mapping[str, float] | None = None,
        state: Mapping[str, str] | None = None,
        outputs: Sequence[str] = (),
        provider: str | None = None,
        dims: Mapping[str, int] | None = None,
        threads: int = 0,
        spin: bool = True,
        in_place: bool = True,
        guard: bool = True,
        seed: int = 0,
        measure: bool = False,
    ) -> None:
        TrainOptions(seed=seed, threads=threads)  # within their bounds, or refused
        step = model if isinstance(model, StepFile) else read_step(model, dims, state)
        require_update(step)
        require_runtime()
        require_room(step.state_bytes, "the weights and the optimizer state of the step")
        self.file = file = step.without_values()
        slots = {slot.name: slot for slot in file.state}
        self._keys = {"": {name: name for name in slots}}
        self._wanted = Wanted(file.fingerprint, slots, file.knobs)
        given, about = first_state([file], self._wanted, weights, resume)
        values, notes = initial_state(step, given, init, seed)
        del step, given, model
        self.notes = (*file.contract.notes, *notes)
        self._pairs = dict(file.contract.new_values)
        self.batch_slots = tuple(file.named(Role.BATCH))
        self._knobs = Knobs(file.named(Role.HYPERPARAMETER), about.hyperparameters)
        for name, value in (hyperparameters or {}).items():
            self.set(name, value)
        if lr is not None:
            self.lr = lr
        self._knobs.require_all()
        session, planned = planned_for(file.metadata)
        provider = provider or planned
        self.request = RunRequest(
            session, provider, file.dims, seed=seed, threads=threads, spin=spin
        )
        require_device(file.model, provider)
        self._skips = file.tells_skipping
        wanted = self._fetched(outputs)
        given_to = (file.model, self._pairs, self.loss_name, self.request, file.folder)
        self.placing = place(*given_to, in_place=in_place, guarded=guard)
        if guard and self.loss_name is not None and not self.placing.keeps:
            self.notes += (NO_GUARD,)
        self._open(values, wanted, measure, about.steps)
        self.outputs: dict[str, Array] = {}
        self.metrics: dict[str, float] = {}
        self.seconds = 0.0
        self.loss_scale: float | None = None
        self.skipped = False
        self._sent: dict[str, bytes] = {}
        self._data: Batches | None = None
        self._data_state = self._place = about.data
        self._prediction: tuple[dict[str, int], Predicted] | None = None

    def _open(self, values: dict[str, Array], wanted: list[str], measure: bool, steps: int) -> None:
        from memplan.runtime.training_session import TrainingSession  # imports onnxruntime

        self.session = TrainingSession(
            self.placing.model.SerializeToString(),
            self.request,
            self.file.folder,
            in_place=self.placing.in_place,
            second=self.placing.second,
            wanted=wanted,
            guard=self.placing.guard,
            measured=measure,
        )
        self.memory = StepMemory(self.session, self.file, values, steps)

    def _fetched(self, outputs: Sequence[str]) -> list[str]:
        """The outputs that are fetched, the loss first."""
        file = self.file
        there = [value.name for value in file.model.graph.output]
        for name in outputs:
            if name not in there or name in self._pairs:
                what = "is state: see state_dict()" if name in self._pairs else "is not an output"
                raise UsageError(f"outputs: '{name}' {what}", f"outputs: {', '.join(there[:5])}")
        loss = () if file.contract.loss is None else (file.contract.loss,)
        told = (FOUND_INF,) if self._skips else ()
        return list(dict.fromkeys([*loss, *told, *file.metrics, *outputs]))

    # --- What changes per step -----------------------------------------------------------------

    @property
    def lr(self) -> Rate | None:
        """The learning rate: a number, or a function of the number of the step."""
        return self._knobs.rate_value

    @lr.setter
    def lr(self, value: Rate) -> None:
        self._knobs.set_rate(value)

    def set(self, name: str, value: Rate) -> None:
        """Give a hyperparameter a value for all steps to come, or a function of their number.

        Raises:
            UsageError: the step has no such hyperparameter, or it takes no such number.
        """
        self._knobs.set(name, value)

    # --- Steps ---------------------------------------------------------------------------------

    def step(self, batch: Batch | None = None, /, **arrays: Any) -> float:
        """Take one step, and return its loss (nan where the step has none).

        Args:
            batch: arrays by name; names that are Python's may be given as keywords instead.
            arrays: further arrays by name. Hyperparameters (``lr=...``) may be among them: they
                hold for this step.

        Raises:
            UsageError: a name, type or shape of the batch does not fit; nothing was run.
            TrainingError: the loss is not a finite number; the message says whether the state is as
                it was before.
            RuntimeUnavailableError: the run failed.
        """
        if self.memory.broken:
            raise UsageError(self.memory.broken, "load a checkpoint: resume(path)")
        given = {**require_names({} if batch is None else batch), **arrays}
        values = self._knobs.taken_from(given, self.steps + 1, self.file.slots)
        values |= {s.name: s.default for s in self.batch_slots if s.default is not None}
        checked = checked_batch(self.batch_slots, given)
        for name, value in {**values, **checked}.items():
            bits = b"" if name in checked else value.tobytes()
            if not bits or self._sent.get(name) != bits:  # what is there is not sent again
                self.session.set(name, value)
                self._sent[name] = bits
        self.memory.give_counters()
        if self.file.scales_loss:
            self.loss_scale = float(self.session.get(LOSS_SCALE).reshape(-1)[0])
        with deferred_signals():  # else the state may be partly that of the next step
            return self._run()

    def _run(self) -> float:
        from memplan.runtime.training_session import Refused

        memory = self.memory
        memory.broken = "a step was interrupted: the state may be partly that of the next step"
        started = time.perf_counter()
        try:
            found = self.session.run()
        except Refused:
            memory.broken = ""
            raise self._not_a_number("nan or infinite") from None
        except MemplanError as error:
            memory.broken = "a step failed while it wrote in place: the state is partly new"
            self._understand(error)
            raise
        loss = self.loss_name
        value = math.nan if loss is None else float(found[loss].reshape(-1)[0])
        if loss is not None and not math.isfinite(value):
            wrong = self._not_a_number(str(value))
            memory.broken = ""
            if not self.placing.keeps:
                self.session.accept()
                memory.steps += 1
            raise wrong
        self.session.accept()
        memory.steps += 1
        self.outputs = found
        self.metrics = {name: float(found[name].reshape(-1)[0]) for name in self.file.metrics}
        self.skipped = self._skips and bool(found[FOUND_INF])
        self.seconds = time.perf_counter() - started
        memory.broken = ""
        return value

    def _understand(self, error: MemplanError) -> None:
        """Find out whether a run that failed has left the state whole, and what it failed for."""
        failed = None
        if self.session.failed is not None:
            with suppress(MemplanError):
                failed = find_failed(
                    self.placing, self.session.failed, self.request, self.file.folder
                )
        if not self.placing.in_place or (failed is not None and failed.early):
            self.memory.broken = ""
        reads = () if failed is None else failed.reads
        held = {s.name: self.session.get(s.name) for s in self.batch_slots if s.name in reads}
        told = [
            f"'{name}' of the data holds {value.min()} to {value.max()}"
            for name, value in held.items()
            if value.dtype.kind in "iu" and value.size
        ]
        error.message = "; ".join(part for part in (error.message, " and ".join(told)) if part)

    def _not_a_number(self, what: str) -> TrainingError:
        begin = f"the loss of step {self.steps + 1} is {what}"
        if self.placing.keeps:
            return TrainingError(
                f"{begin}; the state is as it was before this step",
                "look at the batch, or go on with a smaller learning rate",
            )
        return TrainingError(
            f"{begin}; its update is in the state, as guard=False was asked for",
            "load a checkpoint: resume(path)",
        )

    def train(
        self,
        data: Iterable[Batch] | Mapping[str, Any] | PathLike[str] | str,
        steps: int | None = None,
        *,
        batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        ready_batches: bool = False,
    ) -> Iterator[StepReport]:
        """Step through data, and yield a report per step.

        Args:
            data: batches, one after the other; or arrays by name (a mapping, or an ``.npz`` file)
                that batches are cut from along the first axis.
            steps: how many; None: as long as there are batches, which arrays never run out of.
            batch: samples per batch, where the step leaves it open.
            shuffle: whether the samples of arrays change places in every epoch.
            seed: of their order.
            ready_batches: whether the first axis of arrays is that of whole batches.

        Raises:
            UsageError: the data does not fit.
            TrainingError, RuntimeUnavailableError: see :meth:`step`.
        """
        source: Iterable[Batch]
        if isinstance(data, str | PathLike | Mapping):
            how = {"shuffle": shuffle, "ready_batches": ready_batches}
            source = Batches(self.batch_slots, data, size=batch, seed=seed, **how)
        else:
            source = data
        if isinstance(source, Batches):
            self._data = source
            if self._data_state is not None:
                source.restore(self._data_state)
                self._data_state = None
            self._place = source.state()
        for each in islice(source, steps):
            loss = self._step_of(source, each)
            rate, scale = self._present_rate(), self.loss_scale
            told = self.skipped, dict(self.metrics)
            yield StepReport(self.steps, loss, self.seconds, rate, scale, *told)

    def _step_of(self, source: Iterable[Batch], batch: Batch) -> float:
        """Take a step with a batch of ``source``. A checkpoint has the place behind the last batch
        that was trained with, not behind one that failed."""
        before = self.steps
        try:
            return self.step(batch)
        except RuntimeUnavailableError as error:
            which = f", {source.last}" if isinstance(source, Batches) else ""
            error.message = f"step {before + 1}{which}: {error.message}"
            raise
        finally:
            if isinstance(source, Batches) and self.steps != before:
                self._place = source.state()

    def _present_rate(self) -> float | None:
        rate = self._knobs.rate
        return None if rate is None else float(self.session.get(rate).reshape(-1)[0])

    # --- State ---------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self.memory.steps

    @property
    def numbers(self) -> dict[str, float]:
        """The hyperparameters that were given as numbers."""
        return self._knobs.numbers

    @property
    def _trainers(self) -> dict[str, Trainer]:
        return {"": self}

    def _progress(self) -> Progress:
        return Progress(self.file.fingerprint, self.steps, self.numbers, self._place)

    def adopt(self, about: Progress) -> None:
        self._knobs.adopt(about.hyperparameters)
        self.memory.steps = about.steps
        self._data_state = self._place = about.data
        if self._data is not None and about.data is not None:
            self._data.restore(about.data)

    # --- What it is ----------------------------------------------------------------------------

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """Where every new value goes, and why not in place."""
        placing = self.placing
        return tuple(
            Binding(
                output,
                given,
                self.session.buffers[given].nbytes,
                output in placing.in_place,
                placing.reasons.get(output, ""),
            )
            for output, given in self._pairs.items()
        )

    @property
    def loss_name(self) -> str | None:
        """The output that is the loss, if there is one."""
        return self.file.contract.loss

    def predicted(self) -> Predicted | None:
        """The memory of every step of this trainer, the first and later ones; None in a plain
        session, and before the first step where a batch decides on sizes.

        Raises:
            ModelError: the runtime decides on a shape while it runs.
        """
        if self.request.session == "default":
            return None
        sizes = {
            name: size
            for slot in self.batch_slots
            if slot.name in self.session.buffers
            for name, size in zip(slot.shape, self.session.buffers[slot.name].shape, strict=True)
            if isinstance(name, str)
        }
        if not self.file.open_sizes <= set(sizes):
            return None
        if self._prediction is None or self._prediction[0] != sizes:
            model, reasons = self.placing.model, self.placing.reasons
            known = {**self.file.dims, **sizes}
            self._prediction = sizes, predict(model, self._pairs, reasons, self.request, known)
        return self._prediction[1]

    def measured_peaks(self) -> list[int]:
        """Dynamic bytes at the peak of every step so far, as ONNX Runtime's profiler has them. For
        a trainer with ``measure=True``.

        The session is opened anew for it, so random operators begin their numbers again.
        """
        return self.session.collect_peaks()

    def close(self) -> None:
        """Let go of the session and its memory."""
        self.session.close()

    def __repr__(self) -> str:
        return description(self)
