"""``memplan.Trainer``: a training loop in five lines."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from memplan.api.rewrite_options import check_most
from memplan.api.source import Model
from memplan.errors import MemplanError, RuntimeUnavailableError, TrainingError, UsageError
from memplan.ir.contract import FOUND_INF, LOSS_SCALE, Role
from memplan.processes.deferred import deferred_signals
from memplan.proto.metadata import planned_for
from memplan.proto.model_checks import require_device
from memplan.runtime.installed import require_runtime
from memplan.runtime.messages import RunRequest
from memplan.runtime.room import require_room
from memplan.training.batches import Batch, Batches, checked_batch
from memplan.training.initial import Init, first_values
from memplan.training.kept import Kept, require_names
from memplan.training.knobs import Knobs, Rate
from memplan.training.placing import find_failed, place
from memplan.training.predict import Predicted
from memplan.training.step_file import StepFile, read_step, require_update
from memplan.training.telling import (
    StepReport,
    among_batch,
    description,
    not_a_number,
)
from memplan.training.trained_weights import Weights

if TYPE_CHECKING:
    from memplan.runtime.training_session import TrainingSession

Array = npt.NDArray[Any]


class Trainer(Kept):
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
        init: ``"random"`` for parameters without a value; or glob → number, array or ``"random"``.
        resume: a checkpoint to go on from, in place of ``weights`` and ``init``.
        lr: the learning rate: a number, or a function of the number of the step (the first is 1).
            Without it, the file's own.
        hyperparameters: further inputs that change by somebody's will, by name.
        state: output → input: whose next value an output is, where the file does not tell.
        outputs: further outputs whose values are wanted after every step, see :attr:`outputs`.
        provider: ``cpu`` or ``cuda``; by default the one that the file was planned for.
        dims: sizes of symbolic dimensions.
        threads: within an operator; 0 leaves them to the runtime.
        in_place: whether new values are written over old ones where that is right.
        guard: whether the state survives a loss that is not a number. Without it all that may be is
            written in place, and such a step cannot be undone.
        seed: of random first values and of the runtime's random operators.
        measure: run under the profiler, for :meth:`measured_peaks`.

    Of a step whose loss is scaled, ``loss_scale`` is what the gradients of the last step began
    with, and ``skipped`` says that one of them was not finite: nothing but the scale changed then.
    ``metrics`` are the numbers beside its loss, by name.

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
        resume: PathLike[str] | str | None = None,
        lr: Rate | None = None,
        hyperparameters: Mapping[str, float] | None = None,
        state: Mapping[str, str] | None = None,
        outputs: Sequence[str] = (),
        provider: str | None = None,
        dims: Mapping[str, int] | None = None,
        threads: int = 0,
        in_place: bool = True,
        guard: bool = True,
        seed: int = 0,
        measure: bool = False,
    ) -> None:
        check_most({"seed": seed, "threads": threads})
        step = model if isinstance(model, StepFile) else read_step(model, dims, state)
        self._file = step
        require_update(step)
        require_runtime()
        require_room(2 * step.state_bytes, "the state of the step and its first values")
        first = first_values(step, weights, init, seed, resume)
        self.notes, about = (*step.contract.notes, *first.notes), first.about
        self._pairs = dict(step.contract.new_values)
        self._batch_slots = step.named(Role.BATCH)
        self._knobs = Knobs(step.named(Role.HYPERPARAMETER), about.hyperparameters)
        for name, value in (hyperparameters or {}).items():
            self.set(name, value)
        if lr is not None:
            self.lr = lr
        self._knobs.require_all()
        session, planned = planned_for(step.metadata)
        self.request = RunRequest(
            session=session,
            provider=provider or planned,
            dims=dict(step.dims),
            seed=seed,
            threads=threads,
        )
        self._skips = step.tells_skipping
        require_device(step.model, self.request.provider)
        told = (FOUND_INF,) if self._skips else ()
        wanted = self._wanted([*told, *step.metrics, *outputs])
        loss = step.contract.loss
        self.placing = place(
            step.model,
            self._pairs,
            loss,
            self.request,
            step.folder,
            in_place=in_place,
            guarded=guard,
        )
        self.steps = about.steps
        self._open(first.values, wanted, measure)
        self._file = step.without_values()
        self.outputs: dict[str, Array] = {}
        self.metrics: dict[str, float] = {}
        self.seconds = 0.0
        self.loss_scale: float | None = None
        self.skipped = False
        self._broken = ""
        self._held: dict[str, bytes] = {}
        self._data: Batches | None = None
        self._data_state = self._place = about.data
        self._prediction: tuple[object, Predicted] | None = None

    def _open(self, values: Mapping[str, Array], wanted: list[str], measure: bool) -> None:
        from memplan.runtime.training_session import TrainingSession  # imports onnxruntime

        self._session = TrainingSession(
            self.placing.model.SerializeToString(),
            self.request,
            self._file.folder,
            in_place=self.placing.in_place,
            second=self.placing.second,
            wanted=wanted,
            guard=self.placing.guard,
            measured=measure,
        )
        for name, value in values.items():
            self._session.set(name, value)
        for slot in self._batch_slots:
            if slot.default is not None:
                self._session.set(slot.name, slot.default)
        # Counters that the step does not renew are counted here.
        renewed = set(self._pairs.values())
        self._counters = {
            slot.name: (values[slot.name] - self.steps).astype(slot.dtype)
            for slot in self._file.named(Role.STEP_COUNTER)
            if slot.name not in renewed
        }

    def _wanted(self, outputs: Sequence[str]) -> list[str]:
        """The outputs that are fetched, the loss first."""
        there = [value.name for value in self._file.model.graph.output]
        for name in outputs:
            if name not in there or name in self._pairs:
                what = "is state: see state_dict()" if name in self._pairs else "is not an output"
                raise UsageError(f"outputs: '{name}' {what}", f"outputs: {', '.join(there[:5])}")
        loss = self._file.contract.loss
        return list(dict.fromkeys([*([loss] if loss else []), *outputs]))

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
        if self._broken:
            raise UsageError(self._broken, "load a checkpoint: resume(path)")
        given = {**require_names({} if batch is None else batch), **arrays}
        knobs = self._knobs.taken_from(given, self.steps + 1, self._file.slots)
        checked = checked_batch(self._batch_slots, given)
        for name, value in checked.items():
            self._session.set(name, value)
        defaults = {
            slot.name: slot.default
            for slot in self._batch_slots
            if slot.default is not None and slot.name not in checked
        }
        for name, value in {**knobs, **defaults}.items():
            if self._held.get(name) != (bits := value.tobytes()):  # what is there is not sent again
                self._session.set(name, value)
                self._held[name] = bits
        for name in checked:
            self._held.pop(name, None)
        for name, first in self._counters.items():
            self._session.set(name, (first + self.steps).astype(first.dtype))
        if self._file.scales_loss:
            self.loss_scale = float(self._session.get(LOSS_SCALE).reshape(-1)[0])
        with deferred_signals():  # else the state may be partly that of the next step
            return self._run()

    def _run(self) -> float:
        from memplan.runtime.training_session import Refused

        self._broken = "a step was interrupted: the state may be partly that of the next step"
        started = time.perf_counter()
        try:
            found = self._session.run()
        except Refused:
            self._broken = ""
            raise self._not_a_number("nan or infinite") from None
        except MemplanError as error:
            self._broken = "a step failed while it wrote in place: the state is partly new"
            self._understand(error)
            raise
        loss = self._file.contract.loss
        value = math.nan if loss is None else float(_as_float(found[loss]))
        if loss is not None and not math.isfinite(value):
            wrong = self._not_a_number(str(value))
            self._broken = ""
            if not self.placing.keeps:
                self._session.accept()
                self.steps += 1
            raise wrong
        self._session.accept()
        self.steps += 1
        self.outputs = found
        self.metrics = {name: float(_as_float(found[name])) for name in self._file.metrics}
        self.skipped = self._skips and bool(found[FOUND_INF])
        self.seconds = time.perf_counter() - started
        self._broken = ""
        return value

    def _understand(self, error: MemplanError) -> None:
        """Find out whether a run that failed has left the state whole, and what it failed for."""
        failed = None
        if self._session.failed is not None:
            with suppress(MemplanError):
                failed = find_failed(
                    self.placing, self._session.failed, self.request, self._file.folder
                )
        if not self.placing.in_place or (failed is not None and failed.early):
            self._broken = ""
        batch = [slot.name for slot in self._batch_slots]
        reads = [name for name in batch if failed is not None and name in failed.reads]
        told = among_batch({name: self._session.get(name) for name in reads}, reads)
        error.message = "; ".join(part for part in (error.message, told) if part)

    def _not_a_number(self, what: str) -> TrainingError:
        return not_a_number(self.steps + 1, what, kept=self.placing.keeps)

    def train(
        self,
        data: Iterable[Batch] | Mapping[str, Any] | PathLike[str] | str,
        steps: int | None = None,
        *,
        batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> Iterator[StepReport]:
        """Step through data, and yield a report per step.

        Args:
            data: batches, one after the other; or arrays by name (a mapping, or an ``.npz`` file)
                that batches are cut from along the first axis.
            steps: how many; None: as long as there are batches, which arrays never run out of.
            batch: samples per batch, where the step leaves it open.
            shuffle: whether the samples of arrays change places in every epoch.
            seed: of their order.

        Raises:
            UsageError: the data does not fit.
            TrainingError, RuntimeUnavailableError: see :meth:`step`.
        """
        source = self.batches(data, batch=batch, shuffle=shuffle, seed=seed)
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

    def batches(
        self,
        data: Iterable[Batch] | Mapping[str, Any] | PathLike[str] | str,
        *,
        batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> Iterable[Batch]:
        """Data as :meth:`train` takes it: arrays and files as :class:`Batches`.

        Raises:
            UsageError: the data does not fit.
        """
        from memplan.training.batches import load_data

        if isinstance(data, str | PathLike):
            data = load_data(data, self._batch_slots)
        if isinstance(data, Mapping):
            return Batches(self._batch_slots, data, size=batch, shuffle=shuffle, seed=seed)
        return data

    def _present_rate(self) -> float | None:
        rate = self._knobs.rate
        return None if rate is None else float(self._session.get(rate).reshape(-1)[0])

    # --- What it is ----------------------------------------------------------------------------

    @property
    def session(self) -> TrainingSession:
        """The session with the state."""
        return self._session

    def close(self) -> None:
        """Let go of the session and its memory."""
        self._session.close()

    def __repr__(self) -> str:
        return description(self)


def _as_float(value: Array) -> Any:
    from memplan.runtime.archive import BFLOAT16, bfloat16_values

    flat = bfloat16_values(value) if value.dtype == BFLOAT16 else value
    return flat.reshape(-1)[0]
