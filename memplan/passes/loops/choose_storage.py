"""What every pair of loops stores and recomputes: everything, what is cheap, or what is named.

Caffe2's rule for ``recompute_blobs_on_backward`` (``recurrent.py``): an operator is recomputed for
all of its outputs or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from memplan.errors import UsageError
from memplan.passes.loops.cell import CellPlan, ScanRecompute, decide
from memplan.passes.loops.loop_step import PairStep

OPTION = "--scan-recompute"


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


def extra_seconds(step: PairStep, kept: CellPlan) -> float:
    """Those of all that a pair recomputes, at all steps together."""
    first = (next(name for name in node.output if name) for node in kept.recomputed)
    return step.pair.steps * sum(step.seconds[name] for name in first)
