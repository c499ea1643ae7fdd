"""Nodes that a GPU's provider takes and cannot run, told before anything runs."""

from __future__ import annotations

from memplan.errors import RuntimeUnavailableError
from memplan.ir.graph import Graph
from memplan.ops.faults import Fault, fault_notes, faults
from memplan.providers import on_host
from memplan.simulate.devices import place
from memplan.simulate.state_memory import unbound


def unrunnable(graph: Graph, provider: str) -> list[Fault]:
    """The nodes that a session on ``provider`` opens and then fails at, or computes wrongly."""
    if on_host(provider):
        return []
    free = unbound(graph)
    return list(faults(free, provider, place(free, provider)[1].host_nodes))


def require_runs(graph: Graph, provider: str) -> None:
    """Refuse a step that would fail when it runs.

    Raises:
        RuntimeUnavailableError: it has such nodes; the first kind is named.
    """
    found = unrunnable(graph, provider)
    if found:
        raise RuntimeUnavailableError(
            fault_notes(found, provider)[0], "change these nodes, or use --provider cpu"
        )
