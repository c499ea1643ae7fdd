"""Nodes that a GPU's provider takes and cannot run, told before anything runs."""

from __future__ import annotations

from memplan.errors import RuntimeUnavailableError
from memplan.ir.graph import Graph
from memplan.ops.faults import Fault, fault_notes, faults
from memplan.providers import PROVIDERS, on_host
from memplan.runtime.adapters import largest_buffer
from memplan.simulate.devices import place
from memplan.simulate.state_memory import unbound
from memplan.units import format_bytes


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
        other = "'memplan grad' and 'memplan capture' write it otherwise with --portable"
        way = other if found[0].op == "MaxPool" else "change these nodes"
        raise RuntimeUnavailableError(
            fault_notes(found, provider)[0], f"{way}, or use --provider cpu"
        )


def require_fits(graph: Graph, provider: str) -> None:
    """Refuse a step with a tensor that the adapters of this machine hold in no buffer.

    Raises:
        RuntimeUnavailableError: there is one; the largest is named.
    """
    limit = largest_buffer() if PROVIDERS[provider].plugin else None
    if limit is None:
        return
    held, devices = place(unbound(graph), provider)
    on_device = [tensor for tensor in held.tensors if tensor.id not in devices.host_tensors]
    largest = max(on_device, key=lambda tensor: tensor.nbytes, default=None)
    adapter, most = limit
    if largest is not None and largest.nbytes > most:
        raise RuntimeUnavailableError(
            f"tensor '{largest.name}' takes {largest.nbytes:,} B ({format_bytes(largest.nbytes)}), "
            f"and a buffer of {adapter} at most {most:,} B",
            "use a smaller batch, or --provider cpu",
        )
