"""What runs again by name: ``--scan-recompute all``, ``auto`` or names of tensors of the cell.

Caffe2's rule for ``recompute_blobs_on_backward`` (``recurrent.py``): an operator runs again for all
of its outputs or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from memplan.errors import UsageError
from memplan.loops.cell import Kept, ScanRecompute, decide, trace
from memplan.loops.step import Step

ALL, AUTO, FIT, NONE = "all", "auto", "fit", "none"
OPTION = "--scan-recompute"
_LISTED = 12


def named(steps: Sequence[Step], text: str) -> list[Kept]:
    """What every pair keeps if what ``text`` names runs again.

    ``text``: ``all``; ``auto``: what stores the fewest bytes without running a contraction twice
    (:mod:`memplan.loops.cell`); or patterns with ``+`` between them, each for tensors of a
    forward body or for what the loop stacks of them.

    Raises:
        UsageError: there is no pair, a pattern matches nothing, or an operator cannot run again:
            some of its outputs are not named, or it would give other values.
    """
    if not steps:
        raise UsageError(
            f"{OPTION} {text}: the graph has no forward Scan or Loop of which a backward one reads "
            "what it stacked, with shapes and number of steps known",
            "memplan analyze lists such pairs",
        )
    if text == ALL:
        return [trace(step.cell, _everything(step)) for step in steps]
    if text == AUTO:
        return [_cheap(step) for step in steps]
    patterns = [part.strip() for part in text.split("+")]
    for pattern in patterns:
        if not any(_inner(step, [pattern]) for step in steps):
            raise UsageError(
                f"{OPTION} {pattern}: no forward loop of a pair computes such a tensor in its body",
                f"there are: {_offered(steps)}",
            )
    return [_named(step, patterns) for step in steps]


def _named(step: Step, patterns: Sequence[str]) -> Kept:
    chosen = _inner(step, patterns)
    fixed = sorted(name for name in chosen if name in step.fixed)
    if fixed:
        raise UsageError(
            f"{OPTION}: what makes {fixed[0]} cannot be recomputed: it holds a graph, has "
            "effects or draws random numbers",
            "leave it out",
        )
    if not chosen:
        return trace(step.cell, step.constants)
    return decide(step.cell, ScanRecompute("+".join(chosen)))


def _inner(step: Step, patterns: Sequence[str]) -> list[str]:
    """Tensors of the cell that patterns mean, by their own names or by those of their copies."""
    call = step.pair.forward
    called: dict[str, list[str]] = {}
    for copy in call.copies:
        called.setdefault(call.root(copy), []).append(copy)
    for inner, found in call.stacked:
        called.setdefault(inner, []).append(found.name)
    # What is made again of a product before the loop is no tensor of the body: with ``all`` only.
    return [
        name
        for node in step.cell.nodes
        for name in node.output
        if name
        and name not in call.slices
        and any(fnmatchcase(n, p) for n in (name, *called.get(name, ())) for p in patterns)
    ]


def _cheap(step: Step) -> Kept:
    """As ``grad --scan-recompute auto`` decides, but for what cannot run again."""
    again = decide(step.cell, ScanRecompute(AUTO)).again
    chosen = {name for node in again for name in node.output if name} - step.fixed
    return trace(step.cell, chosen | step.constants)


def _everything(step: Step) -> set[str]:
    """All that can run again, but for what is held anyway."""
    computed = {name for node in step.cell.nodes for name in node.output if name}
    return (computed - step.fixed - step.cell.stacked) | step.constants


def _offered(steps: Sequence[Step]) -> str:
    names = [
        name
        for step in steps
        for node in step.cell.nodes
        for name in node.output
        if name and name not in step.constants and name not in step.pair.forward.slices
    ]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
