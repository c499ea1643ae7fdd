"""What holds state in Python, and how it is given back what it held.

A keeper remembers the contents of one thing that can change in place, and puts them back. None of
them runs code of the user's: contents are read and written by the methods of the built-in types,
and compared by identity.
"""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from types import CellType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from memplan.pytorch.values import content

MISSING: Any = object()
"""In the place of a value that is not there."""
Keeper = Callable[[], None]


def of_container(held: Any) -> Keeper:
    """Of a dictionary, a list, a queue or a set, its order included."""
    kind: Any = next(k for k in (OrderedDict, dict, list, deque, set) if issubclass(type(held), k))

    def read() -> list[Any]:
        if issubclass(kind, dict):
            return [each for pair in kind.items(held) for each in pair]
        return list(kind.__iter__(held))

    def write(values: list[Any]) -> None:
        kind.clear(held)
        if issubclass(kind, dict):
            for key, value in zip(values[::2], values[1::2], strict=True):
                kind.__setitem__(held, key, value)
        else:
            (kind.update if kind is set else kind.extend)(held, values)

    before = read()

    def put_back() -> None:
        now = read()
        if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
            write(before)

    return put_back


def of_cell(held: CellType) -> Keeper:
    """Of a variable that a closure shares."""
    writes = partial(setattr, held), partial(delattr, held)
    return of_names(("cell_contents",), lambda _: in_cell(held), *writes)


def in_cell(held: CellType) -> Any:
    """What a cell holds; MISSING where that is nothing yet."""
    try:
        return held.cell_contents
    except ValueError:
        return MISSING


def of_attribute(held: Any, name: str) -> Keeper:
    """Of one attribute: the defaults of a function, whether a tensor requires a gradient."""
    accesses = (partial(each, held) for each in (getattr, setattr, delattr))
    return of_names((name,), *accesses)


def of_names(
    names: Iterable[str],
    read: Callable[[str], Any],
    write: Callable[[str, Any], None],
    delete: Callable[[str], None],
) -> Keeper:
    """Of values by name, MISSING where there is none: globals, class attributes, slots."""
    values = {name: read(name) for name in names}

    def put_back() -> None:
        for name, value in values.items():
            now = read(name)
            if now is value:
                continue
            if value is MISSING:
                delete(name)
            else:
                write(name, value)

    return put_back


def of_array(held: np.ndarray[Any, Any]) -> Keeper:
    """Of an array."""
    values = np.array(held, copy=True, subok=False)

    def put_back() -> None:
        if held.dtype == object or values.tobytes() != np.asarray(held).tobytes():
            np.copyto(np.asarray(held), values)

    return put_back


def digest_of(contents: Any) -> bytes:
    """What tells the bytes of a buffer from others."""
    return hashlib.blake2b(contents, digest_size=16).digest()


def of_tensor_hooks(held: Tensor) -> Keeper:
    """Of the hooks of a tensor."""
    before = {name: dict(hooks or {}) for name, hooks in tensor_hooks(held).items()}

    def put_back() -> None:
        for name, hooks in tensor_hooks(held).items():
            if hooks is not None and dict(hooks) != before[name]:
                hooks.clear()
                hooks.update(before[name])

    return put_back


def tensor_hooks(held: Tensor) -> dict[str, Any]:
    """The dictionaries of a tensor's hooks, by the attribute that holds them."""
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return {name: getattr(held, name, None) for name in names}


def of_generator(held: Any) -> tuple[Any, Keeper] | None:
    """The state of a generator of random numbers, to be compared, and its keeper; None for
    anything else."""
    kind = type(held)
    if issubclass(kind, random.Random) and not issubclass(kind, random.SystemRandom):
        state: Any = random.Random.getstate(held)
        return state, lambda: random.Random.setstate(held, state)
    if issubclass(kind, np.random.Generator):
        state = held.bit_generator.state
        return repr(state), lambda: setattr(held.bit_generator, "state", state)
    if issubclass(kind, np.random.RandomState):
        state = held.get_state(legacy=False)
        return repr(state), lambda: held.set_state(state)
    if issubclass(kind, torch.Generator):
        state = held.get_state()
        return state.numpy().tobytes(), lambda: held.set_state(state) and None
    return None


class SavedTensor:
    """A tensor that is neither parameter nor buffer, and a copy of it.

    ``digest`` tells its contents from others. Without room, or for a tensor that cannot be read,
    there is no copy.
    """

    def __init__(self, held: Tensor, room: int, before: SavedTensor | None = None) -> None:
        """Read it; the copy may be that of ``before``, which saw the same tensor."""
        self.held, self.copied_bytes = held, 0
        self.copy: Tensor | None = None
        self.shape, self.dtype = tuple(held.shape), held.dtype
        plain = held.detach()
        self.digest = b""
        if plain.is_meta or plain.layout is not torch.strided:
            return
        self.digest = digest_of(content(plain))
        if before is not None and before.copy is not None and before.token == self.token:
            self.copy = before.copy
        elif plain.numel() * plain.element_size() <= room:
            self.copied_bytes = plain.numel() * plain.element_size()
            self.copy = plain.clone()

    @property
    def token(self) -> tuple[Any, ...]:
        """What tells it from others."""
        return ("tensor", self.dtype, self.shape, self.digest, self.held.requires_grad)

    def put_back(self) -> None:
        """Give the tensor its contents back, where they are others."""
        if self.copy is None:
            return
        with torch.no_grad():
            now = self.held.data
            if now.shape != self.shape or now.dtype != self.dtype:
                self.held.data = self.copy.clone()
            elif not torch.equal(now, self.copy):
                now.copy_(self.copy)
