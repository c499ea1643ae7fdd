"""Memory of a plain session, and the fewest pins with which it keeps a budget.

ONNX Runtime's default order is a depth-first search from the nodes that nobody reads, the last
one in the file first. A *pin* is such a node: it reads one tensor and does nothing. Pins that
stand at the end of the file, the one for the first node last, are visited in plan order, so that a
pinned node has run, with all that it needs, before the next pin is looked at. With every node
pinned the runtime keeps the plan's order; with fewer it decides more for itself. What that does
to memory is simulated here for each choice: order, buffer reuse, and the block that the memory
pattern holds from the second run on. No ONNX in here.

Its oracle is :mod:`memplan.simulate.allocation` (with ``run_order.py`` and ``pattern.py`` beside
it): two programs whose figures must agree to the byte whenever a model is written. That is worth
something only while they share no code, so neither may ever import the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memplan.deadline import Deadline
from memplan.solver.jit import compiled, leaf
from memplan.solver.order.depth_first import visit
from memplan.solver.problem import NONE, Arrays, Flags, Ints

_ALIGNMENT = 256
# Attempts to leave room for what pins take themselves.
_ATTEMPTS = 5


class Session(NamedTuple):
    """A graph in file order, and what a plain session makes of it.

    ``arrays`` as in :mod:`memplan.solver.problem` (``maker``, ``rank``, ``cost`` unused; equal
    numbers in ``alike`` only where the runtime knows the dimensions).
    """

    arrays: Arrays
    edge_start: Ints  # (N+1)
    edges: Ints  # producers of what each node reads, ascending
    leaf: Flags  # (N) nobody reads it
    readers: Ints  # (T) read slots
    reusable: Flags  # (T) may take a dead buffer: rank of at least 1
    pin_of: Ints  # (N) the tensor that a pin would read, or NONE
    looped: Ints  # (N) what later runs hold twice while a body runs
    pin_bytes: Ints  # (N) what the pin's own result takes, to the end of the run


class Peaks(NamedTuple):
    """Bytes with workspace, without resident ones: of the first run, and of every later one."""

    first: int
    later: int


@leaf
def run_order(session: Session, pinned: Flags, stack: Ints, seen: Flags, order: Ints) -> int:
    """Fill ``order`` with node ids, and ``N + i`` for the pin of node ``i``; its length.

    The default order (:mod:`memplan.solver.order.depth_first`).
    """
    nodes = len(session.leaf)
    length = 0 * nodes
    for turn in range(2 * nodes):
        # Pins are visited in file order of what they pin, then leaves from the last one back.
        root = turn if turn < nodes else 2 * nodes - 1 - turn
        if turn < nodes and not pinned[root]:
            continue
        if turn >= nodes and (pinned[root] or not session.leaf[root]):
            continue
        length = visit(root, session.edge_start, session.edges, stack, seen, order, length)
        if turn < nodes:
            order[length] = nodes + root
            length += 1
    return length


@leaf
def file_order(session: Session, pinned: Flags, order: Ints) -> int:
    """The same in a priority-based session: as in the file, pins behind the ``Shape`` and ``Size``
    of the file, which are as eager; that of the later node first."""
    nodes, last = len(session.leaf), len(order) - 1
    length, held = 0 * nodes, 0  # pins that wait stand at the end of ``order``
    for node in range(nodes + 1):
        if node == nodes or not session.arrays.eager[node]:
            for k in range(held):
                order[length + k] = order[last - held + 1 + k]
            length, held = length + held, 0
        if node < nodes:
            order[length] = node
            order[last - held] = nodes + node
            length, held = length + 1, held + pinned[node]
    return length


class Buffers(NamedTuple):
    """State of the runtime's allocation planner; a buffer is named by its root tensor."""

    root: Ints  # (T)
    uses: Ints  # (T) by root
    birth: Ints  # (T) by root, NONE: not a buffer
    last: Ints  # (T) by root: last step that reads a member, NONE: nobody does
    head: Ints  # by class of equal dimensions: the most recently freed buffer, or NONE
    below: Ints  # (T) by root: the buffer freed before it


@leaf
def release(arrays: Arrays, buffers: Buffers, tensor: int) -> None:
    """One use less; a buffer without uses may be taken over."""
    root = buffers.root[tensor]
    buffers.uses[root] -= 1
    if buffers.uses[root] == 0:
        buffers.below[root] = buffers.head[arrays.alike[root]]
        buffers.head[arrays.alike[root]] = root


@leaf
def source_of(session: Session, buffers: Buffers, slot: int, tensor: int, pinned: bool) -> int:
    """The tensor whose buffer write ``slot`` takes by rules 2 to 4, or NONE."""
    arrays = session.arrays
    if arrays.pinned[tensor]:
        return NONE
    if arrays.alias_of[slot] >= 0:
        return int(arrays.alias_of[slot])
    for k in range(arrays.inplace_start[slot], arrays.inplace_start[slot + 1]):
        source = arrays.inplace_of[k]
        alike = arrays.alike[source] == arrays.alike[tensor]
        if alike and buffers.uses[buffers.root[source]] == 1:
            return int(source)
    free = buffers.head[arrays.alike[tensor]]
    if free >= 0 and session.reusable[tensor] and (session.readers[tensor] > 0 or pinned):
        buffers.head[arrays.alike[tensor]] = buffers.below[free]
        return int(free)
    return NONE


@leaf
def assign_buffers(
    session: Session, pinned: Flags, order: Ints, length: int, buffers: Buffers
) -> None:
    """Rules 1 to 5 of :mod:`memplan.simulate.allocation`, buffer reuse and pins included."""
    arrays = session.arrays
    nodes = len(session.leaf)
    for step in range(length):
        node = order[step]
        if node >= nodes:
            tensor = session.pin_of[node - nodes]
            root = buffers.root[tensor]
            buffers.last[root] = step
            release(arrays, buffers, tensor)
            continue
        for slot in range(arrays.write_start[node], arrays.write_start[node + 1]):
            tensor = arrays.writes[slot]
            held = pinned[node] and session.pin_of[node] == tensor
            source = source_of(session, buffers, slot, tensor, held)
            if source >= 0:
                root = buffers.root[source]
                buffers.root[tensor] = root
                buffers.uses[root] += buffers.uses[tensor]
            else:
                buffers.birth[tensor] = step
        for k in range(arrays.read_start[node], arrays.read_start[node + 1]):
            buffers.last[buffers.root[arrays.reads[k]]] = step
            release(arrays, buffers, arrays.reads[k])
        for slot in range(arrays.write_start[node], arrays.write_start[node + 1]):
            release(arrays, buffers, arrays.writes[slot])


@leaf
def rounded(nbytes: int) -> int:
    """The runtime places buffers at multiples of 256 bytes."""
    return (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


class Gaps(NamedTuple):
    """Free stretches of the memory pattern's block, in no order; ``state``: their number, end."""

    start: Ints
    size: Ints
    state: Ints


@leaf
def take_gap(gaps: Gaps, size: int) -> int:
    """Place a buffer: the smallest gap that holds it, the lowest of equals; else at the end."""
    best, last = NONE, NONE
    for g in range(gaps.state[0]):
        if gaps.start[g] + gaps.size[g] == gaps.state[1]:
            last = g
        if gaps.size[g] < size:
            continue
        smaller = best < 0 or gaps.size[g] < gaps.size[best]
        if smaller or (gaps.size[g] == gaps.size[best] and gaps.start[g] < gaps.start[best]):
            best = g
    if best < 0 and last < 0:
        place = gaps.state[1]
        gaps.state[1] = place + size
        return int(place)
    if best < 0:
        best = last
        gaps.state[1] = gaps.start[best] + size
        gaps.size[best] = size
    place = gaps.start[best]
    gaps.start[best] += size
    gaps.size[best] -= size
    if gaps.size[best] == 0:
        gaps.state[0] -= 1
        gaps.start[best] = gaps.start[gaps.state[0]]
        gaps.size[best] = gaps.size[gaps.state[0]]
    return int(place)


@leaf
def give_gap(gaps: Gaps, start: int, size: int) -> None:
    """Free a buffer's place; neighbours are merged."""
    g = 0
    while g < gaps.state[0]:
        before = gaps.start[g] + gaps.size[g] == start
        if before or start + size == gaps.start[g]:
            start = min(start, gaps.start[g])
            size += gaps.size[g]
            gaps.state[0] -= 1
            gaps.start[g] = gaps.start[gaps.state[0]]
            gaps.size[g] = gaps.size[gaps.state[0]]
        else:
            g += 1
    gaps.start[gaps.state[0]] = start
    gaps.size[gaps.state[0]] = size
    gaps.state[0] += 1


@leaf
def block_bytes(
    session: Session,
    buffers: Buffers,
    order: Ints,
    length: int,
    place: Ints,
    gaps: Gaps,
    next_dead: Ints,
    first_dead: Ints,
) -> int:
    """The block that the memory pattern holds (:func:`memplan.simulate.pattern.pattern_block`)."""
    arrays, nodes = session.arrays, len(session.leaf)
    for step in range(length):
        node = order[step]
        if node >= nodes:
            if session.pin_bytes[node - nodes] > 0:
                take_gap(gaps, rounded(session.pin_bytes[node - nodes]))
        else:
            for slot in range(arrays.write_start[node], arrays.write_start[node + 1]):
                t = arrays.writes[slot]
                size = rounded(arrays.nbytes[t])
                if buffers.birth[t] < 0 or arrays.pinned[t] or size == 0:
                    continue
                place[t] = take_gap(gaps, size)
                if buffers.last[t] >= 0:
                    next_dead[t] = first_dead[buffers.last[t]]
                    first_dead[buffers.last[t]] = t
        t = first_dead[step]
        while t >= 0:
            give_gap(gaps, place[t], rounded(arrays.nbytes[t]))
            t = next_dead[t]
    return int(gaps.state[1])


@compiled
def plain_peaks(session: Session, pinned: Flags, by_priority: bool) -> Peaks:
    """Peaks of a plain session when the nodes in ``pinned`` have pins.

    ``by_priority``: all is as in a plain session but the order, which is the file's.
    """
    arrays, nodes, tensors = session.arrays, len(session.leaf), len(session.readers)
    order = np.zeros(2 * nodes, np.int64)
    if by_priority:
        length = file_order(session, pinned, order)
    else:
        stack = np.zeros(nodes + len(session.edges) + 1, np.int64)
        length = run_order(session, pinned, stack, np.zeros(nodes, np.bool_), order)
    buffers = Buffers(
        np.arange(tensors),
        session.readers + 1,
        np.full(tensors, NONE, np.int64),
        np.full(tensors, NONE, np.int64),
        np.full(2 * tensors + 1, NONE, np.int64),
        np.full(tensors, NONE, np.int64),
    )
    for t in range(tensors):
        buffers.uses[t] += arrays.pinned[t]
    for node in range(nodes):
        if pinned[node]:
            buffers.uses[session.pin_of[node]] += 1
    assign_buffers(session, pinned, order, length, buffers)
    change, outputs = np.zeros(length + 1, np.int64), np.zeros(length + 1, np.int64)
    for t in range(tensors):
        if buffers.birth[t] < 0:
            continue
        change[buffers.birth[t]] += arrays.nbytes[t]
        if arrays.pinned[t]:
            outputs[buffers.birth[t]] += arrays.nbytes[t]
        elif buffers.last[t] >= 0:
            change[buffers.last[t] + 1] -= arrays.nbytes[t]
    gaps = Gaps(
        np.zeros(tensors + nodes + 1, np.int64),
        np.zeros(tensors + nodes + 1, np.int64),
        np.zeros(2, np.int64),
    )
    block = block_bytes(
        session,
        buffers,
        order,
        length,
        np.zeros(tensors, np.int64),
        gaps,
        np.full(tensors, NONE, np.int64),
        np.full(length + 1, NONE, np.int64),
    )
    first, later, live, out = 0, 0, 0, 0
    for step in range(length):
        node = order[step]
        live += change[step]
        out += outputs[step]
        scratch, twice = 0, 0
        if node >= nodes:
            live += session.pin_bytes[node - nodes]
        else:
            scratch = arrays.workspace[node] + arrays.inside[node]
            twice = session.looped[node]
        first = max(first, live + scratch)
        later = max(later, block + out + scratch + twice)
    return Peaks(first, later)


def free_pins(session: Session) -> Session:
    """The same session if pins took no memory."""
    return session._replace(pin_bytes=np.zeros_like(session.pin_bytes))


def fewest_pins(
    session: Session, budget: Peaks, time_limit: float, needed: Flags | None = None
) -> tuple[Flags, Peaks]:
    """Take out pins as long as both peaks keep ``budget``, in the default and in the file's order.

    Halves, quarters and so on down to single pins are tried (delta debugging: Zeller and
    Hildebrandt 2002, section 3); what is left cannot spare any single pin, unless time ran out.
    What pins take themselves counts only at the end, when few are left; if the budget breaks then,
    it all begins again for that much less.

    Args:
        session: the graph.
        budget: for the first run and for later ones, in bytes without resident ones.
        time_limit: seconds.
        needed: nodes whose pins must stay.

    Returns:
        The pins, and the peaks with them. If no pins keep the budget, it breaks by as much as all
        pins break it, and by what pins take themselves.
    """
    deadline = Deadline(time_limit)
    stay = np.zeros(len(session.pin_of), np.bool_) if needed is None else needed
    target = budget
    for _ in range(_ATTEMPTS):
        pinned = _reduced(free_pins(session), target, stay, deadline)
        peaks = plain_peaks(session, pinned, False)
        by_file = plain_peaks(session, pinned, True)
        over = Peaks(
            max(peaks.first, by_file.first) - budget.first,
            max(peaks.later, by_file.later) - budget.later,
        )
        if over.first <= 0 and over.later <= 0:
            break
        target = Peaks(target.first - max(0, over.first), target.later - max(0, over.later))
    return pinned, peaks


def _reduced(session: Session, budget: Peaks, stay: Flags, deadline: Deadline) -> Flags:
    pinned = session.pin_of >= 0
    whole = plain_peaks(session, pinned, False)
    budget = Peaks(max(budget.first, whole.first), max(budget.later, whole.later))
    chunk = max(1, int(pinned.sum()))
    while True:
        spared = False
        places = np.flatnonzero(pinned & ~stay)
        for first in range(0, len(places), chunk):
            if deadline.passed:
                return pinned
            part = places[first : first + chunk]
            pinned[part] = False
            fits = within(plain_peaks(session, pinned, False), budget)
            if fits and within(plain_peaks(session, pinned, True), budget):
                spared = True
            else:
                pinned[part] = True
        if chunk == 1 and not spared:
            return pinned
        chunk = max(1, chunk // 2)


def within(peaks: Peaks, budget: Peaks) -> bool:
    """Whether both runs keep the budget."""
    return peaks.first <= budget.first and peaks.later <= budget.later
