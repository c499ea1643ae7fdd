"""PyTorch memory snapshot: opens at pytorch.org/memory_viz, without PyTorch.

The layout is that of ``torch.cuda.memory._snapshot()`` as far as the viewer reads it (source:
``torch/utils/viz/MemoryViz.js``): plain dicts, lists, strings and integers in pickle protocol 4.
Addresses are places in ONNX Runtime's memory pattern (:mod:`memplan.simulate.pattern`), so its
fragmentation shows. Initializers and graph inputs stand in a segment of their own and have no
events: they are there before the run.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from memplan.api.analysis import Analysis
from memplan.ir.graph import Tensor
from memplan.simulate.allocation import Buffer, is_resident
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
    frames = _FrameBook(analysis)
    segments = [*_resident_segment(analysis, frames), *_run_segments(analysis, frames)]
    content = {"segments": segments, "device_traces": [_events(analysis, frames)]}
    return pickle.dumps(content, protocol=_PROTOCOL)


@dataclass(frozen=True, slots=True)
class _Block:
    """A chunk of ``size`` bytes; free if nothing was requested."""

    size: int
    requested: int
    frames: Frames

    def record(self) -> Record:
        """As the viewer reads it."""
        return {
            "size": self.size,
            "requested_size": self.requested,
            "state": "active_allocated" if self.requested else "inactive",
            "frames": self.frames,
        }


class _FrameBook:
    """The one-entry "stack" of every tensor; lists are shared, so the pickle stays small."""

    def __init__(self, analysis: Analysis) -> None:
        self.filename = PurePath(analysis.path).name
        self.analysis = analysis
        self.explainer = analysis.explainer
        self._of: dict[int, Frames] = {}

    def of_buffer(self, buffer: Buffer) -> Frames:
        """The frame of a buffer: the node that it was allocated for."""
        if buffer.id not in self._of:
            graph = self.analysis.graph
            root = graph.tensors[buffer.root]
            node = graph.nodes[root.producer]
            kind = self.explainer.buffer_class(buffer)
            name = f"{node.op} {node.name} -> {root.name} [{kind}]"
            self._of[buffer.id] = self._frame(name, buffer.birth)
        return self._of[buffer.id]

    def of_resident(self, tensor: Tensor) -> Frames:
        """The frame of an initializer or graph input."""
        return self._frame(f"{tensor.name} [{self.explainer.class_of(tensor)}]", 0)

    def _frame(self, name: str, line: int) -> Frames:
        return [{"name": name, "filename": self.filename, "line": line}]


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


def _events(analysis: Analysis, frames: _FrameBook) -> list[Record]:
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
                "frames": frames.of_buffer(buffer),
            }
        )
    return events


def _resident_segment(analysis: Analysis, frames: _FrameBook) -> Iterator[Record]:
    """One segment with a block per initializer and graph input; none without any."""
    blocks = [
        _Block(rounded(tensor.nbytes), tensor.nbytes, frames.of_resident(tensor))
        for tensor in analysis.graph.tensors
        if is_resident(tensor) and tensor.nbytes
    ]
    if blocks:
        yield _segment(_RESIDENT_ADDRESS, blocks)


def _run_segments(analysis: Analysis, frames: _FrameBook) -> Iterator[Record]:
    """The block, free when the run has ended, and the outputs, which are in use."""
    allocation = analysis.timeline.allocation
    nbytes = pattern_block(allocation).block_bytes
    if nbytes:
        yield _segment(_BLOCK_ADDRESS, [_Block(nbytes, 0, [])])
    outputs = [
        _Block(rounded(buffer.nbytes), buffer.nbytes, frames.of_buffer(buffer))
        for buffer in allocation.buffers
        if buffer.is_output and buffer.nbytes
    ]
    if outputs:
        yield _segment(_OUTPUT_ADDRESS, outputs)


def _segment(address: int, blocks: list[_Block]) -> Record:
    active = sum(block.size for block in blocks if block.requested)
    return {
        "device": _DEVICE,
        "address": address,
        "total_size": sum(block.size for block in blocks),
        "stream": _STREAM,
        "segment_type": "large",
        "allocated_size": active,
        "active_size": active,
        "requested_size": sum(block.requested for block in blocks),
        "frames": [],
        "blocks": [block.record() for block in blocks],
    }
