"""What a simulated step asks of its device: kernels launched, bytes moved, time by the roofline.

On a GPU every node is a launch: a graph of more and smaller nodes may run faster on a CPU, whose
caches hold them, and slower there. Counted from the graph; nothing is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from memplan.ops.cost import Device, node_work, total_work
from memplan.ops.kernels import COPY_OPS
from memplan.simulate.timeline import Timeline
from memplan.units import format_bytes


@dataclass(frozen=True, slots=True)
class StepWork:
    """Of one step. ``launches``: a kernel for every node that is no view and runs on the device
    (some operators launch several); ``copies``: tensors moved between device and host.
    ``moved_bytes``: read and written by both. ``seconds``: the roofline of ``device``, launches one
    after the other."""

    device: str
    launches: int
    copies: int
    moved_bytes: int
    seconds: float

    @property
    def words(self) -> str:
        """Launches, bytes and time, as ``1,204 launches, 3.10 GiB moved, 4.12 ms``."""
        copies = f", {self.copies:,} host copies" if self.copies else ""
        moved = format_bytes(self.moved_bytes)
        return f"{self.launches:,} launches{copies}, {moved} moved, {1000 * self.seconds:,.2f} ms"

    def as_json(self) -> dict[str, object]:
        """All fields."""
        return {
            "device": self.device,
            "launches": self.launches,
            "copies": self.copies,
            "moved_bytes": self.moved_bytes,
            "estimated_seconds": self.seconds,
        }


def step_work(timeline: Timeline, device: Device) -> StepWork:
    """Count the work of a simulated step; what runs on the host is not in it."""
    graph, devices = timeline.graph, timeline.devices
    host = devices.host_tensors if devices is not None else frozenset()
    provider = timeline.session.provider
    kernels, copies = [], []
    for node, work in zip(graph.nodes, node_work(graph, device, provider), strict=True):
        if node.op in COPY_OPS:
            copies.append(work)
        elif not node.writes or not host.issuperset(node.writes):
            kernels.append(work)  # not what the CPU computes, nor Shape, which launches nothing
    whole = total_work([*kernels, *copies])
    return StepWork(
        device.name,
        total_work(kernels).launches,
        len(copies),
        whole.moved_bytes,
        whole.seconds,
    )


def compare_work(before: StepWork, after: StepWork) -> str:
    """One line: what a step asked for, and what it asks for now."""
    change = 100 * (after.seconds / before.seconds - 1) if before.seconds else 0.0
    return f"on {after.device} (estimated): {before.words} -> {after.words} ({change:+.1f}%)"
