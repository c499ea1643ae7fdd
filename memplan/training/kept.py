"""What a trainer keeps from step to step: its state, given out, taken in, written and read; and the
memory that this takes. The other half of :class:`memplan.training.trainer.Trainer`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memplan.errors import UsageError
from memplan.ir.stated import some
from memplan.runtime.messages import RunRequest
from memplan.training.batches import Batches
from memplan.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from memplan.training.export import averaged, export_forward
from memplan.training.initial import fitting, wanted_of
from memplan.training.knobs import Knobs
from memplan.training.placing import Placing
from memplan.training.predict import Predicted, predict
from memplan.training.step_file import Slot, StepFile
from memplan.training.telling import Binding
from memplan.units import counted

if TYPE_CHECKING:
    from memplan.runtime.training_session import TrainingSession

Array = npt.NDArray[Any]


def require_names(state: Any, wanted: Collection[str] = ()) -> Mapping[str, Any]:
    """Values by name: a batch, or state.

    Raises:
        UsageError: they are no mapping of names, or one of ``wanted`` is missing.
    """
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise UsageError(
            f"expected a mapping of arrays by name, got {str(state)[:40]}",
            "as in {'x': array}, or as state_dict() gives it",
        )
    missing = sorted(name for name in wanted if name not in state)
    if missing:
        raise UsageError(
            f"no value for {some(missing)} of {counted(len(wanted), 'tensor')} of state",
            "strict=False leaves them as they are",
        )
    return state


class Kept:
    """State by name, checkpoints and export. ``steps``: how many were taken; ``notes``: what is to
    be said of first values; ``request``: the kind of session; ``placing``: where new values go."""

    steps: int
    notes: tuple[str, ...]
    request: RunRequest
    placing: Placing
    _file: StepFile
    _session: TrainingSession
    _knobs: Knobs
    _pairs: dict[str, str]
    _counters: dict[str, Array]
    _batch_slots: list[Slot]
    _broken: str
    _data: Batches | None
    _data_state: Mapping[str, Any] | None
    _place: Mapping[str, Any] | None
    _prediction: tuple[object, Predicted] | None

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """Where every new value goes, and why not in place."""
        placing = self.placing
        return tuple(
            Binding(
                output,
                given,
                self._session.buffers[given].nbytes,
                output in placing.in_place,
                placing.reasons.get(output, ""),
            )
            for output, given in self._pairs.items()
        )

    @property
    def numbers(self) -> dict[str, float]:
        """The hyperparameters that were given as numbers."""
        return self._knobs.numbers

    def adopt(self, steps: int, hyperparameters: Mapping[str, float]) -> None:
        """Go on as if so many steps had been taken."""
        self.steps = steps
        self._knobs.adopt(hyperparameters)

    @property
    def file(self) -> StepFile:
        """The step that was read."""
        return self._file

    @property
    def loss_name(self) -> str | None:
        """The output that is the loss, if there is one."""
        return self._file.contract.loss

    @property
    def batch_slots(self) -> tuple[Slot, ...]:
        """The inputs that make up a batch."""
        return tuple(self._batch_slots)

    @property
    def is_whole(self) -> bool:
        """Whether the state is that of a step; not if one failed while it wrote in place."""
        return not self._broken

    @property
    def _state_names(self) -> list[str]:
        return [slot.name for slot in self._file.state if slot.name not in self._counters]

    @property
    def renewed(self) -> set[str]:
        """The state that steps change."""
        return {*self._pairs.values(), *self._counters}

    def state_dict(self) -> dict[str, Array]:
        """Copies of all state by name: parameters, optimizer state, statistics, counters."""
        found = {name: self._session.get(name) for name in self._state_names}
        for name, first in self._counters.items():
            found[name] = np.asarray((first + self.steps).astype(first.dtype))
        return found

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Give state new values. Steps are counted on.

        Args:
            state: arrays by name, as :meth:`state_dict` gives them.
            strict: whether all state must be named; else what is not named keeps its value.

        Raises:
            UsageError: a name, type or shape does not fit, or one is missing; nothing was changed.
        """
        slots = {slot.name: slot for slot in self._file.state}
        given = require_names(state)
        for name in given:
            if name not in slots:
                raise self._file.no_state(name)
        checked = {name: fitting(slots[name], value) for name, value in given.items()}
        require_names(given, slots if strict else ())
        for name, value in checked.items():
            if name in self._counters:
                self._counters[name] = (value - self.steps).astype(value.dtype)
            else:
                self._session.set(name, value)
        if set(checked) >= set(self._state_names):
            self._broken = ""

    def save(self, path: PathLike[str] | str) -> None:
        """Write a checkpoint from which :meth:`resume` goes on to the bit: state, number of steps,
        hyperparameters, and the place in the data of :meth:`train`.

        A function for the learning rate is not in it. The file is replaced atomically.

        Raises:
            UsageError: it cannot be written; what was there is as it was.
            TrainingError: the state is not finite, and the checkpoint that is there is.
        """
        if self._broken:
            raise UsageError(self._broken, "such a state is not worth a checkpoint")
        about = Progress(self._file.fingerprint, self.steps, self._knobs.numbers, self._place)
        save_checkpoint(path, self.state_dict(), about, self.renewed, self._file.files)

    def resume(self, path: PathLike[str] | str) -> int:
        """Go on where a checkpoint was written; its number of steps.

        Raises:
            UsageError: it cannot be read, or is of another model.
        """
        self.restore(*load_checkpoint(path, wanted_of(self._file)))
        return self.steps

    def restore(self, state: Mapping[str, Array], about: Progress) -> None:
        """Go on with a state that was as far as ``about`` says.

        Raises:
            UsageError: a name, type or shape does not fit, or one is missing.
        """
        require_names(state, self._state_names)
        self._knobs.adopt(about.hyperparameters)
        self.steps = 0
        own = {n: v for n, v in state.items() if n not in self._counters}
        self.load_state_dict(own, strict=False)
        self.steps = about.steps
        self._data_state = self._place = about.data
        if self._data is not None and about.data is not None:
            self._data.restore(about.data)

    def export_forward(
        self,
        path: PathLike[str] | str,
        outputs: Sequence[str] = (),
        *,
        ema: bool = False,
        force: bool = False,
    ) -> list[str]:
        """Write the forward part with its trained weights as an ONNX file; the names of its
        outputs.

        Args:
            path: the file.
            outputs: tensors of the graph; by default its outputs that the forward part makes, or
                where it has none, what the loss is made of.
            ema: with the moving averages of the weights (``X.ema``) in place of these.
            force: replace a file that is there.

        Raises:
            UsageError: the file cannot be written, there is no such tensor, or the step keeps no
                averages.
            ModelError: the forward part has no output, or the file would have more than 2 GiB.
        """
        state = averaged(self._file, self.state_dict()) if ema else self.state_dict()
        done = export_forward(self._file, state, path, outputs, force=force)
        if done.without_place:
            names = ", ".join(f"'{name}'" for name in done.without_place[:3])
            note = (
                f"{path} normalizes by the batch that it is given: no place was found for {names}"
            )
            self.notes = (*self.notes, note)
        return list(done.outputs)

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
            for slot in self._batch_slots
            if slot.name in self._session.buffers
            for name, size in zip(slot.shape, self._session.buffers[slot.name].shape, strict=True)
            if isinstance(name, str)
        }
        if not self._file.open_sizes <= set(sizes):
            return None
        key = tuple(sorted(sizes.items()))
        if self._prediction is None or self._prediction[0] != key:
            placing = self.placing
            known = {**self._file.dims, **sizes}
            found = predict(placing.model, self._pairs, placing.reasons, self.request, known)
            self._prediction = (key, found)
        return self._prediction[1]

    def measured_peaks(self) -> list[int]:
        """Dynamic bytes at the peak of every step so far, as ONNX Runtime's profiler has them. For
        a trainer with ``measure=True``.

        The session is opened anew for it, so random operators begin their numbers again.
        """
        return self._session.collect_peaks()
