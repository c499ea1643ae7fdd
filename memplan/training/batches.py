"""Batches: what a step takes, checked before anything runs; cut from arrays of samples, or random
for those who want to see a step train."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.errors import UsageError
from memplan.ir.roles import Role
from memplan.runtime.archive import Header, load_arrays, readable, restored
from memplan.runtime.inputs import synthesize
from memplan.runtime.room import require_room
from memplan.training.step_file import Slot, StepFile, opened_step
from memplan.training.trained_weights import as_array

Array = npt.NDArray[Any]
Batch = Mapping[str, Any]
SYNTHETIC = 4
"""Synthetic batches: few, so that a network can learn them by heart."""
_SAME = ("seed", "shuffle", "size", "count")
"""What is the same in all of a run."""
_SCALE = 20  # generated floats are of scale 0.05


def checked_batch(slots: Sequence[Slot], batch: Batch) -> dict[str, Array]:
    """A batch as arrays that the step takes.

    Args:
        slots: the inputs that make up a batch; those with a default may be left out.
        batch: arrays by name. Python numbers and lists take the type that is wanted.

    Raises:
        UsageError: a name, type or shape does not fit.
    """
    wanted = {slot.name: slot for slot in slots}
    _require_known(batch, wanted, "the step has no batch input '{}'")
    _require_all(batch, wanted, "the batch")
    sizes: dict[str, tuple[int, str]] = {}
    return {name: _fitting(wanted[name], value, sizes) for name, value in batch.items()}


def _fitting(slot: Slot, value: Any, sizes: dict[str, tuple[int, str]]) -> Array:
    typed = isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__")
    try:
        array = as_array(value) if typed else np.asarray(value, slot.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"'{slot.name}' is not an array of numbers: {error}") from None
    if array.dtype != slot.dtype or not _has_shape(slot, array.shape, sizes):
        raise UsageError(
            f"'{slot.name}' is {array.dtype}{list(array.shape)}, the step wants {slot.words}",
            f"its type: value.astype('{slot.dtype}')" if array.dtype != slot.dtype else "",
        )
    return array


def _has_shape(slot: Slot, shape: tuple[int, ...], sizes: dict[str, tuple[int, str]]) -> bool:
    """Whether a shape fits; a named size must be the same in the whole batch."""
    if len(shape) != len(slot.shape):
        return False
    for size, wanted in zip(shape, slot.shape, strict=True):
        if isinstance(wanted, int):
            if size != wanted:
                return False
            continue
        known, first = sizes.setdefault(wanted, (size, slot.name))
        if wanted != "?" and known != size:
            raise UsageError(
                f"'{wanted}' is {known} in '{first}' and {size} in '{slot.name}'",
                "a size of one name is the same in all inputs of a batch",
            )
    return True


class Batches:
    """Batches cut from the first axis of arrays, epoch after epoch without end.

    Samples that fill no batch at the end of an epoch are left out. With ``shuffle``, each epoch has
    its own order, from ``seed`` and its number.

    Args:
        slots: the inputs that make up a batch.
        data: arrays by name, or an ``.npz`` file of them.
        size: samples per batch, where the step leaves it open.
        shuffle: whether samples change places.
        seed: of the order.
        ready_batches: whether the first axis is that of whole batches, not of samples.

    Raises:
        UsageError: a file cannot be read; or names, types or shapes do not fit, or there is not one
            whole batch.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        data: Mapping[str, Any] | PathLike[str] | str,
        *,
        size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        ready_batches: bool = False,
    ) -> None:
        self.seed, self.shuffle, self._ready = seed, shuffle, ready_batches
        wanted = {slot.name: slot for slot in slots}
        if isinstance(data, str | PathLike):
            self._arrays = load_data(data, slots, ready_batches)
        else:
            self._arrays = {name: restored(np.asarray(given)) for name, given in data.items()}
            headers = {n: Header(array.shape, array.dtype) for n, array in self._arrays.items()}
            _require_fitting(headers, wanted, ready_batches)
        _require_all(self._arrays, wanted, "the data")
        what = "batches" if ready_batches else "samples"
        self._length = _one_length(self._arrays, what)
        self.size = self._batch_size(wanted, size)
        self.count = self._length // self.size
        if not self.count:
            takes = "" if ready_batches else f", and a batch takes {self.size}"
            raise UsageError(f"the data has {self._length} {what}{takes}")
        self.epoch, self.index = 0, 0
        self._order: tuple[int, npt.NDArray[np.int64]] | None = None

    @property
    def samples(self) -> int | None:
        """How many samples there are; None of ready batches."""
        return None if self._ready or not self._arrays else self._length

    def _batch_size(self, wanted: Mapping[str, Slot], size: int | None) -> int:
        if self._ready and size is not None:
            raise UsageError(f"batch={size}: ready batches are not cut", "leave out batch")
        if self._ready or not self._arrays:
            return 1
        firsts = [wanted[name].shape[0] for name in self._arrays]
        sizes = sorted({first for first in firsts if isinstance(first, int)})
        if len(sizes) > 1:
            raise UsageError(
                f"the inputs of a batch have {sizes} samples",
                "give whole batches: ready_batches=True, or --ready-batches",
            )
        found = sizes[0] if sizes else None
        if size is not None and found is not None and size != found:
            raise UsageError(f"a batch of {size} samples, but the step takes {found}")
        result = size if size is not None else found
        if result is None:
            raise UsageError(
                f"the step leaves the size of a batch open: '{firsts[0]}'",
                f"give it: batch=SIZE, or --dim {firsts[0]}=SIZE",
            )
        return result

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return self

    def __next__(self) -> dict[str, Array]:
        """The next batch."""
        order = self._present_order()
        rows = order[self.index * self.size : (self.index + 1) * self.size]
        at = int(rows[0]) if self._ready else rows
        batch = {name: array[at] for name, array in self._arrays.items()}
        self.index += 1
        if self.index == self.count:
            self.epoch, self.index = self.epoch + 1, 0
        return batch

    @property
    def last(self) -> str:
        """Which batch was given out last, in words."""
        at = self.epoch * self.count + self.index - 1
        epoch, index = divmod(max(at, 0), self.count)
        return f"batch {index + 1} of epoch {epoch + 1}"

    def _present_order(self) -> npt.NDArray[np.int64]:
        """The samples or batches of the present epoch in their order."""
        if self._order is None or self._order[0] != self.epoch:
            order = np.arange(self._length)
            if self.shuffle:
                stream = int(self._ready)  # checkpoints of earlier versions go on in their order
                np.random.default_rng([self.seed, self.epoch, stream]).shuffle(order)
            self._order = self.epoch, order
        return self._order[1]

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` needs to go on with the very next batch."""
        return {name: getattr(self, name) for name in ("epoch", "index", *_SAME)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken.

        Raises:
            UsageError: it was taken of other data, or of another order.
        """
        own = self.state()
        for key in _SAME:
            if state.get(key) != own[key]:
                raise UsageError(
                    f"the checkpoint is of data with {key} {state.get(key)}, this has {own[key]}",
                    "resume with the same data, seed and size of a batch",
                )
        self.epoch, self.index = state["epoch"], state["index"]


def load_data(
    path: PathLike[str] | str, slots: Sequence[Slot], ready_batches: bool = False
) -> dict[str, Array]:
    """The arrays of an ``.npz`` file, which are read if ``slots``, the inputs that make up a batch,
    can take them by their headers.

    Raises:
        UsageError: it cannot be read, or does not fit.
        RuntimeUnavailableError: it does not fit into memory.
    """
    file = Path(path)

    def choose(headers: Mapping[str, Header]) -> list[str]:
        _require_fitting(headers, {slot.name: slot for slot in slots}, ready_batches)
        nbytes = sum(header.nbytes for header in headers.values())
        require_room(nbytes, f"the arrays in {file}", "give fewer samples at a time")
        return list(headers)

    with readable(file, ".npz", "data is an .npz file as numpy.savez writes it"):
        return load_arrays(file, choose)


def _require_fitting(
    headers: Mapping[str, Header], wanted: Mapping[str, Slot], ready_batches: bool
) -> None:
    """Refuse arrays of which the inputs take no samples, or no whole batches.

    Raises:
        UsageError: one has another name, type or shape.
    """
    _require_known(headers, wanted, "the data has an array '{}', which is not a batch input")
    for name, header in headers.items():
        slot, shape = wanted[name], header.shape
        if header.dtype != slot.dtype:
            raise UsageError(f"'{name}' of the data is {header.dtype}, the step wants {slot.dtype}")
        is_ready = len(shape) == len(slot.shape) + 1 and _like(shape[1:], slot.shape)
        if ready_batches and is_ready:
            continue
        if not ready_batches and slot.shape and _like(shape, ("", *slot.shape[1:])):
            continue
        hint = "the first axis of data is that of the samples"
        if ready_batches:
            hint = "with ready batches, the first axis of data is that of the batches"
        elif is_ready or not slot.shape:
            hint = "whole batches: ready_batches=True, or --ready-batches"
        raise UsageError(
            f"'{name}' of the data is {header.dtype}{list(shape)}, the step wants {slot.words}",
            hint,
        )


def _require_known(given: Iterable[str], wanted: Mapping[str, Slot], words: str) -> None:
    """Refuse names that are no inputs of a batch."""
    for name in given:
        if name not in wanted:
            near = get_close_matches(name, wanted, 3)
            raise UsageError(
                words.format(name),
                f"near matches: {', '.join(near)}" if near else f"the step takes {_names(wanted)}",
            )


def _require_all(given: Collection[str], wanted: Mapping[str, Slot], whose: str) -> None:
    """Refuse a batch, or data, without an input that has no default."""
    for name, slot in wanted.items():
        if name not in given and slot.default is None:
            raise UsageError(f"{whose} has no '{name}'", f"the step takes {_names(wanted)}")


def _one_length(arrays: Mapping[str, Array], what: str) -> int:
    """The common length of the first axes; 1 if there are no arrays."""
    lengths = sorted((len(array), name) for name, array in arrays.items())
    if lengths and lengths[0][0] != lengths[-1][0]:
        (low, first), (high, last) = lengths[0], lengths[-1]
        raise UsageError(f"the data has {low} {what} of '{first}' and {high} of '{last}'")
    return lengths[0][0] if lengths else 1


def _like(shape: Sequence[int], wanted: Sequence[int | str]) -> bool:
    return len(shape) == len(wanted) and all(
        not isinstance(b, int) or a == b for a, b in zip(shape, wanted, strict=True)
    )


def _names(slots: Mapping[str, Slot]) -> str:
    return ", ".join(f"'{slot.name}' {slot.words}" for slot in slots.values()) or "nothing"


def synthetic_batches(step: StepFile, seed: int) -> dict[str, Array]:
    """Arrays by name, with :data:`SYNTHETIC` batches along the first axis. Integers that index
    something are below the size of that; floats are normal.

    Raises:
        UsageError: a size is not known, or a type cannot be generated.
        RuntimeUnavailableError: they do not fit into memory.
    """
    slots = [slot for slot in step.named(Role.BATCH) if slot.default is None]
    open_sizes = sorted({d for s in slots for d in s.shape if isinstance(d, str)})
    if open_sizes:
        raise UsageError(
            f"the step leaves the size '{open_sizes[0]}' open", f"--dim {open_sizes[0]}=SIZE"
        )
    graph = opened_step(step.model, step.path, step.dims).graph
    names = {slot.name for slot in slots}
    ids = tuple(index for index in graph.inputs if graph.tensors[index].name in names)
    nbytes = sum(graph.tensors[index].nbytes for index in ids)
    require_room(2 * SYNTHETIC * nbytes, f"{SYNTHETIC} synthetic batches and their copy")
    draws = [synthesize(replace(graph, inputs=ids), seed + k) for k in range(SYNTHETIC)]
    return {name: np.stack([_scaled(draw[name]) for draw in draws]) for name in draws[0]}


def _scaled(value: Array) -> Array:
    """Floats of scale 1, unless they must be positive."""
    if value.dtype.kind != "f" or not value.ndim or value.min(initial=0) >= 0:
        return value
    scaled: Array = (value * _SCALE).astype(value.dtype)
    return scaled
