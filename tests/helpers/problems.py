"""Small abstract planning problems for tests, and what is best for them by brute force."""

import re
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


_OP = re.compile(
    r"(\w+)(?:=(view|inplace))?\(([\w ]*)\)(?::(\d+))?(?:\$([\d.]+))?(!?)(\??)((?:\+[\w:=]+)*)"
)


def ops(text: str) -> list[Op]:
    """Operators as text: ``name(reads):bytes$seconds``, 1 of each unless it says so.

    ``name=view(a)`` (of no bytes and no seconds) and ``name=inplace(a)``: what it makes of its
    first read. ``!``: a graph output; ``?``: it must not run again, as a draw of random numbers.
    Behind ``+``: a further output (``+mask:1``), or a field of :class:`Op` (``+workspace=6``).
    """
    found = []
    for word in re.split(r"\s+(?![^(]*\))", text.strip()):
        match = _OP.fullmatch(word)
        assert match, word
        name, like, reads, nbytes, cost, output, drawn, more = match.groups()
        least = 0 if like == "view" else 1
        fields: dict[str, object] = {"nbytes": int(nbytes or least), "cost": float(cost or least)}
        fields["more"] = tuple((n, int(b)) for n, b in re.findall(r"\+(\w+):(\d+)", more))
        for key, value in re.findall(r"\+(\w+)(?:=(\w+))?(?![\w:])", more):
            fields[key] = int(value) if value.isdigit() else value or True
        found.append(
            Op(name, reads, like=like or "", output=bool(output), again=not drawn, **fields)  # type: ignore[arg-type]
        )
    return found


class Case:
    """Operators in order, as a problem (:func:`ops`); sequences are written as node names.

    What is read and not made is resident."""

    def __init__(self, *operators: str | Op) -> None:
        self.ops = [o for it in operators for o in (ops(it) if isinstance(it, str) else [it])]
        self.place = {op.name: k for k, op in enumerate(self.ops)}
        made = dict.fromkeys(name for op in self.ops for name, _ in self._outputs(op))
        read = dict.fromkeys(name for op in self.ops for name in op.reads.split())
        self.resident = len(read.keys() - made.keys())
        names = [name for name in read if name not in made] + list(made)
        self.tensors = {name: k for k, name in enumerate(names)}
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


LONG_SKIP = Case("""
    t0(x):4  t1(t0):4  t2(t1):4  t3(t2):4  t4(t3):4  t5(t4):4  t6(t5):4  t7(t6):4  s(t7)
    join(s t0)!""")
# b can only be made again from a, which is gone by then.
NESTED = Case("""
    a(x):4$2  b(a):4  p1(b):4 p2(p1):4 p3(p2)  q1(p3):4 q2(q1):4 q3(q2)  join(q3 b)!""")


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
