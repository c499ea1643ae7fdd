"""A joint graph as a problem for the planner, and the least that any plan needs.

The backward pass begins at the *boundary*: a node of the problem that reads what the forward pass
returns and makes the tangents. What runs before it is the forward graph, what runs behind it the
backward graph, and what crosses it is saved. So one sequence says everything: the order in both
halves, what is saved, and what is computed again, where, and how often.

Operators run one after the other, results are allocated when they run, and storages are freed
behind their last reader, as in the code that AOTAutograd generates for the backend ``aot_eager``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from memplan.solver.problem import NONE, Arrays, Ints, Problem
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

    def problem(self, budget: int) -> Problem:
        """The problem for a budget of dynamic bytes."""
        count = len(self.arrays.cost)
        none, forward = np.zeros(count, np.bool_), np.arange(count) < self.joint.forward
        return Problem(self.arrays, self.order, budget, self.order, none, ~none, forward)

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


def encode_joint(joint: Joint, costs: Sequence[float]) -> EncodedJoint:
    """Encode a joint graph; ``costs``: seconds of its operators."""
    count, held, roots = len(joint.operators), set(joint.held), joint.roots()
    ends = [each for each in joint.tangents if is_root(value_of(each))]
    pinned = {roots[t] for t in (*joint.forward_outputs, *joint.backward_outputs, *ends)} - held
    order = [*range(joint.forward), count, *range(joint.forward, count)]
    rank = {node: place for place, node in enumerate(order)}
    problem, number, sizes = ProblemBuilder(), dict[fx.Node, int](), dict[fx.Node, int]()
    for each in (*joint.held, *joint.tangents):
        sizes[each] = storage_bytes(value_of(each))
        number[each] = problem.add_tensor(sizes[each], resident=each in held, pinned=each in pinned)
    for index, op in enumerate(joint.operators):
        own = []
        for node, nbytes, shared in zip(op.results, op.nbytes, op.shares, strict=True):
            # The planner looks at what a view lies in; a view of no bytes would be free to keep.
            size = nbytes if shared is None else sizes[roots[shared]]
            maker = NONE if op.refusal else index
            tensor = problem.add_tensor(size, pinned=node in pinned, maker=maker)
            own.append(Output(tensor, NONE if shared is None else number[shared]))
            if node is not None:
                number[node], sizes[node] = tensor, size
        reads = [number[each] for each in op.reads]
        scratch = scratch_bytes(op.node)
        problem.add_node(costs[index], reads, own, workspace=scratch, rank=rank[index])
    outputs = sorted({number[each] for each in joint.forward_outputs})
    begun = [Output(number[each]) for each in joint.tangents]
    problem.add_node(0.0, outputs, begun, rank=rank[count])
    for first, second in _pairs(joint, roots):
        problem.order_after(first, second)
    arrays = problem.build()
    arrays = arrays._replace(
        fleeting=np.ones(len(arrays.writes), np.bool_),
        overwriter=_over(joint, roots, number, len(arrays.nbytes)),
    )
    floor = _floor(joint, roots, sizes, pinned)
    return EncodedJoint(joint, arrays, np.asarray(order, np.int64), floor)


def _pairs(joint: Joint, roots: Mapping[fx.Node, fx.Node]) -> list[tuple[int, int]]:
    """What must run before what, where data does not say so."""
    boundary = len(joint.operators)
    found: set[tuple[int, int]] = set()
    drawn: int | None = None
    readers: dict[fx.Node, list[int]] = {}
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
            found.update((reader, index) for reader in readers.get(roots[target], ()))
        for each in op.reads:
            readers.setdefault(roots[each], []).append(index)
    return sorted(found)


def _over(
    joint: Joint, roots: Mapping[fx.Node, fx.Node], number: Mapping[fx.Node, int], tensors: int
) -> Ints:
    """Who writes over the resident memory in which a tensor lies, by tensor."""
    written = [(index, op) for index, op in enumerate(joint.operators) if written_to(op.node)]
    writer = {roots[target]: index for index, op in written for target in written_to(op.node)}
    if not writer:
        return np.zeros(0, np.int64)
    found = np.full(tensors, NONE, np.int64)
    for node, tensor in number.items():
        found[tensor] = writer.get(roots[node], NONE)
    for _, op in written:  # its own result is the memory after the write
        found[[number[each] for each in op.results if each is not None]] = NONE
    return found


def _floor(
    joint: Joint,
    roots: Mapping[fx.Node, fx.Node],
    sizes: Mapping[fx.Node, int],
    pinned: Collection[fx.Node],
) -> TorchFloor:
    """The most that one operator has in hand at once, or that is returned in the end."""
    held = set(joint.held)
    results = "the results of the step, gradients among them"
    best = TorchFloor(sum(sizes[each] for each in pinned), results)
    for op in joint.operators:
        met = {roots[each] for each in (*op.reads, *op.results) if each is not None} - held
        unread = (n for node, n in zip(op.results, op.nbytes, strict=True) if node is None)
        there = sorted([*(sizes[each] for each in met), *unread], reverse=True)
        need = scratch_bytes(op.node) + sum(there)
        if need > best.nbytes:
            shown = ", ".join(format_bytes(each) for each in there[:3])
            best = TorchFloor(need, f"'{op.name}', which needs {shown} at once")
    return best
