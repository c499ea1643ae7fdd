"""Checkpoints by kind, by name and by mark, as in gradient-checkpointing for TensorFlow.

``gradients(ys, xs, checkpoints=...)`` in memory_saving_gradients.py (Bulatov and Salimans,
github.com/cybertronai/gradient-checkpointing, formerly of openai): the checkpoints stay, and
everything else that lies between the parameters and the loss runs again, segment by segment, when
the backward part comes to it. Budgets are not known there: one plan, that fits or not. Its fourth
kind, ``memory``, is in :mod:`memplan.strategies.bottlenecks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import ClassVar

from memplan.errors import UsageError
from memplan.solver.problem import Flags, Labels, Problem
from memplan.solver.strategy import Outcome, Progress
from memplan.strategies.keepset import Step, judge, step_of

_NEAR = 3


@dataclass(frozen=True, slots=True)
class Speed:
    """Outputs of convolutions and matrix products stay: what takes most time runs once."""

    name: ClassVar[str] = "speed"
    summary: ClassVar[str] = "keep the results of convolutions and products, recompute the rest"
    source: ClassVar[str] = "gradient-checkpointing (TensorFlow): checkpoints='speed'"
    ignores_budget: ClassVar[bool] = True

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The one plan there is.

        Raises:
            UsageError: forward nodes are not known, or none of them is a convolution or product.
        """
        step, way = step_of(problem), differentiated(problem)
        products = way if problem.intensive is None else way & problem.intensive
        chosen = [t for node in products.nonzero()[0].tolist() for t in step.links.writes[node]]
        if problem.intensive is None or not chosen:
            raise UsageError(
                "the forward part has no convolution and no matrix product to keep",
                "name what is to be kept: --strategy 'list{names=a+b}', or use auto",
            )
        return plan_with(step, chosen, progress)


@dataclass(frozen=True, slots=True)
class Named:
    """``names``: the tensors to keep, with ``+`` between them; ``*`` stands for any letters."""

    name: ClassVar[str] = "list"
    summary: ClassVar[str] = "keep the tensors that are named, recompute the rest"
    source: ClassVar[str] = "gradient-checkpointing (TensorFlow): checkpoints=[...]"
    ignores_budget: ClassVar[bool] = True
    names: str = ""

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The one plan there is.

        Raises:
            UsageError: forward nodes are not known, or a name is not one of their tensors.
        """
        step, labels = step_of(problem), _labels(problem)
        wanted = list(filter(None, (name.strip() for name in self.names.split("+"))))
        if not wanted:
            raise UsageError(
                "strategy 'list' is told no names", "write --strategy 'list{names=a+b}'"
            )
        made = {labels.names[t]: t for t in _made(step)}
        chosen = [t for name in wanted for t in _find(name, made, labels)]
        return plan_with(step, chosen, progress)


@dataclass(frozen=True, slots=True)
class Collection:
    """Tensors that the author marked in the file stay (:mod:`memplan.proto.metadata`), and those
    that ``--keep`` names."""

    name: ClassVar[str] = "collection"
    summary: ClassVar[str] = "keep the tensors marked in the file or named by --keep"
    source: ClassVar[str] = "gradient-checkpointing (TensorFlow): checkpoints='collection'"
    ignores_budget: ClassVar[bool] = True

    def solve(
        self, problem: Problem, time_limit: float, progress: Progress | None = None
    ) -> Outcome:
        """The one plan there is.

        Raises:
            UsageError: forward nodes are not known, or nothing of theirs is marked.
        """
        step, labels = step_of(problem), _labels(problem)
        chosen = [t for t in _made(step) if labels.marked[t]]
        if not chosen:
            raise UsageError(
                "no tensor of the forward part is marked as a checkpoint",
                "mark a node or value by metadata_props memplan.checkpoint = true, or name tensors "
                "with --keep GLOB",
            )
        return plan_with(step, chosen, progress)


def plan_with(step: Step, checkpoints: Iterable[int], progress: Progress | None) -> Outcome:
    """The plan in which only ``checkpoints`` (tensors) outlive their last use in forward.

    What gradients do not flow through (masks, indices of the inputs) stays as well: the source
    copies no such operators either.
    """
    problem, links = step.problem, step.links
    way = differentiated(problem)
    kept = {links.root[t] for t in checkpoints}
    for node in step.sequence[: step.cut]:
        if not way[node]:
            kept.update(links.root[t] for t in links.writes[node])
    decision = judge(problem, step.sequence_for(kept))
    if progress is not None and decision.feasible:
        progress(decision.peak, decision.extra_cost / (problem.base_cost or 1.0))
    return Outcome(decision)


def differentiated(problem: Problem) -> Flags:
    """The nodes that gradients flow through; all forward ones where no more is known."""
    assert problem.forward is not None  # else step_of has refused
    return problem.forward if problem.labels is None else problem.labels.differentiated


def _labels(problem: Problem) -> Labels:
    if problem.labels is None:
        raise UsageError("the problem has no names and no marks, by which this strategy chooses")
    return problem.labels


def _made(step: Step) -> list[int]:
    """What the forward part makes, in order."""
    found = (t for node in step.sequence[: step.cut] for t in step.links.writes[node])
    return list(dict.fromkeys(found))


def _find(name: str, made: dict[str, int], labels: Labels) -> Sequence[int]:
    """The tensors of a name; the error for an unknown one lists near matches."""
    if name in made:
        return [made[name]]
    found = [tensor for key, tensor in made.items() if fnmatchcase(key, name)]
    if found:
        return found
    if name in labels.names:
        raise UsageError(
            f"'{name}' is not made in the forward part, so it cannot be a checkpoint",
            "inputs, weights and gradients are never recomputed",
        )
    near = get_close_matches(name, made, _NEAR)
    near += [key for key in made if name.lower() in key.lower() and key not in near]
    raise UsageError(
        f"the forward part makes no tensor '{name}'",
        f"near matches: {', '.join(near[:_NEAR])}"
        if near
        else f"it makes, for example, {', '.join(list(made)[:_NEAR])}",
    )
