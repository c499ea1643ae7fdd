"""What every pair of loops stores and recomputes: by name, or by price.

*By name*: ``--scan-recompute all``, ``auto`` or names of tensors of the cell. Caffe2's rule for
``recompute_blobs_on_backward`` (``recurrent.py``): an operator is recomputed for all of its outputs
or not at all.

*By price*: bytes stored per step against seconds per step. For a price λ (bytes for a second), the
choice of least stored bytes + λ · seconds of recomputation is a minimum cut between what a step is
given and what its backward reads (:func:`memplan.solver.maxflow.cut`). All prices together give the
lower convex hull of the Pareto front; breakpoints are found as by Eisner and Severance
("Mathematical techniques for efficient record segmentation in large shared databases", JACM 23(4),
1976). Pairs have the price in common, so the sums over pairs are on the hull of all pairs together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from memplan.errors import UsageError
from memplan.passes.loops.cell import CellPlan, ScanRecompute, decide, least_stored, plan_cell
from memplan.passes.loops.loop_step import PairStep

FIT, NONE = "fit", "none"
OPTION = "--scan-recompute"

_SCALE = 1 << 16
_MOST_POINTS = 8


# -- by name ---------------------------------------------------------------------------------------


def named(steps: Sequence[PairStep], text: str) -> list[CellPlan]:
    """The plan of every pair's cell if what ``text`` names is recomputed.

    ``text``: ``all``; ``auto``: what stores the fewest bytes without running a contraction twice
    (:mod:`memplan.passes.loops.cell`); or patterns with ``+`` between them, each for tensors of a
    forward body or for what the loop stacks of them.

    Raises:
        UsageError: there is no pair, a pattern matches nothing, or an operator cannot be
            recomputed: some of its outputs are not named, or it would give other values.
    """
    if not steps:
        raise UsageError(
            f"{OPTION} {text}: the graph has no forward Scan or Loop of which a backward one reads "
            "what it stacked, with shapes and number of steps known",
            "memplan analyze lists such pairs",
        )
    policy = ScanRecompute(text)
    kept = [decide(step.cell, policy) for step in steps]
    policy.require_matches()
    return kept


# -- by price --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan of every pair's cell; bytes held and seconds of recomputation over all steps."""

    kept: tuple[CellPlan, ...]
    nbytes: int
    seconds: float


def front(steps: Sequence[PairStep]) -> tuple[Choice, ...]:
    """The hull, from the least seconds to the fewest bytes; at most some points of it."""
    first, last = _choose(steps, None), _choose(steps, 0.0)
    found = [first]
    _between(steps, first, last, found, _MOST_POINTS)
    if last.nbytes < found[-1].nbytes:
        found.append(last)
    return tuple(found)


def _between(
    steps: Sequence[PairStep], left: Choice, right: Choice, found: list[Choice], room: int
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


def _choose(steps: Sequence[PairStep], price: float | None) -> Choice:
    """The best choice at a price; None: what is the same at every step alone is recomputed."""
    return choice_of(steps, [plan_cell(s.cell, _cut(s, price) | s.constants) for s in steps])


def choice_of(steps: Sequence[PairStep], kept: Sequence[CellPlan]) -> Choice:
    """The bytes and seconds of what is kept."""
    nbytes, seconds = 0, 0.0
    for step, each in zip(steps, kept, strict=True):
        held = {*each.stored, *each.used}
        nbytes += step.pair.steps * sum(step.weights[name] for name in held)
        first = (next(name for name in node.output if name) for node in each.recomputed)
        seconds += step.pair.steps * sum(step.seconds[name] for name in first)
    return Choice(tuple(kept), nbytes, seconds)


def _cut(step: PairStep, price: float | None) -> set[str]:
    """Names of what is recomputed at a price (see :func:`_choose`)."""
    if price is None:
        return set()
    cell, constant = step.cell, step.constants
    names = (name for name in (*cell.inputs, *cell.computed) if name not in constant)

    def cost(node: onnx.NodeProto) -> int | None:
        if not cell.recomputes(node):
            return None
        first = next(str(name) for name in node.output if name)
        return int((price * step.seconds[first]) * _SCALE) + 1

    return least_stored(cell, {name: step.weights[name] * _SCALE for name in names}, cost)
