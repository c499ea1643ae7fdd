"""The values of this room: tensors, nodes and the graph. Ids index the tuples of the graph."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

ABSENT = -1
"""In place of a tensor id: an optional input or output that a node leaves out."""


class Phase(StrEnum):
    """Which part of the training step a node belongs to."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"


class TensorKind(StrEnum):
    """Where a tensor comes from."""

    INPUT = "input"
    INITIALIZER = "initializer"
    COMPUTED = "computed"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named value.

    ``readers`` has one entry per input slot that reads the tensor (a node that reads it twice
    stands there twice), in file order. ``counted`` is False for strings, sequences and optionals,
    whose memory is not planned (``nbytes`` is 0). ``static``: the runtime knows the shape before
    it runs (False inside Loop bodies), without which it never works in place.
    ``names_seen`` are its dimensions as it knows them, where it has names of symbols for sizes.
    """

    id: int
    name: str
    dtype: int
    shape: tuple[int, ...]
    nbytes: int
    kind: TensorKind
    is_output: bool
    producer: int
    readers: tuple[int, ...]
    counted: bool = True
    static: bool = True
    names_seen: tuple[int | str, ...] | None = None

    @property
    def seen(self) -> tuple[int | str, ...]:
        """Dimensions as the runtime knows them before it runs, which it compares buffers by."""
        return self.shape if self.names_seen is None else self.names_seen


def _present(tensors: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(t for t in tensors if t != ABSENT) if ABSENT in tensors else tensors


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call. ``captured`` are outer tensors that its bodies read (If, Loop, Scan).

    ``reads`` are tensor ids in slot order, absent ones left out, captured ones last; ``writes`` are
    those of the outputs that are present. ``key`` is ``domain:Op``, the key of the operator
    registries; the default domain is empty. All three are made once, as every pass asks for them.
    """

    id: int
    name: str
    domain: str
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    captured: tuple[int, ...] = ()
    attributes: Mapping[str, object] = field(default_factory=dict)
    reads: tuple[int, ...] = field(init=False, repr=False, compare=False)
    writes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", _present(self.inputs) + self.captured)
        object.__setattr__(self, "writes", _present(self.outputs))
        object.__setattr__(self, "key", sys.intern(f"{self.domain}:{self.op}"))


@dataclass(frozen=True, slots=True)
class StateMemory:
    """Where the next values of inputs lie that the caller gives memory for.

    ``pairs``: output → input, all of them; ``in_place``: those that are written over the old value;
    ``apart``: output → why it lies in a second buffer; ``second_bytes``: of all of these.
    ``overwriter``: tensor that lies in the memory of an input → the node that writes over it;
    ``before``: such a node → the nodes that must have run by then. ``refused``: names of outputs
    that somebody else found no place for, and why. ``loss``: the output that must be known before
    anything is written over.
    """

    pairs: Mapping[int, int]
    in_place: Mapping[int, int]
    apart: Mapping[int, str]
    second_bytes: int
    overwriter: Mapping[int, int]
    before: Mapping[int, frozenset[int]]
    refused: Mapping[str, str] = field(default_factory=dict)
    loss: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """A training graph. ``nodes`` stand in file order, ``Constant`` nodes left out.

    ONNX Runtime turns ``Constant`` nodes into initializers when it loads a model; so they are
    tensors of kind INITIALIZER here. ``bodies`` holds the graphs of control-flow nodes by node id,
    with the number of times each runs; ``parent_op`` is the operator whose body this graph is.
    ``checkpoints`` are the tensors that the author marked (:mod:`memplan.proto.metadata`).
    ``state``: where new values lie (:mod:`memplan.simulate.state_memory`); None: in memory of the
    run.
    """

    name: str
    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    opset: int
    bodies: Mapping[int, tuple[Body, ...]]
    metadata: tuple[Mapping[str, str], ...]
    parent_op: str = ""
    checkpoints: frozenset[int] = frozenset()
    state: StateMemory | None = None
    _ids: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def tensor_named(self, name: str) -> Tensor | None:
        """The tensor of that name, or None."""
        if not self._ids:  # made when it is first asked for: most graphs never are
            self._ids.update((tensor.name, tensor.id) for tensor in self.tensors)
        found = self._ids.get(name)
        return None if found is None else self.tensors[found]


@dataclass(frozen=True, slots=True)
class Body:
    """The graph inside a control-flow node.

    ``trips`` is how often it runs per execution of the node; None: decided by data at run time.
    ``graph`` is None when the shape of some tensor inside is not known.
    """

    attribute: str
    graph: Graph | None
    trips: int | None
