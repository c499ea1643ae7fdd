"""Nodes and tensors that a GPU's provider takes and cannot run, told before anything runs."""

from __future__ import annotations

from memplan.errors import RuntimeUnavailableError
from memplan.ir.graph import Graph
from memplan.ops.faults import fault_notes, faults
from memplan.providers import PROVIDERS, on_host
from memplan.runtime.adapters import largest_buffer
from memplan.simulate.devices import place
from memplan.simulate.state_memory import unbound
from memplan.units import format_bytes


def require_runs(graph: Graph, provider: str, *, here: bool = True) -> None:
    """Refuse a step that would fail when it runs: at a node, or at a tensor that no buffer of this
    machine's adapters holds.

    Args:
        graph: shapes known.
        provider: see :mod:`memplan.providers`.
        here: whether it runs on this machine.

    Raises:
        RuntimeUnavailableError: it would; the first kind of node, or the largest tensor, is named.
    """
    if on_host(provider):
        return
    held, devices = place(unbound(graph), provider)
    failing = list(faults(graph, provider, devices.host_nodes))
    if failing:
        other = "'memplan grad' and 'memplan capture' write it otherwise with --portable"
        way = other if failing[0].op == "MaxPool" else "change these nodes"
        raise RuntimeUnavailableError(
            fault_notes(failing, provider)[0], f"{way}, or use --provider cpu"
        )
    limit = largest_buffer() if here and PROVIDERS[provider].plugin else None
    if limit is None:
        return
    adapter, most = limit
    on_device = [tensor for tensor in held.tensors if tensor.id not in devices.host_tensors]
    largest = max(on_device, key=lambda tensor: tensor.nbytes, default=None)
    if largest is not None and largest.nbytes > most:
        raise RuntimeUnavailableError(
            f"tensor '{largest.name}' takes {largest.nbytes:,} B ({format_bytes(largest.nbytes)}), "
            f"and a buffer of {adapter} at most {most:,} B",
            "use a smaller batch, or --provider cpu",
        )
