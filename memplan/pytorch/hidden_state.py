"""The state of a step that no graph has: what an earlier call may have left behind in Python.

A captured graph is a function of parameters, buffers, optimizer state and batch. A step of PyTorch
may read anything else. A :class:`HiddenState` is what all of that was at one time: two of them tell
what was changed in between, and each can be put back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import isclose
from types import FunctionType
from typing import Any

import torch

from memplan.pytorch.prepared_step import PreparedStep, user_name
from memplan.pytorch.state_keepers import Keeper
from memplan.pytorch.state_walk import StateWalk, Write
from memplan.pytorch.torch_internals import internal

_EVERYWHERE = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)
"""Hooks of all modules there are."""
_FEW = 1e-6
"""By how much the steps of a counter may differ: sums of floating-point numbers."""
_INSIDE = re.compile(
    r"^(.*\b(?:global|closure|default|attribute|local|argument) )'(\w+)'( of \S+?\.py)?([.\[].+)$"
)
"""The path of something inside of what has a name of its own."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that every step changes by as much: what it is called, what it is now, the change,
    and how it is given another value."""

    path: str
    value: Any
    by: Any
    write: Write


class HiddenState:
    """What a step can reach, as it is now."""

    def __init__(self, prepared: PreparedStep, before: HiddenState | None = None) -> None:
        """Look at everything.

        Args:
            prepared: the step.
            before: an earlier state of the same step, whose copies of tensors may serve again.
        """
        step = prepared.step
        self.prepared = prepared
        self._known: dict[int, tuple[str, Any]] = (
            before._known if before is not None else _known(prepared)
        )
        plain = type(step.loss) is FunctionType
        roots = [("model", step.model), ("loss function" if plain else "loss", step.loss)]
        roots += [
            (f"hooks of all modules ({n})", internal(f"torch.nn.modules.module.{n}"))
            for n in _EVERYWHERE
        ]
        saved = before._walk.tensors if before is not None else {}
        with torch.no_grad():
            self._walk: StateWalk = StateWalk(
                roots, {k: name for k, (name, _) in self._known.items()}, saved
            )

    @property
    def limited(self) -> bool:
        """Whether there is more than was looked at."""
        return self._walk.limited

    def again(self) -> HiddenState:
        """The state as it has become."""
        return HiddenState(self.prepared, self)

    def changed(self, other: HiddenState) -> tuple[str, ...]:
        """What is not the same in another state, by path: numbers first, tensors last; what holds
        something changed is not told beside it, and neither is what a changed thing holds."""
        one, two = self._walk.tokens, other._walk.tokens
        paths = [path for path in {**one, **two} if one.get(path) != two.get(path)]
        outer = set(paths)
        paths = [path for path in paths if not any(p in outer for p in _around(path))]
        tokens = {path: two.get(path) or one[path] for path in paths}
        ordered = sorted(paths, key=lambda path: _rank(tokens[path][0]))
        return tuple(_INSIDE.sub(r"\1'\2\4'\3", path) for path in ordered)

    def put_back(self) -> None:
        """Let everything be as it was at this time, but for iterators, which cannot be turned
        back."""
        for keeper in self._walk.keepers:
            _run(keeper)
        for saved in self._walk.tensors.values():
            _run(saved.put_back)


def counters(states: Sequence[HiddenState]) -> tuple[Counter, ...]:
    """The numbers that go on by the same from each state to the next, as they are in the last."""
    found = []
    for path, (last, write) in states[-1]._walk.numbers.items():
        held = [state._walk.numbers.get(path) for state in states[1:]]
        values = [each[0] for each in held if each is not None]
        if len(values) < len(held):
            continue
        steps = [b - a for a, b in pairwise(values)]
        if steps and steps[0] and all(isclose(s, steps[0], rel_tol=_FEW) for s in steps):
            found.append(Counter(path, last, steps[0], write))
    return tuple(found)


def _known(prepared: PreparedStep) -> dict[int, tuple[str, Any]]:
    """The names of what a graph has, by ``id``, and the tensors, which must live as long."""
    module = prepared.module
    held = (*module.named_parameters(), *module.named_buffers())
    return {id(tensor): (user_name(name), tensor) for name, tensor in held}


def _around(path: str) -> list[str]:
    """The paths of what holds something."""
    return [path[:k] for k in range(1, len(path)) if path[k] in ".['"]


def _rank(kind: Any) -> int:
    """In which order changes are told: what is a reason rather than a result first."""
    plain = ("int", "float", "bool", "str", "NoneType", "count")
    return 0 if kind in plain else 2 if kind in ("tensor", "array") else 1


def _run(keeper: Keeper) -> None:
    with suppress(Exception):  # an object that does not let itself be written
        keeper()
