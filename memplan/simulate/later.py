"""Memory of the second and every later run of a session with memory patterns (the default).

In the first run ONNX Runtime notes where its buffers would lie in one block. From then on, for
inputs of the same shapes, it allocates that block when a run starts and holds it to the end, with
the graph outputs beside it (``execution_frame.cc``, ``mem_pattern_planner.h``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from memplan.simulate.arena import pattern_block
from memplan.simulate.timeline import Timeline, live_bytes


@dataclass(frozen=True, slots=True)
class LaterRuns:
    """Peaks in bytes, resident ones included; ``block_bytes`` is what is held all the time."""

    block_bytes: int
    dynamic_peak_bytes: int
    peak_bytes: int
    peak_with_workspace_bytes: int


def later_runs(timeline: Timeline) -> LaterRuns:
    """What every run after the first one of the same session needs."""
    allocation = timeline.allocation
    if timeline.devices is not None:
        away = timeline.devices.host_tensors
        here = [b for b in allocation.buffers if b.root not in away]
        kept = tuple(replace(b, id=index) for index, b in enumerate(here))
        allocation = replace(allocation, buffers=kept)
    block = pattern_block(allocation).block_bytes
    outputs = np.zeros(len(allocation.order), np.int64)
    for buffer in allocation.buffers:
        if buffer.is_output:
            outputs[buffer.birth :] += buffer.nbytes
    inside = timeline.dynamic - live_bytes(allocation)
    dynamic = block + outputs + inside
    highest = int(dynamic.max(initial=0))
    resident = timeline.resident_bytes
    return LaterRuns(
        block_bytes=block,
        dynamic_peak_bytes=highest,
        peak_bytes=resident + highest,
        peak_with_workspace_bytes=resident + int((dynamic + timeline.workspace).max(initial=0)),
    )
