"""What the placement search knows: the sections of time, and a stack of partial placements."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memplan.solver.jit import inner
from memplan.solver.problem import Flags, Floats, Ints

Words = npt.NDArray[np.uint64]

UNBOUNDED = 1 << 60
"""Floor of a section in which every buffer is in place."""

# Slots that are tried before an entry of the table of failures is overwritten.
_PROBES = 8


class Sections(NamedTuple):
    """Buffers against time. Time is cut into the ``S`` largest sets of buffers live at once.

    Every other moment's buffers are a subset of one of these, so nothing else can matter. Buffers
    are sorted by ``first``; ``size`` and ``capacity`` are in bytes, sizes positive.
    """

    first: Ints  # (n) first section of each buffer
    last: Ints  # (n) one behind its last section
    size: Ints  # (n)
    start: Ints  # (S+1) into members
    members: Ints  # buffers of every section, the ones to be tried first in front
    capacity: int


class Stack(NamedTuple):
    """Partial placements, one per depth ``D``, and what was learnt on the way.

    ``bottom[d, i]`` is the lowest offset that buffer ``i`` can have, or the one it has; ``floor``
    the lowest of a section's buffers not in place, and ``todo`` their bytes.
    """

    bottom: Ints  # (D, n)
    floor: Ints  # (D, S)
    todo: Ints  # (D, S)
    placed: Flags  # (n)
    witness: Ints  # (S) a buffer at the floor, unless that has changed
    chosen: Ints  # (D) buffer placed by this depth's present branch; NONE: the gap is left
    section: Ints  # (D) section that is branched on
    above: Ints  # (D) its floor if the gap is left
    span: Ints  # (D, 2) sections of the component that is being filled
    key: Words  # (D) hash of that component's state
    branches: Ints  # (D, widest section + 1)
    listed: Ints  # (D) how many branches there are
    tried: Ints  # (D) how many were taken
    wall: Ints  # (2, S) nearest lower floor to the left and right
    weight: Floats  # (S) how often the section was too small
    failed: Words  # hashes of component states that cannot be completed


@inner
def mixed(value: int) -> np.uint64:
    """The bits of ``value`` spread over a word (splitmix64's finalizer, Steele et al. 2014)."""
    z = np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inner
def is_failed(table: Words, key: np.uint64) -> bool:
    """Whether a state is known to have no completion."""
    mask = np.uint64(len(table) - 1)
    slot = key & mask
    for _ in range(_PROBES):
        if table[slot] == key:
            return True
        if table[slot] == np.uint64(0):
            return False
        slot = (slot + np.uint64(1)) & mask
    return False


@inner
def set_failed(table: Words, key: np.uint64) -> None:
    """Note a state without completion; where the table is full, an older one is forgotten."""
    mask = np.uint64(len(table) - 1)
    slot = key & mask
    for _ in range(_PROBES):
        if table[slot] == np.uint64(0):
            break
        slot = (slot + np.uint64(1)) & mask
    if table[slot] != np.uint64(0):
        slot = key & mask
    table[slot] = key


@inner
def reset(sections: Sections, stack: Stack) -> None:
    """Nothing is in place, every bottom and floor is 0. What was learnt stays."""
    stack.placed[:] = False
    stack.bottom[0] = 0
    stack.floor[0] = 0
    stack.todo[0] = 0
    for i in range(len(sections.size)):
        for s in range(sections.first[i], sections.last[i]):
            stack.todo[0, s] += sections.size[i]
    for s in range(len(stack.witness)):
        stack.witness[s] = sections.members[sections.start[s]]


@inner
def lift(sections: Sections, stack: Stack, depth: int, first: int, last: int, level: int) -> bool:
    """Nothing more can lie below ``level`` in sections ``first`` to ``last``.

    Raises the bottoms of the buffers there, then the floors of all sections that they reach.
    False: something does not fit any more.
    """
    bottom = stack.bottom[depth]
    low, high = first, last
    for i in range(len(sections.size)):
        if sections.first[i] >= last:
            break
        if stack.placed[i] or sections.last[i] <= first or bottom[i] >= level:
            continue
        bottom[i] = level
        if level + sections.size[i] > sections.capacity:
            width = sections.last[i] - sections.first[i]
            for s in range(sections.first[i], sections.last[i]):
                stack.weight[s] += 1.0 / width
            return False
        low = min(low, sections.first[i])
        high = max(high, sections.last[i])
    for s in range(low, high):
        seen = stack.witness[s]
        if stack.placed[seen] or bottom[seen] != stack.floor[depth, s]:
            raise_floor(sections, stack, depth, s)
            todo = stack.todo[depth, s]
            if todo > 0 and stack.floor[depth, s] + todo > sections.capacity:
                stack.weight[s] += 1.0
                return False
    return True


@inner
def raise_floor(sections: Sections, stack: Stack, depth: int, section: int) -> None:
    """Compute the floor of a section anew, and who lies there."""
    lowest = UNBOUNDED
    for k in range(sections.start[section], sections.start[section + 1]):
        i = sections.members[k]
        if not stack.placed[i] and stack.bottom[depth, i] < lowest:
            lowest = stack.bottom[depth, i]
            stack.witness[section] = i
            # Floors only rise.
            if lowest == stack.floor[depth, section]:
                break
    stack.floor[depth, section] = lowest
