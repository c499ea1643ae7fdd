"""Checkpoints by kind, by name and by mark, as in gradient-checkpointing for TensorFlow.

``gradients(ys, xs, checkpoints=...)`` in memory_saving_gradients.py (Bulatov and Salimans,
github.com/cybertronai/gradient-checkpointing, formerly of openai): the checkpoints stay, and
everything else that lies between the parameters and the loss is recomputed, segment by segment,
when the backward part comes to it. Budgets are not known there: one plan, that fits or not. Its
fourth kind, ``memory``, is in :mod:`memplan.solver.strategies.bottlenecks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import ClassVar

from memplan.errors import UsageError
from memplan.solver.problem import Flags, Labels, Problem
from memplan.solver.strategies.keepset import KeepSet, TrainingStep

_NEAR = 3


@dataclass(frozen=True, slots=True)
class Speed(KeepSet):
    """Outputs of convolutions and matrix products stay: what takes most time runs once."""

    name: ClassVar[str] = "speed"
    summary: ClassVar[str] = "keep the results of convolutions and products, recompute the rest"
    source: ClassVar[str] = "gradient-checkpointing (TensorFlow): checkpoints='speed'"
    ignores_budget: ClassVar[bool] = True

    def offers(self, step: TrainingStep, late: Callable[[], bool]) -> Iterator[Set[int]]:
        """The results of products.

        Raises:
            UsageError: no forward node is a convolution or a product.
        """
        problem = step.problem
        way = differentiated(problem)
        products = way if problem.intensive is None else way & problem.intensive
        chosen = [t for node in products.nonzero()[0].tolist() for t in step.links.writes[node]]
        if problem.intensive is None or not chosen:
            raise UsageError(
                "the forward part has no convolution and no matrix product to keep",
                "name what is to be kept: --strategy 'list{names=a+b}', or use auto",
            )
        yield roots_with(step, chosen)


@dataclass(frozen=True, slots=True)
class Named(KeepSet):
    """``names``: the tensors to keep, with ``+`` between them; ``*`` stands for any letters."""

    name: ClassVar[str] = "list"
    summary: ClassVar[str] = "keep the tensors that are named, recompute the rest"
    source: ClassVar[str] = "gradient-checkpointing (TensorFlow): checkpoints=[...]"
    ignores_budget: ClassVar[bool] = True
    meanings: ClassVar[Mapping[str, str]] = {
        "names": "a+b keeps a and b; * stands for any letters",
    }
    names: str = ""

    def offers(self, step: TrainingStep, late: Callable[[], bool]) -> Iterator[Set[int]]:
        """The tensors that are named.

        Raises:
            UsageError: a name is not one of the forward part's tensors.
        """
        labels = _labels(step.problem)
        wanted = list(filter(None, (name.strip() for name in self.names.split("+"))))
        if not wanted:
            raise UsageError("strategy 'list' needs names", "write --strategy 'list{names=a+b}'")
        made = {labels.names[t]: t for t in _made(step, labels)}
        yield roots_with(step, [t for name in wanted for t in _find(name, made, labels)])


@dataclass(frozen=True, slots=True)
class Collection(KeepSet):
    """Tensors that the author marked in the file stay (:mod:`memplan.proto.metadata`), and those
    that ``--keep`` names."""

    name: ClassVar[str] = "collection"
    summary: ClassVar[str] = "keep the tensors marked in the file or named by --keep"
    source: ClassVar[str] = "gradient-checkpointing (TensorFlow): checkpoints='collection'"
    ignores_budget: ClassVar[bool] = True

    def offers(self, step: TrainingStep, late: Callable[[], bool]) -> Iterator[Set[int]]:
        """The tensors that are marked.

        Raises:
            UsageError: nothing of the forward part is marked.
        """
        labels = _labels(step.problem)
        chosen = [t for t in _made(step, labels) if labels.marked[t]]
        if not chosen:
            raise UsageError(
                "no tensor of the forward part is marked as a checkpoint",
                "mark a node or value by metadata_props memplan.checkpoint = true, or name tensors "
                "with --keep GLOB",
            )
        yield roots_with(step, chosen)


def roots_with(step: TrainingStep, checkpoints: Iterable[int]) -> set[int]:
    """The roots to keep so that only ``checkpoints`` (tensors) outlive their last use in forward.

    What gradients do not flow through (masks, indices of the inputs) stays as well: the source
    copies no such operators either.
    """
    links, way = step.links, differentiated(step.problem)
    kept = {links.root[t] for t in checkpoints}
    for node in step.sequence[: step.cut]:
        if not way[node]:
            kept.update(links.root[t] for t in links.writes[node])
    return kept


def differentiated(problem: Problem) -> Flags:
    """The nodes that gradients flow through; all forward ones where no more is known."""
    assert problem.forward is not None  # else step_of has refused
    return problem.forward if problem.labels is None else problem.labels.differentiated


def _labels(problem: Problem) -> Labels:
    if problem.labels is None:
        raise UsageError("the problem has no names and no marks, by which this strategy chooses")
    return problem.labels


def _made(step: TrainingStep, labels: Labels) -> list[int]:
    """What the forward part makes, in order; what only keeps nodes in order (state in place) has no
    name."""
    found = (t for node in step.sequence[: step.cut] for t in step.links.writes[node])
    return [t for t in dict.fromkeys(found) if t < len(labels.names)]


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
