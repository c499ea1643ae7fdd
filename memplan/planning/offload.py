"""Which tensors may be offloaded to the host, and when that is likely to be cheaper.

A tensor that is offloaded is copied to the host behind the node that makes it (``MemcpyToHost``)
and back before it is read again (``MemcpyFromHost``), which needs nothing on the device: a rebuild
rule with a price. Every read back is charged with both copies, as if nothing ran beside them: an
upper bound, as the host copy is made once, and copies may overlap with kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memplan.ir.graph import ABSENT, Graph, Tensor, TensorKind
from memplan.ops.kernels import COPY_OPS
from memplan.ops.memory import semantics
from memplan.planning.dormant import HostCopy
from memplan.simulate.devices import place
from memplan.simulate.session import SessionKind
from memplan.simulate.state import unbound
from memplan.solver.problem import NONE, Ints
from memplan.strategies.choices import Choice

# Recomputing one tensor is estimated from what is there anyway; under a tight budget that has to be
# made again, too. So the estimate is taken once as it is, and once as so many times too low.
_TOO_LOW = (1.0, 8.0)


@dataclass(frozen=True, slots=True)
class Offloaded:
    """A tensor that a plan offloads: its name and bytes, how often it is read back, and the seconds
    that one copy in each direction is taken to need."""

    name: str
    nbytes: int
    reads_back: int
    out_seconds: float
    back_seconds: float

    @property
    def seconds(self) -> float:
        """Of all copies, one after the other."""
        return self.out_seconds + self.reads_back * self.back_seconds


def offloadable(
    graph: Graph, session: SessionKind, forward: frozenset[int] | None, kept: frozenset[int]
) -> frozenset[int]:
    """Tensors that may be offloaded: stashes on the device with a buffer of their own.

    Args:
        graph: as it is planned.
        session: a tuned session on CUDA.
        forward: nodes that the loss depends on; None: not known, then every tensor that is read.
        kept: tensors that stay where they are.
    """
    devices = place(unbound(graph))[1]
    rules = semantics(session.provider)
    lying_in_state = graph.state.overwriter if graph.state else {}

    def suits(tensor: Tensor) -> bool:
        if tensor.kind is not TensorKind.COMPUTED or tensor.is_output or not tensor.counted:
            return False
        if not tensor.nbytes or tensor.id in kept or tensor.id in lying_in_state:
            return False
        maker = graph.nodes[tensor.producer]
        if maker.id in devices.host_nodes or tensor.id in devices.host_tensors:
            return False
        view = rules.alias_input(maker.key, maker.outputs.index(tensor.id)) is not None
        if view or maker.op in COPY_OPS:
            return False
        if forward is None:
            return bool(tensor.readers)
        return maker.id in forward and not _readers(graph, session, tensor) <= forward

    return frozenset(tensor.id for tensor in graph.tensors if suits(tensor))


def _readers(graph: Graph, session: SessionKind, tensor: Tensor) -> set[int]:
    """Nodes that read a tensor or a view of it; views themselves, which compute nothing, are left
    out."""
    rules = semantics(session.provider)
    found: set[int] = set()
    waiting = [tensor.id]
    while waiting:
        current = waiting.pop()
        for reader in graph.tensors[current].readers:
            node = graph.nodes[reader]
            views = [
                t
                for slot, t in enumerate(node.outputs)
                if t != ABSENT
                and (source := rules.alias_input(node.key, slot)) is not None
                and source < len(node.inputs)
                and node.inputs[source] == current
            ]
            waiting.extend(views)
            if not views:
                found.add(reader)
    return found


def choices_for(
    graph: Graph, costs: Sequence[float], maker: Ints, copies: Mapping[int, HostCopy]
) -> tuple[Choice, ...]:
    """Who makes tensors again: none is read back that can be recomputed, then more and more, then
    all. Copies to the host stand right behind what makes the tensor: later ones would keep nodes
    from working in place.

    Args:
        graph: with the nodes that copy.
        costs: seconds by node id, those that copy back with both copies.
        maker: who makes a tensor by recomputation, or NONE.
        copies: how tensors are offloaded.
    """
    again = _recomputation_seconds(graph, costs, maker, set(copies))
    found: list[Choice] = []
    for factor in (0.0, *_TOO_LOW, math.inf):
        makers, behind = maker.copy(), {}
        for tensor, copy in copies.items():
            dear = bool(factor) and again[tensor] * factor > costs[copy.back]
            if maker[tensor] == NONE or dear:
                makers[tensor] = copy.back
                behind[copy.out] = graph.tensors[tensor].producer
        if not found or len(behind) > len(found[-1].behind):
            idle = frozenset(copy.out for copy in copies.values()) - behind.keys()
            found.append(Choice(makers, behind, idle))
    return tuple(found)


def _recomputation_seconds(
    graph: Graph, costs: Sequence[float], maker: Ints, stashes: set[int]
) -> list[float]:
    """Seconds to make a tensor again from stashes and what is always there, by tensor id."""
    found = [0.0] * len(graph.tensors)
    for node in graph.nodes:
        sources = sum(found[t] for t in set(node.reads) if t not in stashes)
        for tensor in node.writes:
            if graph.tensors[tensor].producer != node.id:
                continue
            known = maker[tensor] != NONE
            found[tensor] = costs[node.id] + sources if known else math.inf
    return found
