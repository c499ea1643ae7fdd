"""Checkpoints at bottlenecks: ``memory`` of gradient-checkpointing for TensorFlow.

``gradients(ys, xs, checkpoints='memory')`` in memory_saving_gradients.py (Bulatov and Salimans,
github.com/cybertronai/gradient-checkpointing, formerly of openai), after Chen et al. 2016: of the
tensors through which all that flows forward must go, about sqrt(N) are kept, evenly spread by
their number. In graphs with long skips there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from math import ceil, sqrt
from typing import ClassVar

from memplan.errors import UsageError
from memplan.solver.problem import Problem
from memplan.solver.strategies.checkpoints import differentiated, roots_with
from memplan.solver.strategies.keepset import KeepSet, TrainingStep
from memplan.units import counted

_ADVICE = "name checkpoints yourself (--strategy 'list{names=a+b}'), or use speed or auto"


@dataclass(frozen=True, slots=True)
class Memory(KeepSet):
    """``small``: tensors of at most so many elements are not looked at (1024 in the source)."""

    name: ClassVar[str] = "memory"
    summary: ClassVar[str] = "keep about sqrt(N) bottlenecks of the forward, recompute the rest"
    source: ClassVar[str] = "gradient-checkpointing (TensorFlow): checkpoints='memory'"
    ignores_budget: ClassVar[bool] = True
    meanings: ClassVar[Mapping[str, str]] = {
        "small": "tensors of at most so many elements do not count",
    }
    small: int = 1024

    def offers(self, step: TrainingStep, late: Callable[[], bool]) -> Iterator[Set[int]]:
        """About sqrt(N) bottlenecks, and what they are never without.

        Raises:
            UsageError: there is no bottleneck.
        """
        yield roots_with(step, Flow(step, self.small).checkpoints())


class Flow:
    """What flows from the parameters to the loss, and where all of it goes through one tensor.

    ``tensors`` are the ones that count, in order of birth: made by nodes that gradients flow
    through and read by such nodes, neither small nor of a kind that is unfit. Results that only
    the backward part reads (statistics, indices) have no part in the flow. ``saved`` are those of
    ``tensors`` that the backward part reads.
    """

    def __init__(self, step: TrainingStep, small: int) -> None:
        problem = step.problem
        way = differentiated(problem)
        order: list[int] = problem.order.tolist()
        self.nodes = [node for node in order if way[node]]
        self.step = step
        within = {t for node in self.nodes for t in step.links.reads[node]}
        behind = {t for node in order if not way[node] for t in step.links.reads[node]}
        self.made_by = {t: node for node in self.nodes for t in step.links.writes[node]}
        self.tensors = [t for t in self.made_by if t in within and _fits(problem, t, small)]
        self.saved = [t for t in self.tensors if t in behind]

    def checkpoints(self) -> list[int]:
        """The tensors to keep.

        Raises:
            UsageError: there is no bottleneck, or the source's spacing takes none.
        """
        root = sqrt(len(self.saved))
        # First among what the backward part reads; where those are too few, among all.
        found = self.bottlenecks(self.saved)
        if len(found) < root:
            found = self.bottlenecks(self.tensors)
        if not found:
            raise UsageError(
                "the forward part has no bottleneck: of "
                f"{counted(len(self.tensors), 'tensor')}, each has a way around it (a skip) or "
                "beside it (a branch)",
                _ADVICE,
            )
        chosen = spaced(found, len(self.saved))
        if not chosen:
            raise UsageError(
                f"of {counted(len(found), 'bottleneck')} in the forward part none is chosen, as "
                f"the backward part reads {counted(len(self.saved), 'tensor')} only",
                _ADVICE,
            )
        return chosen

    def bottlenecks(self, candidates: list[int]) -> list[int]:
        """Those that everything goes through.

        What is read up to the node that makes one, and what is read behind it, have nothing in
        common and are together all there is. Sets of tensors are bits of whole numbers.
        """
        if not candidates:
            return []
        bit = {t: 1 << k for k, t in enumerate(self.tensors)}
        reads = self.step.links.reads
        own = {node: sum(bit.get(t, 0) for t in reads[node]) for node in self.nodes}
        before: dict[int, int] = {}
        for node in self.nodes:
            before[node] = own[node]
            for t in reads[node]:
                if t in self.made_by:
                    before[node] |= before[self.made_by[t]]
        after = dict.fromkeys(self.nodes, 0)
        for node in reversed(self.nodes):
            for t in reads[node]:
                if t in self.made_by:
                    after[self.made_by[t]] |= own[node] | after[node]
        everything = (1 << len(self.tensors)) - 1
        return [
            t
            for t in candidates
            if not before[self.made_by[t]] & after[self.made_by[t]]
            and before[self.made_by[t]] | after[self.made_by[t]] == everything
        ]


def spaced(bottlenecks: list[int], saved: int) -> list[int]:
    """About sqrt(``saved``) of the bottlenecks, evenly spread, as in the source."""
    if len(bottlenecks) <= ceil(sqrt(saved)):
        return bottlenecks
    stride = ceil(len(bottlenecks) / sqrt(saved))
    return bottlenecks[stride::stride]


def _fits(problem: Problem, tensor: int, small: int) -> bool:
    labels = problem.labels
    if labels is None:
        return True
    if tensor >= len(labels.names):  # it only keeps nodes in order
        return False
    return bool(labels.elements[tensor] > small) and not bool(labels.unfit[tensor])
