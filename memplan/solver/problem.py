"""The abstract rematerialization problem. No ONNX in here: researchers can use it alone.

A *sequence* is a list of node ids in execution order; a node that stands in it again is
recomputed. Every read takes the latest value of its tensor. The memory of a sequence follows the
allocation rules of ONNX Runtime (docs/how/memory-model.md), so the solver's peak is the runtime's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

NONE = -1


class Arrays(NamedTuple):
    """The problem as flat arrays; ``N`` nodes, ``T`` tensors, ``R`` read slots, ``W`` outputs.

    Offsets are CSR: the reads of node ``i`` are ``reads[read_start[i]:read_start[i + 1]]``.
    """

    read_start: Ints  # (N+1)
    reads: Ints  # (R) tensor ids, one per slot
    write_start: Ints  # (N+1)
    writes: Ints  # (W) tensor ids
    alias_of: Ints  # (W) tensor whose storage the output shares, or NONE
    inplace_start: Ints  # (W+1)
    inplace_of: Ints  # tensors whose storage the output may take over when they die here
    droppable: Flags  # (W) an output that need not be made when nobody reads it
    fleeting: Flags  # (W) an output that, unread, is there at its own step only (else: to the end)
    nbytes: Ints  # (T) bytes
    alike: Ints  # (T) equal numbers: equal dimensions and element size
    resident: Flags  # (T) in memory before the first step; never allocated
    pinned: Flags  # (T) graph output: a buffer of its own, held to the end
    eager: Flags  # (N) runs as soon as what it reads is there, whatever the sequence says
    maker: Ints  # (T) the node that makes the tensor again, or NONE if that is refused
    rank: Ints  # (N) place in the original order; clones inserted together stand in this order
    cost: Floats  # (N) seconds
    workspace: Ints  # (N) bytes taken and given back within the node
    inside: Ints  # (N) bytes held by a body while the node runs, counted as tensors
    # (T, or empty where there is none) the node that writes over the resident memory in which the
    # tensor lies, or NONE: nothing may read it afterwards
    overwriter: Ints = np.zeros(0, np.int64)
    # (T+1, or empty where there are none) and tensor by tensor: further nodes that make it again
    other_start: Ints = np.zeros(0, np.int64)
    others: Ints = np.zeros(0, np.int64)
    # (N, or empty where there are none) the tensor of which a node makes another form, or NONE
    encodes: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Labels:
    """What the strategies need to know that choose tensors by name, by mark or by kind."""

    names: tuple[str, ...]  # (T)
    marked: Flags  # (T) the author wants it kept
    elements: Ints  # (T)
    unfit: Flags  # (T) no checkpoint by its kind: made by a loss, a norm's statistics, a cast, ...
    differentiated: Flags  # (N) forward nodes that gradients flow through


@dataclass(frozen=True, slots=True)
class Form:
    """A tensor may be dropped, as the nodes of ``encode``, run in their order while it is there,
    keep another form of it, from which ``decode`` makes it again. ``kind``: a word for such forms.
    """

    kind: str
    tensor: int
    encode: tuple[int, ...]
    decode: int


@dataclass(frozen=True, slots=True)
class Problem:
    """What a solver is given.

    ``order`` is the sequence without recomputation. ``budget`` bounds dynamic bytes and workspace
    (resident bytes are already taken off). Nodes that do not stand in ``order`` are rebuild rules:
    cheaper ways to make a tensor again. Those of ``forms`` keep a tensor in another form while it
    is there, as nothing makes that form afterwards: a move that reads it puts them right behind
    what makes the tensor (:mod:`memplan.solver.search.moves`). ``start`` is
    where a search begins: ``order``, with the recomputations that were asked for; those of
    ``protected`` nodes must stay. ``forward``, ``intensive`` and ``labels`` matter to some baseline
    planners only (:mod:`memplan.solver.strategies`); None: not known. ``known``: sequences found
    before, from which a search goes on; they need not fit.
    """

    arrays: Arrays
    order: Ints
    budget: int
    start: Ints
    protected: Flags  # (N)
    movable: Flags  # (N) may stand elsewhere than in ``order``
    forward: Flags | None = None  # (N) what the loss depends on
    intensive: Flags | None = None  # (N) matrix products and convolutions
    labels: Labels | None = None
    forms: tuple[Form, ...] = ()
    known: tuple[Ints, ...] = ()

    @property
    def base_cost(self) -> float:
        """Seconds of the sequence without recomputation."""
        return float(self.arrays.cost[self.order].sum())

    def leaves_out_asked(self, sequence: Ints) -> bool:
        """Whether a sequence lacks recomputations that were asked for (``protected``)."""
        if not self.protected.any():
            return False
        count = len(self.protected)
        runs = np.bincount(sequence, minlength=count)
        asked = np.bincount(self.start, minlength=count)
        return bool((runs < asked)[self.protected].any())


@dataclass(frozen=True, slots=True)
class Decision:
    """A solver's answer: a sequence, its peak (dynamic and workspace bytes) and its cost."""

    sequence: Ints
    peak: int
    extra_cost: float
    feasible: bool


def better(first: Decision, second: Decision) -> bool:
    """Whether the first decision is preferable: feasible, then cheap, then low."""
    if first.feasible != second.feasible:
        return first.feasible
    if first.feasible:
        return first.extra_cost < second.extra_cost
    return first.peak < second.peak
