"""The arrays of a problem, from nodes and tensors that are told one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from memplan.solver.problem import NONE, Arrays, Flags, Ints


@dataclass(frozen=True, slots=True)
class Output:
    """What a node makes: a tensor, which is a view of ``alias``, or may take the storage of one of
    ``inplace``. ``droppable``, ``fleeting``: see :class:`~memplan.solver.problem.Arrays`."""

    tensor: int
    alias: int = NONE
    inplace: tuple[int, ...] = ()
    droppable: bool = False
    fleeting: bool = False


class ProblemBuilder:
    """Tensors and nodes are numbered as they come; a node may name tensors that come later."""

    def __init__(self) -> None:
        self._tensors: list[tuple[int, int, bool, bool, int]] = []
        self._nodes: list[tuple[float, int, int, bool, int]] = []
        self._reads: list[list[int]] = []
        self._outputs: list[list[Output]] = []
        self._turns: list[tuple[int, int]] = []

    def add_tensor(
        self,
        nbytes: int,
        *,
        alike: int | None = None,
        resident: bool = False,
        pinned: bool = False,
        maker: int = NONE,
    ) -> int:
        """A tensor. ``alike``: equal numbers share storage; None: with no other."""
        number = len(self._tensors)
        self._tensors.append((nbytes, number if alike is None else alike, resident, pinned, maker))
        return number

    def add_node(
        self,
        cost: float,
        reads: Iterable[int],
        outputs: Iterable[Output],
        *,
        workspace: int = 0,
        inside: int = 0,
        eager: bool = False,
        rank: int | None = None,
    ) -> int:
        """A node; ``rank``: None: its number."""
        number = len(self._nodes)
        rank = number if rank is None else rank
        self._nodes.append((cost, workspace, inside, eager, rank))
        self._reads.append(list(reads))
        self._outputs.append(list(outputs))
        return number

    def order_after(self, first: int, second: int) -> None:
        """Let one node run before another, where data does not say so: the second reads a tensor
        without bytes that the first makes. Such tensors stand behind all others."""
        self._turns.append((first, second))

    def build(self) -> Arrays:
        """The arrays; nothing may be added afterwards."""
        last = max((alike for _, alike, *_ in self._tensors), default=0)
        token: dict[int, int] = {}
        for first in sorted({first for first, _ in self._turns}):
            token[first] = self.add_tensor(0, alike=last + 1 + len(token))
            self._outputs[first].append(Output(token[first]))
        for first, second in self._turns:
            self._reads[second].append(token[first])
        nbytes, alike, resident, pinned, maker = _columns(self._tensors, 5)
        cost, workspace, inside, eager, rank = _columns(self._nodes, 5)
        made = [output for row in self._outputs for output in row]
        return Arrays(
            read_start=_starts(self._reads),
            reads=_flat(self._reads),
            write_start=_starts(self._outputs),
            writes=_ints([output.tensor for output in made]),
            alias_of=_ints([output.alias for output in made]),
            inplace_start=_starts([output.inplace for output in made]),
            inplace_of=_flat([output.inplace for output in made]),
            droppable=_flags([output.droppable for output in made]),
            fleeting=_flags([output.fleeting for output in made]),
            nbytes=_ints(nbytes),
            alike=_ints(alike),
            resident=_flags(resident),
            pinned=_flags(pinned),
            eager=_flags(eager),
            maker=_ints(maker),
            rank=_ints(rank),
            cost=np.asarray(cost, dtype=np.float64),
            workspace=_ints(workspace),
            inside=_ints(inside),
        )


def _columns(rows: Sequence[tuple[object, ...]], count: int) -> list[tuple[object, ...]]:
    return list(zip(*rows, strict=True)) if rows else [()] * count


def _ints(values: Sequence[object]) -> Ints:
    return np.asarray(values, dtype=np.int64)


def _flags(values: Sequence[object]) -> Flags:
    return np.asarray(values, dtype=np.bool_)


def _starts(rows: Sequence[Sequence[object]]) -> Ints:
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)


def _flat(rows: Iterable[Iterable[int]]) -> Ints:
    return _ints([each for row in rows for each in row])
