"""State by name, of one step or of several: given out, taken in, written and read.

All trainers do this alike: they differ in the names that state has outside, in what counts as
progress, and in nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, MutableMapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from memplan.api.source import Model
from memplan.errors import UsageError
from memplan.ir.roles import SHARED, Role
from memplan.ir.stated import some
from memplan.training.checkpoint import Progress, Wanted, load_checkpoint, save_checkpoint
from memplan.training.forward_file import averaged, export_forward
from memplan.training.initial import fitting, hint_of_state
from memplan.training.step_file import StepFile
from memplan.units import counted

if TYPE_CHECKING:
    from memplan.runtime.training_session import TrainingSession
    from memplan.training.trainer import Trainer

Array = npt.NDArray[Any]
Steps = TypeVar("Steps")


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


class StepMemory:
    """State by name. ``steps``: how many were taken; ``broken``: why the state is not that of a
    whole step, empty where it is.

    Args:
        session: where it lies.
        file: the step.
        values: first values of all state; taken out one by one, as each would be there twice.
        steps: after how many steps these are.
    """

    def __init__(
        self,
        session: TrainingSession,
        file: StepFile,
        values: MutableMapping[str, Array],
        steps: int,
    ) -> None:
        self.session, self.steps, self.broken = session, steps, ""
        renewed = set(file.contract.new_values.values())
        # Counters that the step does not renew are counted here.
        self.counters = {
            slot.name: (values[slot.name] - steps).astype(slot.dtype)
            for slot in file.named(Role.STEP_COUNTER)
            if slot.name not in renewed
        }
        for name in list(values):
            session.set(name, values.pop(name))
        self.renewed = renewed | self.counters.keys()
        """The state that steps change."""

    def get(self, name: str) -> Array:
        """A copy of a present value."""
        if name in self.counters:
            first = self.counters[name]
            return np.asarray((first + self.steps).astype(first.dtype))
        return self.session.get(name)

    def set(self, name: str, value: Array) -> None:
        """Give state a new value of its type and shape; a counter is counted on from there."""
        if name in self.counters:
            self.counters[name] = (value - self.steps).astype(value.dtype)
        else:
            self.session.set(name, value)

    def give_counters(self) -> None:
        """Let the session have the counters' present values."""
        for name in self.counters:
            self.session.set(name, self.get(name))


class TrainingState(ABC, Generic[Steps]):
    """State by name and checkpoints, of one step or of several.

    ``notes``: what is odd about the files, those that were exported among them. ``_keys``, by the
    name of a step: the name that state has outside → its name in the step. State that several steps
    have in one place has one name. ``_wanted``: what a checkpoint is of, in its order.
    """

    notes: tuple[str, ...]
    _keys: Mapping[str, Mapping[str, str]]
    _wanted: Wanted

    @property
    @abstractmethod
    def _trainers(self) -> Mapping[str, Trainer]:
        """The trainers of single steps by name, which have the state."""

    @property
    @abstractmethod
    def steps(self) -> Steps:
        """How many steps were taken."""

    @abstractmethod
    def _progress(self) -> Progress:
        """What a checkpoint says beside the state."""

    @abstractmethod
    def adopt(self, about: Progress) -> None:
        """Go on as if so many steps had been taken, with these hyperparameters.

        Raises:
            UsageError: a hyperparameter takes no such number.
        """

    @property
    def _files(self) -> tuple[Path, ...]:
        """The model's own files, which nothing is written over."""
        return tuple(path for one in self._trainers.values() for path in one.file.files)

    @property
    def is_whole(self) -> bool:
        """Whether the state is that of a step; not if one failed while it wrote in place."""
        return not any(one.memory.broken for one in self._trainers.values())

    def state_dict(self) -> dict[str, Array]:
        """Copies of all state by name: parameters, optimizer state, statistics, counters."""
        places = {
            key: (one.memory, inside)
            for name, one in self._trainers.items()
            for key, inside in self._keys[name].items()
        }
        return {key: places[key][0].get(places[key][1]) for key in self._wanted.state}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Give state new values. Steps are counted on.

        Args:
            state: arrays by name, as :meth:`state_dict` gives them.
            strict: whether all state must be named; else what is not named keeps its value.

        Raises:
            UsageError: a name, type or shape does not fit, or one is missing; nothing was changed.
        """
        slots = self._wanted.state
        given = require_names(state)
        for key in given:
            if key not in slots:
                files = [one.file for one in self._trainers.values()]
                raise UsageError(
                    f"'{key}' is not state of this step", hint_of_state(key, files, self._wanted)
                )
        checked = {key: fitting(slots[key], value) for key, value in given.items()}
        require_names(given, slots if strict else ())
        for name, one in self._trainers.items():
            memory, keys = one.memory, self._keys[name]
            for key in keys.keys() & checked.keys():
                memory.set(keys[key], checked[key])
            kept = keys.keys() & slots.keys() - checked.keys()
            if all(keys[key] in memory.counters for key in kept):
                memory.broken = ""

    def save(self, path: PathLike[str] | str) -> None:
        """Write a checkpoint from which :meth:`resume` goes on to the bit: state, numbers of steps,
        hyperparameters, and the place in the data of ``train``.

        A function for the learning rate is not in it. The file is replaced atomically.

        Raises:
            UsageError: it cannot be written; what was there is as it was.
            TrainingError: the state is not finite, and the checkpoint that is there is.
        """
        renewed = set()
        for name, one in self._trainers.items():
            if one.memory.broken:
                raise UsageError(one.memory.broken, "such a state is not worth a checkpoint")
            renewed |= {k for k, inside in self._keys[name].items() if inside in one.memory.renewed}
        save_checkpoint(path, self.state_dict(), self._progress(), renewed, self._files)

    def resume(self, path: PathLike[str] | str) -> Steps:
        """Go on where a checkpoint was written; the number of steps.

        Raises:
            UsageError: it cannot be read, or is of another model.
        """
        state, about = load_checkpoint(path, self._wanted)
        self.adopt(about)
        self.load_state_dict(state)
        return self.steps

    def export_forward(
        self,
        path: PathLike[str] | str,
        forward: Model,
        *,
        ema: bool = False,
        force: bool = False,
    ) -> tuple[str, ...]:
        """Write a forward model with the trained values, by name, type and shape: what to say of
        it, which goes into ``notes`` too.

        Args:
            path: the file.
            forward: what ``grad`` was given, or the network in evaluation, with the same names.
            ema: with the moving averages of the weights (``X.ema``) in place of these.
            force: replace a file that is there.

        Raises:
            UsageError: the file cannot be written, ``forward`` does not belong to the step, or the
                step keeps no averages.
            ModelError: ``forward`` cannot be read, or the file would have more than 2 GiB.
        """
        slots = [slot for slot in self._wanted.state.values() if slot.role in SHARED]
        state = self.state_dict()
        if ema:
            state = averaged(slots, state)
        said = export_forward(forward, slots, state, path, self._files, force=force)
        self.notes = tuple(dict.fromkeys((*self.notes, *said)))
        return said
