"""What trainers keep from step to step: state by name, given out, taken in, written and read.

All trainers do this alike, whether they have one step or several: they differ in the names that
state has outside, in what counts as progress, and in nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy.typing as npt

from memplan.api.source import Model
from memplan.errors import UsageError
from memplan.ir.roles import SHARED
from memplan.ir.stated import some
from memplan.training.checkpoint import Progress, Wanted, load_checkpoint, save_checkpoint
from memplan.training.forward_file import averaged, export_forward
from memplan.training.initial import fitting
from memplan.training.step_file import StepFile
from memplan.training.step_memory import StepMemory
from memplan.units import counted

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


def no_state_of(files: Iterable[StepFile], name: str) -> UsageError:
    """The error that a name is not state of any of some steps."""
    listed = list(files)
    return next((f for f in listed if f.has_constant(name)), listed[0]).no_state(name)


class Kept(ABC, Generic[Steps]):
    """State by name and checkpoints, of one step or of several.

    ``_parts`` are the steps, by a name of each; ``_keys``, by these names: the name that state has
    outside → its name in the step. State that several steps have in one place has one name.
    ``notes``: what is odd about the files, those that were exported among them.
    """

    notes: tuple[str, ...]
    _parts: dict[str, StepMemory]
    _keys: Mapping[str, Mapping[str, str]]

    @property
    @abstractmethod
    def steps(self) -> Steps:
        """How many steps were taken."""

    @property
    @abstractmethod
    def _step_files(self) -> list[StepFile]:
        """The steps as they were read, without first values."""

    @property
    @abstractmethod
    def _wanted(self) -> Wanted:
        """What a checkpoint must be of."""

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
        """The model's own files, which no checkpoint is written over."""
        return tuple(path for file in self._step_files for path in file.files)

    @property
    def is_whole(self) -> bool:
        """Whether the state is that of a step; not if one failed while it wrote in place."""
        return not any(part.broken for part in self._parts.values())

    def state_dict(self) -> dict[str, Array]:
        """Copies of all state by name: parameters, optimizer state, statistics, counters."""
        found: dict[str, Array] = {}
        for part, memory in self._parts.items():
            found |= {k: memory.get(n) for k, n in self._keys[part].items() if k not in found}
        return found

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
        for name in given:
            if name not in slots:
                raise no_state_of(self._step_files, name)
        checked = {name: fitting(slots[name], value) for name, value in given.items()}
        require_names(given, slots if strict else ())
        for part, memory in self._parts.items():
            own = {n: checked[k] for k, n in self._keys[part].items() if k in checked}
            for name, value in own.items():
                memory.set(name, value)
            if {*self._keys[part].values()} - memory.counters.keys() <= own.keys():
                memory.broken = ""

    def save(self, path: PathLike[str] | str) -> None:
        """Write a checkpoint from which :meth:`resume` goes on to the bit: state, numbers of steps,
        hyperparameters, and the place in the data of ``train``.

        A function for the learning rate is not in it. The file is replaced atomically.

        Raises:
            UsageError: it cannot be written; what was there is as it was.
            TrainingError: the state is not finite, and the checkpoint that is there is.
        """
        for memory in self._parts.values():
            if memory.broken:
                raise UsageError(memory.broken, "such a state is not worth a checkpoint")
        renewed = {
            key
            for part, memory in self._parts.items()
            for key, name in self._keys[part].items()
            if name in memory.renewed
        }
        save_checkpoint(path, self.state_dict(), self._progress(), renewed, self._files)

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

    def resume(self, path: PathLike[str] | str) -> Steps:
        """Go on where a checkpoint was written; the number of steps.

        Raises:
            UsageError: it cannot be read, or is of another model.
        """
        self._restore(*load_checkpoint(path, self._wanted))
        return self.steps

    def _restore(self, state: Mapping[str, Array], about: Progress) -> None:
        self.adopt(about)
        self.load_state_dict(state)
