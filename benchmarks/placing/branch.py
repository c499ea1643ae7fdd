"""Compiled search for a placement below a given capacity.

Branch and bound over partial placements that grow upwards, as in Moffitt, MiniMalloc (ASPLOS 2023,
sections 4 and 5): a solution whose buffers are all pushed down is built lowest buffer first, a
section of time whose floor and missing bytes exceed the capacity ends a branch, and parts of time
that share no missing buffer are filled one by one. On top of that:

* Branches are the buffers that can lie on the floor of *one* section, the one with the fewest of
  them, instead of all that can come next. It must be a valley: none of its candidates reaches into
  a section with a lower floor, so that nothing can come to lie below them later. One branch more
  leaves a gap there, if the section has bytes to spare.
* When a component cannot be filled, the search goes back to the last choice that touches it.
* States without completion are remembered by a hash of missing buffers and their lowest offsets.
  Two states share a hash with a probability of about 2^-64.
* Every second restart prefers sections that were too small before (after the weights of Boussemart
  et al., Boosting systematic search by weighting constraints, ECAI 2004).
"""

from __future__ import annotations

import numpy as np

from benchmarks.placing.state import (
    UNBOUNDED,
    Sections,
    Stack,
    is_failed,
    lift,
    mixed,
    reset,
    set_failed,
)
from memplan.solver.jit import compiled, inner
from memplan.solver.problem import NONE

FOUND, IMPOSSIBLE, STOPPED = 0, 1, 2
"""How a search ended: a placement, proof that there is none, or at its limit."""

_FILLED, _OPEN, _DEAD = 0, 1, 2


@compiled
def search(sections: Sections, stack: Stack, limit: int, weighted: bool) -> tuple[int, int, int]:
    """Look for a placement in at most ``limit`` nodes: outcome, last depth, nodes.

    When it is found, ``stack.bottom`` of the last depth has the offsets.
    """
    reset(sections, stack)
    depth = 0
    for nodes in range(limit):
        status = pick_component(sections, stack, depth)
        if status == _FILLED:
            return FOUND, depth, nodes
        if status == _OPEN:
            pick_section(sections, stack, depth, weighted)
            list_branches(sections, stack, depth)
        else:
            depth = backjump(sections, stack, depth)
        while depth >= 0 and not advance(sections, stack, depth):
            set_failed(stack.failed, stack.key[depth])
            depth = backjump(sections, stack, depth)
        if depth < 0:
            return IMPOSSIBLE, 0, nodes
        depth += 1
        if depth + 1 == len(stack.bottom):
            return STOPPED, depth, nodes
    return STOPPED, depth, limit


@inner
def pick_component(sections: Sections, stack: Stack, depth: int) -> int:
    """Choose what to fill next: of the parts that share no missing buffer, the smallest.

    Sets ``span`` and ``key``. Filled: nothing is missing. Dead: a part is known to have no
    completion; the span is then that part's.
    """
    fewest = len(sections.size) + 1
    first = end = count = 0
    key = np.uint64(0)
    for i in range(len(sections.size) + 1):
        behind = i == len(sections.size)
        if not behind and stack.placed[i]:
            continue
        if (behind or sections.first[i] >= end) and count > 0:
            failed = is_failed(stack.failed, key)
            if failed or count < fewest:
                fewest = count
                stack.span[depth, 0] = first
                stack.span[depth, 1] = end
                stack.key[depth] = key
            if failed:
                return _DEAD
            count = 0
            key = np.uint64(0)
        if behind:
            break
        if count == 0:
            first = sections.first[i]
            end = first
        count += 1
        end = max(end, sections.last[i])
        key += mixed(stack.bottom[depth, i] * (len(sections.size) + 1) + i + 1)
    return _FILLED if fewest > len(sections.size) else _OPEN


@inner
def find_walls(stack: Stack, depth: int) -> None:
    """For every section of the component, the nearest on either side with a lower floor."""
    first, end = stack.span[depth]
    floor = stack.floor[depth]
    for s in range(first, end):
        wall = s - 1
        while wall >= first and floor[wall] >= floor[s]:
            wall = stack.wall[0, wall]
        stack.wall[0, s] = wall
    for s in range(end - 1, first - 1, -1):
        wall = s + 1
        while wall < end and floor[wall] >= floor[s]:
            wall = stack.wall[1, wall]
        stack.wall[1, s] = wall


@inner
def is_between_walls(sections: Sections, stack: Stack, buffer: int, section: int) -> bool:
    """Whether ``buffer`` reaches into no section with a floor lower than that of ``section``."""
    left, right = stack.wall[0, section], stack.wall[1, section]
    return bool(sections.first[buffer] > left and sections.last[buffer] <= right)


@inner
def candidates(sections: Sections, stack: Stack, depth: int, section: int) -> int:
    """How many buffers can lie on the floor of ``section``; 0 if it is not a valley."""
    floor = stack.floor[depth, section]
    count = 0
    for k in range(sections.start[section], sections.start[section + 1]):
        i = sections.members[k]
        if stack.placed[i] or stack.bottom[depth, i] != floor:
            continue
        if not is_between_walls(sections, stack, i, section):
            return 0
        count += 1
    return count


@inner
def pick_section(sections: Sections, stack: Stack, depth: int, weighted: bool) -> None:
    """Choose the valley with the fewest branches, then with the fewest bytes to spare.

    With ``weighted`` branches count less where little fitted before.
    """
    find_walls(stack, depth)
    best = np.inf
    for s in range(stack.span[depth, 0], stack.span[depth, 1]):
        seen = stack.witness[s]
        floor = stack.floor[depth, s]
        # The usual case first: its own witness shows that it is not a valley.
        at_floor = not stack.placed[seen] and stack.bottom[depth, seen] == floor
        if at_floor and not is_between_walls(sections, stack, seen, s):
            continue
        count = candidates(sections, stack, depth, s)
        if count == 0:
            continue
        spare = sections.capacity - floor - stack.todo[depth, s]
        count += spare > 0
        if not weighted:
            score = count + spare / (sections.capacity + 1.0)
        else:
            score = count / (1.0 + stack.weight[s]) if count > 1 else 0.0
        if score < best:
            best = score
            stack.section[depth] = s


@inner
def list_branches(sections: Sections, stack: Stack, depth: int) -> None:
    """The buffers that can lie on the floor of the chosen section, then the gap.

    Of buffers that are alike in lifetime and size only one is a branch.
    """
    section = stack.section[depth]
    floor = stack.floor[depth, section]
    branches = stack.branches[depth]
    count = 0
    for k in range(sections.start[section], sections.start[section + 1]):
        i = sections.members[k]
        if stack.placed[i] or stack.bottom[depth, i] != floor:
            continue
        alike = False
        for other in branches[:count]:
            alike |= (
                sections.size[i] == sections.size[other]
                and sections.first[i] == sections.first[other]
                and sections.last[i] == sections.last[other]
            )
        if not alike:
            branches[count] = i
            count += 1
    spare = sections.capacity - floor - stack.todo[depth, section]
    if spare > 0:
        stack.above[depth] = next_floor(sections, stack, depth, count)
        if stack.above[depth] - floor <= spare:
            branches[count] = NONE
            count += 1
    stack.listed[depth] = count
    stack.tried[depth] = 0


@inner
def next_floor(sections: Sections, stack: Stack, depth: int, count: int) -> int:
    """The lowest offset in the chosen section if nothing lies on its floor.

    The lowest buffer there is then held up: by a buffer in place, which is in its bottom, or by a
    missing one that does not reach into the section but overlaps one of the ``count`` candidates.
    """
    section = stack.section[depth]
    floor = stack.floor[depth, section]
    lowest = UNBOUNDED
    for k in range(sections.start[section], sections.start[section + 1]):
        i = sections.members[k]
        if not stack.placed[i] and stack.bottom[depth, i] > floor:
            lowest = min(lowest, stack.bottom[depth, i])
    first = end = section
    for i in stack.branches[depth, :count]:
        first = min(first, sections.first[i])
        end = max(end, sections.last[i])
    for i in range(len(sections.size)):
        if sections.first[i] >= end:
            break
        if stack.placed[i] or sections.last[i] <= first:
            continue
        if sections.last[i] <= section or sections.first[i] > section:
            top = stack.bottom[depth, i] + sections.size[i]
            if top > floor:
                lowest = min(lowest, top)
    return int(lowest)


@inner
def advance(sections: Sections, stack: Stack, depth: int) -> bool:
    """Take the next branch that does not fail at once, into the stack at ``depth + 1``."""
    while stack.tried[depth] < stack.listed[depth]:
        i = stack.branches[depth, stack.tried[depth]]
        stack.tried[depth] += 1
        stack.chosen[depth] = i
        stack.bottom[depth + 1] = stack.bottom[depth]
        stack.floor[depth + 1] = stack.floor[depth]
        stack.todo[depth + 1] = stack.todo[depth]
        if i == NONE:
            first = stack.section[depth]
            end, level = first + 1, stack.above[depth]
        else:
            stack.placed[i] = True
            first, end = sections.first[i], sections.last[i]
            level = stack.bottom[depth, i] + sections.size[i]
            for s in range(first, end):
                stack.todo[depth + 1, s] -= sections.size[i]
        if lift(sections, stack, depth + 1, first, end, level):
            return True
        if i != NONE:
            stack.placed[i] = False
    return False


@inner
def backjump(sections: Sections, stack: Stack, depth: int) -> int:
    """Undo choices up to the last one that touches the component at ``depth``; -1: there is none.

    What lies elsewhere cannot help it.
    """
    first, end = stack.span[depth]
    for d in range(depth - 1, -1, -1):
        i = stack.chosen[d]
        if i == NONE:
            touches = first <= stack.section[d] < end
        else:
            stack.placed[i] = False
            touches = sections.first[i] < end and sections.last[i] > first
        if touches:
            return d
    return NONE
