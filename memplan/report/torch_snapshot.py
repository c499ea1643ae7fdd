"""PyTorch memory snapshot: opens at pytorch.org/memory_viz, without PyTorch.

The layout is that of ``torch.cuda.memory._snapshot()`` as far as the viewer reads it (source:
``torch/utils/viz/MemoryViz.js``): plain dicts, lists, strings and integers in pickle protocol 4.
Addresses are places in ONNX Runtime's memory pattern (:mod:`memplan.simulate.pattern`), so its
fragmentation shows. Initializers and graph inputs stand in a segment of their own and have no
events: they are there before the run.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from memplan.api.analysis import Analysis
from memplan.simulate.allocation import is_resident
from memplan.simulate.free_space import rounded
from memplan.simulate.pattern import pattern_block

_DEVICE = 0
_STREAM = 0
_PROTOCOL = 4
# Segments lie far apart: resident tensors, the block of the memory pattern, graph outputs.
_RESIDENT_ADDRESS, _BLOCK_ADDRESS, _OUTPUT_ADDRESS = 1 << 40, 1 << 44, 1 << 46

Frames = list[dict[str, object]]
Record = dict[str, object]


def torch_snapshot(analysis: Analysis) -> bytes:
    """The analysis as a pickled memory snapshot, taken when the run has ended.

    Events are in step order, with ``time_us`` the step index; sizes are requested bytes, and the
    ``line`` of a frame is the step. Graph outputs are still allocated at the end. Tensors inside
    control-flow bodies have no events.
    """
    frames = _buffer_frames(analysis)
    content = {
        "segments": _segments(analysis, frames),
        "device_traces": [_events(analysis, frames)],
    }
    return pickle.dumps(content, protocol=_PROTOCOL)


def _buffer_frames(analysis: Analysis) -> dict[int, Frames]:
    """The one-entry "stack" of every buffer, by its id: the node that it was allocated for. Lists
    are shared, so the pickle stays small."""
    graph, found = analysis.graph, {}
    for buffer in analysis.timeline.allocation.buffers:
        root = graph.tensors[buffer.root]
        node = graph.nodes[root.producer]
        kind = analysis.explainer.buffer_class(buffer)
        name = f"{node.op} {node.name} -> {root.name} [{kind}]"
        found[buffer.id] = _frame(analysis, name, buffer.birth)
    return found


def _frame(analysis: Analysis, name: str, line: int) -> Frames:
    return [{"name": name, "filename": PurePath(analysis.path).name, "line": line}]


def _addresses(analysis: Analysis) -> Mapping[int, int]:
    """Where buffers lie, by id; none for what is empty."""
    allocation = analysis.timeline.allocation
    offsets = pattern_block(allocation).offsets
    found, end = {}, _OUTPUT_ADDRESS
    for buffer in allocation.buffers:
        if not buffer.nbytes:
            continue
        found[buffer.id] = end if buffer.is_output else _BLOCK_ADDRESS + offsets[buffer.id]
        end += rounded(buffer.nbytes) if buffer.is_output else 0
    return found


def _events(analysis: Analysis, frames: Mapping[int, Frames]) -> list[Record]:
    """Allocations and releases in the order in which the run makes them."""
    addresses = _addresses(analysis)
    placed = [b for b in analysis.timeline.allocation.buffers if b.id in addresses]
    released = [b for b in placed if not b.is_output]
    # At equal steps a node allocates its outputs (1) after the step before released (0).
    moments = [(b.birth, 1, b.id, b) for b in placed]
    moments += [(b.death, 0, b.id, b) for b in released]
    events: list[Record] = []
    for step, allocates, _, buffer in sorted(moments, key=lambda moment: moment[:3]):
        events.append(
            {
                "action": "alloc" if allocates else "free_completed",
                "addr": addresses[buffer.id],
                "size": buffer.nbytes,
                "stream": _STREAM,
                "time_us": step if allocates else step - 1,
                "frames": frames[buffer.id],
            }
        )
    return events


def _segments(analysis: Analysis, frames: Mapping[int, Frames]) -> list[Record]:
    """Initializers and graph inputs; the block, free when the run has ended; the outputs, which are
    in use. None for what there is nothing of."""
    resident = [
        _block(t.nbytes, _frame(analysis, f"{t.name} [{analysis.explainer.class_of(t)}]", 0))
        for t in analysis.graph.tensors
        if is_resident(t) and t.nbytes
    ]
    allocation = analysis.timeline.allocation
    nbytes = pattern_block(allocation).block_bytes
    free = {"size": nbytes, "requested_size": 0, "state": "inactive", "frames": []}
    outputs = [
        _block(buffer.nbytes, frames[buffer.id])
        for buffer in allocation.buffers
        if buffer.is_output and buffer.nbytes
    ]
    return [
        *_segment(_RESIDENT_ADDRESS, resident),
        *_segment(_BLOCK_ADDRESS, [free] if nbytes else []),
        *_segment(_OUTPUT_ADDRESS, outputs),
    ]


def _block(nbytes: int, frames: Frames) -> dict[str, Any]:
    """What is in use."""
    return {
        "size": rounded(nbytes),
        "requested_size": nbytes,
        "state": "active_allocated",
        "frames": frames,
    }


def _segment(address: int, blocks: Sequence[Mapping[str, Any]]) -> list[Record]:
    """A segment of blocks; none of none."""
    if not blocks:
        return []
    active = sum(block["size"] for block in blocks if block["requested_size"])
    return [
        {
            "device": _DEVICE,
            "address": address,
            "total_size": sum(block["size"] for block in blocks),
            "stream": _STREAM,
            "segment_type": "large",
            "allocated_size": active,
            "active_size": active,
            "requested_size": sum(block["requested_size"] for block in blocks),
            "frames": [],
            "blocks": blocks,
        }
    ]
