"""What a run on a GPU says beside its peak: counted bytes, arenas, nodes that ran elsewhere, sums
that threads may add in another order.

Tested against a stub of the CUDA runtime, never on a GPU.
"""

from __future__ import annotations

from memplan.ir.graph import ABSENT, Graph
from memplan.providers import PROVIDERS
from memplan.runtime.messages import Measurement
from memplan.simulate.opened import OpenModel
from memplan.units import format_bytes


def measured_notes(measured: Measurement, resident_bytes: int) -> list[str]:
    """The cross-check of the peak, what arena options do, and what the device lost in all."""
    cuda = measured.cuda
    if cuda is None:
        return []
    profiled = resident_bytes + measured.dynamic_bytes
    beside = cuda.counted_peak_bytes - profiled
    tight, usual = cuda.tight_arena_bytes, measured.arena_bytes
    lines = [
        f"cuda: an allocator that counts saw {cuda.counted_peak_bytes:,} B asked for at once, "
        f"{abs(beside):,} B {'more' if beside >= 0 else 'less'} than the profiler, which does not "
        "see workspace within kernels",
        f"cuda: the arena held {usual:,} B; with arena_extend_strategy=kSameAsRequested "
        f"{tight:,} B ({100 * (tight / usual - 1) if usual else 0:+.1f}%)"
        + (
            ". Recommended: providers=[('CUDAExecutionProvider', "
            "{'arena_extend_strategy': 'kSameAsRequested'})]"
            if tight < usual
            else ""
        ),
    ]
    if cuda.device_taken_bytes is not None:
        rest = cuda.device_taken_bytes - usual
        lines.append(
            f"cuda: the device's free memory fell by {cuda.device_taken_bytes:,} B, "
            f"{format_bytes(max(rest, 0))} of it outside the arena (context, kernels, libraries); "
            "leave that with --reserve"
        )
    return lines


def uncounted_notes(provider: str) -> list[str]:
    """What a run shows of memory where the provider tells nothing of it."""
    if PROVIDERS[provider].counts:
        return []
    return [
        f"{provider}: placed, run and compared; memory is predicted only, as the provider does not "
        "say what it uses, and it keeps freed buffers (docs/any-gpu.md)"
    ]


SCATTERED = (
    "webgpu: ScatterElements and ScatterND add in whatever order threads come, so sums at repeated "
    "indices (gradients of embeddings) may differ in their last bits from run to run"
)


def scattered_sums(graph: Graph) -> frozenset[str]:
    """The tensors that sums at indices lead to."""
    found = set[int]()
    for node in graph.nodes:
        adds = node.attributes.get("reduction") in (b"add", "add")
        scatters = adds and node.key in (":ScatterElements", ":ScatterND")
        if scatters or not found.isdisjoint((*node.inputs, *node.captured)):
            found.update(tensor for tensor in node.outputs if tensor != ABSENT)
    return frozenset(graph.tensors[tensor].name for tensor in found)


def misplaced(model: OpenModel, measured: Measurement, provider: str) -> list[str]:
    """Nodes of the file that ran on another provider than predicted; empty on the CPU."""
    if model.devices is None:
        return []
    own = PROVIDERS[provider].runtime_name
    on_host = {
        node.name: node.id in model.devices.host_nodes
        for node in model.graph.nodes
        if node.id not in model.devices.copies
    }
    return sorted(
        {
            node.name
            for node in measured.nodes
            if node.name in on_host and on_host[node.name] == (node.provider == own)
        }
    )
