"""Bytes stored per step against seconds per step: the cheapest ways to store less.

For a price λ (bytes for a second), the choice of least stored bytes + λ · seconds of running again
is a minimum cut between what a step is given and what its backward reads (as PyTorch's partitioner
has it, ``torch/_functorch/partitioners.py``, with a price where that has a ban). All prices
together give the lower convex hull of the Pareto front; breakpoints are found as by Eisner and
Severance ("Mathematical techniques for efficient record segmentation in large shared databases",
JACM 23(4), 1976). Pairs have the price in common, so the sums over pairs are on the hull of all
pairs together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from memplan.loops.cell import Kept, trace
from memplan.loops.step import Step
from memplan.proto.nodes import captured_names
from memplan.solver.maxflow import Network

_SCALE = 1 << 16
_MOST_POINTS = 8


@dataclass(frozen=True, slots=True)
class Choice:
    """What is kept of every pair's step; bytes held over all steps, seconds of running again."""

    kept: tuple[Kept, ...]
    nbytes: int
    seconds: float


def front(steps: Sequence[Step]) -> tuple[Choice, ...]:
    """The hull, from the least seconds to the fewest bytes; at most some points of it."""
    first, last = _choose(steps, None), _choose(steps, 0.0)
    found = [first]
    _between(steps, first, last, found, _MOST_POINTS)
    if last.nbytes < found[-1].nbytes:
        found.append(last)
    return tuple(found)


def _between(
    steps: Sequence[Step], left: Choice, right: Choice, found: list[Choice], room: int
) -> None:
    """Append the corners of the hull between two of its points."""
    if right.nbytes >= left.nbytes or right.seconds <= left.seconds or room <= 0:
        return
    price = (left.nbytes - right.nbytes) / (right.seconds - left.seconds)
    middle = _choose(steps, price)
    value = left.nbytes + price * left.seconds
    if not left.nbytes > middle.nbytes > right.nbytes:
        return
    if middle.nbytes + price * middle.seconds >= value * (1 - 1e-9):
        return
    _between(steps, left, middle, found, room // 2)
    found.append(middle)
    _between(steps, middle, right, found, room // 2)


def _choose(steps: Sequence[Step], price: float | None) -> Choice:
    """The best choice at a price; None: nothing runs again but what is the same at every step."""
    return choice_of(steps, [trace(s.cell, _cut(s, price) | s.constants) for s in steps])


def choice_of(steps: Sequence[Step], kept: Sequence[Kept]) -> Choice:
    """The bytes and seconds of what is kept."""
    nbytes, seconds = 0, 0.0
    for step, each in zip(steps, kept, strict=True):
        held = {*each.stored, *each.used}
        nbytes += step.pair.steps * sum(step.weights[name] for name in held)
        again = (next(name for name in node.output if name) for node in each.again)
        seconds += step.pair.steps * sum(step.seconds[name] for name in again)
    return Choice(tuple(kept), nbytes, seconds)


def _cut(step: Step, price: float | None) -> set[str]:
    """Names of what runs again."""
    if price is None:
        return set()
    cell, constant = step.cell, step.constants
    names = [*cell.inputs, *(o for node in cell.nodes for o in node.output if o)]
    number = {name: 2 + 2 * k for k, name in enumerate(names) if name not in constant}
    weight = {name: step.weights[name] * _SCALE for name in number}
    runs = {k: 2 + 2 * len(names) + k for k in range(len(cell.nodes))}
    network = Network(2 + 2 * len(names) + len(runs))
    costs = {
        k: int((price * step.seconds[_first(node)]) * _SCALE) + 1
        for k, node in enumerate(cell.nodes)
    }
    endless = sum(weight.values()) + sum(costs.values()) + 1
    for name, vertex in number.items():
        network.connect(vertex, vertex + 1, weight[name])
        if name in cell.needed:
            network.connect(vertex + 1, 1, endless)
    for name in cell.inputs:
        network.connect(0, number[name], endless)
    for k, node in enumerate(cell.nodes):
        outputs = [number[name] for name in node.output if name in number]
        network.connect(0, runs[k], endless if _first(node) in step.fixed else costs[k])
        for vertex in outputs:
            network.connect(runs[k], vertex, endless)
        for name in (*node.input, *captured_names(node)):
            if name in number:
                network.connect(number[name] + 1, runs[k], endless)
    network.saturate()
    side = network.source_side()
    return {name for name, v in number.items() if v not in side and name not in cell.inputs}


def _first(node: onnx.NodeProto) -> str:
    return next(str(name) for name in node.output if name)
