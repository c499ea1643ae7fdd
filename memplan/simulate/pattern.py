"""Memory patterns: the second and every later run of a session that has them (the default).

In the first run ONNX Runtime notes where its buffers would lie in one block. From then on, for
inputs of the same shapes, it allocates that block when a run starts and holds it to the end, with
the graph outputs beside it. Sources: ``MemPatternPlanner::TraceAllocation`` in
``onnxruntime/core/framework/mem_pattern_planner.h``, and ``execution_frame.cc``; the block is equal
to the byte to that of ONNX Runtime 1.31.1 for 17 models in file order and in default order.
"""

from __future__ import annotations

from dataclasses import dataclass

from memplan.ir.graph import ABSENT
from memplan.simulate.allocation import Allocation
from memplan.simulate.free_space import FreeSpace, by_step, rounded


@dataclass(frozen=True, slots=True)
class PatternBlock:
    """The memory-pattern block, held for the whole run, and the outputs beside it, in bytes.

    ``offsets`` holds, by buffer id, the place within the block; ABSENT for graph outputs, which
    are allocated on their own.
    """

    block_bytes: int
    output_bytes: int
    offsets: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        """Block and outputs: what tensors occupy at the end of a run."""
        return self.block_bytes + self.output_bytes


def pattern_block(allocation: Allocation) -> PatternBlock:
    """The block that ONNX Runtime's memory pattern holds from the second run on.

    Every buffer but the graph outputs goes, in order of birth, into the smallest gap that holds
    it (the lowest of equals); without one it goes behind the last live buffer. Buffers nobody
    reads are never freed, so their place is not used again. ONNX Runtime scans all live blocks per
    buffer; keeping the gaps sorted gives the same offsets in O(n log n) searches.
    """
    gaps = FreeSpace()
    end = 0
    offsets = [ABSENT if buffer.is_output else 0 for buffer in allocation.buffers]
    births, deaths = by_step(allocation)
    for step in range(len(allocation.order)):
        for buffer in births[step]:
            size = rounded(buffer.nbytes)
            if buffer.is_output or size == 0:
                continue
            gap = gaps.take(size)
            if gap is None:
                # The gap at the end is too small: the block grows, and the buffer starts in it.
                start = gaps.take_last(end)
                end = start + size
            else:
                start, found = gap
                gaps.give(start + size, found - size)
            offsets[buffer.id] = start
        for buffer in deaths[step + 1]:
            if not buffer.is_output:
                gaps.give(offsets[buffer.id], rounded(buffer.nbytes))
    outputs = sum(buffer.nbytes for buffer in allocation.buffers if buffer.is_output)
    return PatternBlock(end, outputs, tuple(offsets))
