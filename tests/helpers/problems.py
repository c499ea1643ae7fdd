"""Small abstract planning problems for tests, and what is best for them by brute force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from memplan.solver.build import Output, ProblemBuilder
from memplan.solver.evaluate import evaluate
from memplan.solver.problem import NONE, Arrays, Ints, Problem


@dataclass(frozen=True)
class Op:
    """A node and the tensor of its name that it makes.

    ``reads``: names, one per slot. ``like``: ``view`` or ``inplace`` of the first read.
    ``rebuilds``: the node stands in no order but can make that tensor again; one that makes a
    tensor of its own for another such node is ranked ``behind`` what that one rebuilds. ``more``:
    further outputs by name, of which ``output_too`` is a graph output.
    """

    name: str
    reads: str = ""
    nbytes: int = 1
    cost: float = 1.0
    like: str = ""
    workspace: int = 0
    inside: int = 0
    output: bool = False
    output_too: str = ""
    again: bool = True
    droppable: bool = False
    fleeting: bool = False
    eager: bool = False
    rebuilds: str = ""
    behind: str = ""
    more: tuple[tuple[str, int], ...] = ()


class Case:
    """Operators in order, as a problem; sequences are written as node names."""

    def __init__(self, *ops: Op, resident: str = "") -> None:
        self.ops = ops
        self.place = {op.name: k for k, op in enumerate(ops)}
        self.tensors: dict[str, int] = {}
        for name in resident.split():
            self.tensors[name] = len(self.tensors)
        self.resident = len(self.tensors)
        for op in ops:
            for name, _ in self._outputs(op):
                self.tensors.setdefault(name, len(self.tensors))
        self.arrays = self.built()

    @staticmethod
    def _outputs(op: Op) -> list[tuple[str, int]]:
        return [(op.rebuilds or op.name, op.nbytes), *op.more]

    def built(self, turns: Sequence[tuple[int, int]] = ()) -> Arrays:
        """The arrays, with an order among some nodes."""
        problem = ProblemBuilder()
        size: dict[str, int] = {}
        maker: dict[str, int] = {}
        pinned: dict[str, bool] = {}
        for k, op in enumerate(self.ops):
            for slot, (name, nbytes) in enumerate(self._outputs(op)):
                size[name] = nbytes
                pinned[name] = (
                    pinned.get(name, False) or (op.output and slot == 0) or name == op.output_too
                )
                if op.again:
                    maker[name] = k
        for t, name in enumerate(self.tensors):
            nbytes = size.get(name, 0)
            problem.add_tensor(
                nbytes,
                alike=nbytes,  # equal size stands for equal dimensions
                resident=t < self.resident,
                pinned=pinned.get(name, False),
                maker=maker.get(name, NONE),
            )
        # Rebuild rules stand right behind the node that they replace, in the order given.
        spread = len(self.ops) + 1
        for k, op in enumerate(self.ops):
            reads = [self.tensors[name] for name in op.reads.split()]
            outputs = [
                Output(
                    self.tensors[name],
                    alias=reads[0] if op.like == "view" and slot == 0 else NONE,
                    inplace=tuple(reads[:1]) if op.like == "inplace" and slot == 0 else (),
                    droppable=op.droppable and slot > 0,
                    fleeting=op.fleeting,
                )
                for slot, (name, _) in enumerate(self._outputs(op))
            ]
            behind = self.place[op.behind or op.rebuilds] if op.rebuilds else k
            problem.add_node(
                op.cost,
                reads,
                outputs,
                workspace=op.workspace,
                inside=op.inside,
                eager=op.eager,
                rank=spread * behind + (k + 1 if op.rebuilds else 0),
            )
        for first, second in turns:
            problem.order_after(first, second)
        return problem.build()

    @property
    def order(self) -> Ints:
        """The sequence without recomputation."""
        return np.asarray([k for k, op in enumerate(self.ops) if not op.rebuilds], np.int64)

    def sequence(self, text: str) -> Ints:
        """Node names → a sequence."""
        return np.asarray([self.place[name] for name in text.split()], np.int64)

    def text(self, sequence: Ints) -> str:
        """A sequence → node names."""
        return " ".join(self.ops[k].name for k in sequence)

    def problem(self, budget: int, start: str = "", protected: str = "") -> Problem:
        """The problem for a budget; ``protected`` recomputations in ``start`` must stay."""
        flags = np.zeros(len(self.ops), np.bool_)
        for name in protected.split():
            flags[self.place[name]] = True
        begin = self.sequence(start) if start else self.order
        movable = np.ones(len(self.ops), np.bool_)
        return Problem(self.arrays, self.order, budget, begin, flags, movable)

    def peak(self, sequence: Ints) -> int:
        """Bytes with workspace."""
        return int(evaluate(self.arrays, sequence).total.max())

    def totals(self, text: str) -> list[int]:
        """Bytes with workspace at every step of a sequence of node names."""
        return [int(nbytes) for nbytes in evaluate(self.arrays, self.sequence(text)).total]

    def cheapest(self, budget: int, most: int) -> float | None:
        """Brute force: the least extra cost in the given order with up to ``most`` clones."""
        costs = [
            float(self.arrays.cost[sequence].sum() - self.arrays.cost[self.order].sum())
            for sequence in self._all(most)
            if self.peak(sequence) <= budget
        ]
        return min(costs, default=None)

    def _earliest(self, op: Op) -> int:
        """The place behind which a node may run again, or a rebuild rule at all."""
        return self.place[op.behind or op.rebuilds or op.name]

    def _all(self, most: int) -> Iterator[Ints]:
        """Every sequence that keeps the order and runs up to ``most`` nodes again."""
        again = sorted({int(node) for node in self.arrays.maker if node != NONE})
        places = [
            (node, position)
            for node in again
            for position in range(1, len(self.order) + 1)
            if position > self._earliest(self.ops[node])
        ]
        for count in range(most + 1):
            for chosen in combinations_with_replacement(places, count):
                ranked = sorted(chosen, key=lambda item: (item[1], self.arrays.rank[item[0]]))
                sequence = self.order
                for node, position in reversed(ranked):
                    sequence = np.insert(sequence, position, node)
                yield sequence


class Clock:
    """A clock for deadlines: every look at it takes ``step`` seconds."""

    def __init__(self, step: float = 1.0, looks: int = 100_000) -> None:
        self.now, self.step, self.left = 0.0, step, looks

    def __call__(self) -> float:
        """The next time."""
        self.left -= 1
        assert self.left > 0, "the search does not end"
        self.now += self.step
        return self.now
