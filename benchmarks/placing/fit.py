"""Compiled best-fit and first-fit: buffers one by one, each into a gap between those in place.

Which order the buffers come in decides the height; see :mod:`benchmarks.placing.place`.
"""

from __future__ import annotations

import numpy as np

from memplan.solver.jit import compiled
from memplan.solver.problem import Ints

NOWHERE = -1
"""Offset of a buffer that is not in place yet."""

# Buffers are sorted by start and visited in blocks; a block none of whose placed buffers reaches
# into the present lifetime is skipped.
_BLOCK = 64


@compiled
def fit_in_order(
    order: Ints, lower: Ints, upper: Ints, size: Ints, smallest: bool
) -> tuple[Ints, int]:
    """Offsets and height when the buffers are placed in ``order``.

    ``lower`` must be ascending. Each buffer goes into the smallest gap that holds it (the lowest of
    equals), or into the lowest one unless ``smallest``; without a gap, above all that overlap it in
    time. Takes the sum over all buffers of the placed ones that overlap it in time, times a
    logarithm.
    """
    n = len(size)
    reach = np.zeros((n + _BLOCK - 1) // _BLOCK, np.int64)
    offset = np.full(n, NOWHERE, np.int64)
    near = np.empty(n, np.int64)
    bottom = np.empty(n, np.int64)
    height = 0
    for i in order:
        count = 0
        for block in range(len(reach)):
            if lower[block * _BLOCK] >= upper[i]:
                break
            if reach[block] <= lower[i]:
                continue
            for j in range(block * _BLOCK, min(n, (block + 1) * _BLOCK)):
                if offset[j] != NOWHERE and upper[j] > lower[i] and lower[j] < upper[i]:
                    near[count] = j
                    bottom[count] = offset[j]
                    count += 1
        end = 0
        found = NOWHERE
        narrowest = np.int64(1) << 62
        for k in np.argsort(bottom[:count]):
            gap = bottom[k] - end
            if size[i] <= gap < narrowest:
                narrowest = gap
                found = end
                if not smallest or gap == size[i]:
                    break
            end = max(end, bottom[k] + size[near[k]])
        offset[i] = end if found == NOWHERE else found
        height = max(height, offset[i] + size[i])
        reach[i // _BLOCK] = max(reach[i // _BLOCK], upper[i])
    return offset, height
