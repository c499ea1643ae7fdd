"""What a run on CUDA says beside its peak: the CPU's share, counted bytes, arenas."""

from __future__ import annotations

from collections import Counter

from memplan.analysis import OpenModel
from memplan.runtime.measure import Measurement
from memplan.runtime.providers import PROVIDER_NAMES
from memplan.simulate.devices import Devices, Fallback
from memplan.units import format_bytes

_NAMED = 3
_CUDA = PROVIDER_NAMES["cuda"]


def fallback_notes(devices: Devices | None) -> list[str]:
    """One line for nodes without a kernel, one for those that stay on the host by choice."""
    if devices is None:
        return []
    return [
        *_line([f for f in devices.fallbacks if not f.by_choice], "have no CUDA kernel and"),
        *_line([f for f in devices.fallbacks if f.by_choice], "compute on host tensors and"),
    ]


def _line(fallbacks: list[Fallback], why: str) -> list[str]:
    if not fallbacks:
        return []
    ops = ", ".join(f"{op} ×{n}" for op, n in Counter(f.op for f in fallbacks).most_common(8))
    worst = sorted(fallbacks, key=lambda f: -(f.to_host_bytes + f.to_device_bytes))[:_NAMED]
    named = "; ".join(
        f"{f.name}: {f.to_host_bytes:,} B to the host, {f.to_device_bytes:,} B back" for f in worst
    )
    count = len(fallbacks)
    what = "node" if count == 1 else "nodes"
    verb = why.replace("have", "has").replace("compute ", "computes ") if count == 1 else why
    runs = "runs" if count == 1 else "run"
    return [f"cuda: {count} {what} {verb} {runs} on the CPU: {ops} ({named})"]


def fallbacks_json(devices: Devices) -> list[dict[str, object]]:
    """The nodes that run on the CPU, with the bytes that they drag across."""
    return [
        {
            "node": f.name,
            "op": f.op,
            "to_host_bytes": f.to_host_bytes,
            "to_device_bytes": f.to_device_bytes,
            "has_cuda_kernel": f.by_choice,
        }
        for f in devices.fallbacks
    ]


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


def misplaced(model: OpenModel, measured: Measurement) -> list[str]:
    """Nodes of the file that ran on another provider than predicted; empty on the CPU."""
    if model.devices is None:
        return []
    on_host = {
        node.name: node.id in model.devices.host_nodes
        for node in model.graph.nodes
        if node.id not in model.devices.copies
    }
    return sorted(
        {
            node.name
            for node in measured.nodes
            if node.name in on_host and on_host[node.name] == (node.provider == _CUDA)
        }
    )
