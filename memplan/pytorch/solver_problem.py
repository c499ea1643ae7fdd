"""A joint graph as a problem for the planner, and the least that any plan needs.

The backward pass begins at the *boundary*: a node of the problem that reads what the forward pass
returns and makes the tangents. What runs before it is the forward graph, what runs behind it the
backward graph, and what crosses it is saved. So one sequence says everything: the order in both
halves, what is saved, and what is computed again, where, and how often.

Operators run one after the other, results are allocated when they run, and storages are freed
behind their last reader, as in the code that AOTAutograd generates for the backend ``aot_eager``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import fx

from memplan.pytorch.operators import written_to
from memplan.pytorch.solver_costs import scratch_bytes
from memplan.pytorch.solver_joint import (
    RANDOM,
    Joint,
    in_backward,
    in_forward,
    is_root,
    storage_bytes,
    value_of,
)
from memplan.solver.build import Output, ProblemBuilder
from memplan.solver.problem import NONE, Arrays, Flags, Ints, Problem
from memplan.units import format_bytes


@dataclass(frozen=True, slots=True)
class TorchFloor:
    """Bytes that every plan needs beside the resident ones, and what needs them."""

    nbytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class EncodedJoint:
    """A joint graph as arrays. Node ``i`` is operator ``i``; the last one is the boundary."""

    joint: Joint
    arrays: Arrays
    order: Ints
    floor: TorchFloor

    @property
    def boundary(self) -> int:
        """The node at which the backward pass begins."""
        return len(self.joint.operators)

    def problem(self, budget: int) -> Problem:
        """The problem for a budget of dynamic bytes."""
        count = len(self.arrays.cost)
        return Problem(
            self.arrays,
            self.order,
            budget,
            self.order,
            np.zeros(count, np.bool_),
            np.ones(count, np.bool_),
            self._forward(),
        )

    def without_idle(self, sequence: Ints) -> Ints:
        """A sequence without the runs of which nothing is read before they are repeated.

        PyTorch leaves them out of its graphs, first runs among them: what only the backward pass
        needs, and what is made again there, need not run in the forward pass.
        """
        operators = self.joint.operators
        starts = self.arrays.write_start
        first = {int(each): place for place, each in reversed(list(enumerate(sequence)))}
        returned = {*self.joint.forward_outputs, *self.joint.backward_outputs}
        wanted: set[fx.Node] = set()
        needed = []
        for place in range(len(sequence) - 1, -1, -1):
            index = int(sequence[place])
            if index < len(operators):
                op = operators[index]
                made = {each for each in op.results if each is not None}
                gives_order = int(starts[index + 1] - starts[index]) > len(op.results)
                kept = gives_order or op.refusal or (first[index] == place and made & returned)
                if not kept and not made & wanted:
                    continue
                wanted -= made
                wanted.update(op.reads)
            needed.append(index)
        return np.asarray(needed[::-1], dtype=np.int64)

    def _forward(self) -> Flags:
        flags = np.zeros(len(self.arrays.cost), np.bool_)
        flags[: self.joint.forward] = True
        return flags


class _Tensors:
    """Tensors of a problem, as they are named one by one."""

    def __init__(self) -> None:
        self.of: dict[fx.Node, int] = {}
        self.nbytes: list[int] = []
        self.resident: list[bool] = []
        self.maker: list[int] = []
        self.root: list[int] = []

    def add(
        self, node: fx.Node | None, nbytes: int, resident: bool, maker: int, of: int = NONE
    ) -> int:
        """One tensor more; ``of``: what it is a view of."""
        index = len(self.nbytes)
        self.nbytes.append(nbytes)
        self.resident.append(resident)
        self.maker.append(maker)
        self.root.append(index if of == NONE else self.root[of])
        if node is not None:
            self.of[node] = index
        return index


def encode_joint(joint: Joint, costs: Sequence[float]) -> EncodedJoint:
    """Encode a joint graph; ``costs``: seconds of its operators."""
    tensors = _Tensors()
    count = len(joint.operators)
    for each in joint.held:
        tensors.add(each, storage_bytes(value_of(each)), True, NONE)
    written: list[list[Output]] = []
    made = [tensors.add(t, storage_bytes(value_of(t)), False, NONE) for t in joint.tangents]
    for index, op in enumerate(joint.operators):
        maker = NONE if op.refusal else index
        own = []
        for node, nbytes, shared in zip(op.results, op.nbytes, op.shares, strict=True):
            of = NONE if shared is None else tensors.of[shared]
            # The planner looks at what a view lies in; a view of no bytes would be free to keep.
            size = nbytes if shared is None else tensors.nbytes[of]
            own.append(Output(tensors.add(node, size, False, maker, of), of))
        written.append(own)
    written.append([Output(tensor) for tensor in made])
    outputs = [tensors.of[t] for t in joint.forward_outputs]
    reads = [[tensors.of[t] for t in op.reads] for op in joint.operators]
    reads.append(sorted(set(outputs)))
    pinned = np.zeros(len(tensors.nbytes), np.bool_)
    held = [*outputs, *(tensors.of[t] for t in joint.backward_outputs)]
    held += [tensors.of[t] for t in joint.tangents if is_root(value_of(t))]
    roots = [root for root in {tensors.root[t] for t in held} if not tensors.resident[root]]
    pinned[roots] = True
    order = [*range(joint.forward), count, *range(joint.forward, count)]
    rank = {node: place for place, node in enumerate(order)}
    problem = ProblemBuilder()
    for each in zip(tensors.nbytes, tensors.resident, pinned.tolist(), tensors.maker, strict=True):
        nbytes, resident, held_to_the_end, maker = each
        problem.add_tensor(nbytes, resident=resident, pinned=held_to_the_end, maker=maker)
    scratch = [*(scratch_bytes(op.node) for op in joint.operators), 0]
    for node, cost in enumerate([*costs, 0.0]):
        problem.add_node(cost, reads[node], written[node], workspace=scratch[node], rank=rank[node])
    for first, second in _pairs(joint, tensors):
        problem.order_after(first, second)
    arrays = problem.build()
    arrays = arrays._replace(
        fleeting=np.ones(len(arrays.writes), np.bool_), overwriter=_over(joint, tensors, arrays)
    )
    floor = _floor(joint, arrays, tensors.root)
    return EncodedJoint(joint, arrays, np.asarray(order, np.int64), floor)


def _pairs(joint: Joint, tensors: _Tensors) -> list[tuple[int, int]]:
    """What must run before what, where data does not say so."""
    boundary = len(joint.operators)
    found: set[tuple[int, int]] = set()
    drawn: int | None = None
    readers: dict[int, list[int]] = {}
    for index, op in enumerate(joint.operators):
        if in_forward(op.node):
            found.add((index, boundary))
        if in_backward(op.node):
            found.add((boundary, index))
        if op.refusal == RANDOM:
            # All take from one stream: their turn is part of what they draw.
            if drawn is not None:
                found.add((drawn, index))
            drawn = index
        for target in written_to(op.node):
            others = readers.get(tensors.root[tensors.of[target]], ())
            found.update((reader, index) for reader in others)
        for each in op.reads:
            readers.setdefault(tensors.root[tensors.of[each]], []).append(index)
    return sorted(found)


def _over(joint: Joint, tensors: _Tensors, arrays: Arrays) -> Ints:
    """Who writes over the resident memory in which a tensor lies, by tensor."""
    writer = {
        tensors.root[tensors.of[target]]: index
        for index, op in enumerate(joint.operators)
        for target in written_to(op.node)
    }
    if not writer:
        return np.zeros(0, np.int64)
    found = np.full(len(arrays.nbytes), NONE, np.int64)
    for tensor, root in enumerate(tensors.root):
        found[tensor] = writer.get(root, NONE)
    for op in joint.operators:
        if written_to(op.node):  # its own result is the memory after the write
            found[[tensors.of[each] for each in op.results if each is not None]] = NONE
    return found


def _floor(joint: Joint, arrays: Arrays, root: list[int]) -> TorchFloor:
    """The most that one operator has in hand at once, or that is returned in the end."""
    pinned = np.flatnonzero(arrays.pinned)
    best = TorchFloor(
        int(arrays.nbytes[pinned].sum()), "the results of the step, gradients among them"
    )
    for index, op in enumerate(joint.operators):
        own = arrays.writes[arrays.write_start[index] : arrays.write_start[index + 1]]
        read = arrays.reads[arrays.read_start[index] : arrays.read_start[index + 1]]
        there = {root[t] for t in (*own.tolist(), *read.tolist()) if t < len(root)}
        need = int(arrays.workspace[index])
        need += sum(int(arrays.nbytes[t]) for t in there if not arrays.resident[t])
        if need > best.nbytes:
            largest = sorted(there, key=lambda t: -int(arrays.nbytes[t]))[:3]
            sizes = ", ".join(format_bytes(int(arrays.nbytes[t])) for t in largest)
            best = TorchFloor(need, f"'{op.name}', which needs {sizes} at once")
    return best
