"""The nodes of a CUDA session that run on the CPU, told to the user."""

from __future__ import annotations

from collections import Counter

from memplan.simulate.devices import Devices, Fallback

_NAMED = 3


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
