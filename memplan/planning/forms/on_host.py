"""Which tensors may be offloaded to the host.

A tensor that is offloaded is copied to the host right behind the node that makes it
(``MemcpyToHost``; a later copy would keep nodes from working in place) and back before it is read
again (``MemcpyFromHost``), which needs nothing on the device: a form of the tensor. Every read back
is charged with both copies, as if nothing ran beside them: an upper bound, as the host copy is made
once, and copies may overlap with kernels.

Tested against a stub of the CUDA runtime, never on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from memplan.ir.graph import ABSENT, Graph, Tensor, TensorKind
from memplan.ops.kernels import COPY_OPS
from memplan.ops.memory import semantics
from memplan.planning.forms.dormant import Dormant
from memplan.simulate.devices import place
from memplan.simulate.session import SessionKind
from memplan.simulate.state_memory import unbound
from memplan.solver.problem import Form

ON_HOST = "on the host"
"""The kind of these forms."""


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
    devices = place(unbound(graph), session.provider)[1]
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


def add_copies(builder: Dormant, tensor: Tensor) -> None:
    """A tensor to the host and back."""
    first = len(builder.nodes)
    stem = builder.fresh_stem(f"{tensor.name}/offload")
    host = builder.add_tensor(f"{stem}_host", tensor, TensorKind.COMPUTED, first)
    out = builder.add_node(f"{stem}_out", "MemcpyToHost", (tensor.id,), (host,))
    back = builder.add_node(f"{stem}_back", "MemcpyFromHost", (host,), (tensor.id,))
    builder.forms.append(Form(ON_HOST, tensor.id, (out,), back))
