"""One run of DTR: what is in memory, what it evicts, what it makes again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from memplan.deadline import Deadline
from memplan.solver.links import Links
from memplan.solver.problem import NONE, Floats, Ints, Problem

# A run that takes this many times the cost of the step only thrashes.
_THRASHING = 5.0
# Neighbours of a storage that count; few have more than a dozen.
_MOST_NEIGHBOURS = 48
# Candidates whose neighbourhoods are looked up at a time.
_PORTION = 128


class GivenUp(Exception):
    """Everything in memory is in use, the run thrashes, or time is over."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Per storage the storages from which it is made and that are made from it, padded with T."""

    table: Ints  # (T+1, most)

    @classmethod
    def of(cls, links: Links) -> Neighbours:
        """The neighbours by makers."""
        count = len(links.maker)
        found: list[set[int]] = [set() for _ in range(count)]
        for t, node in enumerate(links.maker):
            for u in links.reads[node] if node != NONE else ():
                a, b = links.root[t], links.root[u]
                if a != b:
                    found[a].add(b)
                    found[b].add(a)
        most = min(_MOST_NEIGHBOURS, max((len(some) for some in found), default=0))
        table = np.full((count + 1, max(1, most)), count, np.int64)
        for root, some in enumerate(found):
            chosen = sorted(some)[:most]
            table[root, : len(chosen)] = chosen
        return cls(table)


class _Classes:
    """Evicted neighbourhoods: classes that merge when a storage is evicted next to them.

    A storage that is made again leaves its class, which is never split (h_eq of the paper).
    """

    def __init__(self, neighbours: Neighbours, cost: Floats) -> None:
        self.table, self.own = neighbours.table, cost
        self.of: Ints = np.full(len(neighbours.table), NONE, np.int64)
        # One class more than storages can be evicted at once: the last stays empty, for NONE.
        self.cost: Floats = np.zeros(2 * len(neighbours.table) + 1)
        self.members: dict[int, set[int]] = {}
        self.unused = list(range(len(self.cost) - 1))

    def evicted(self, root: int) -> None:
        """Put ``root`` into one class with its evicted neighbours."""
        near = {int(c) for c in self.of[self.table[root]] if c != NONE}
        if near:
            chosen = max(near, key=lambda c: len(self.members[c]))
        else:
            chosen = self.unused.pop()
            self.members[chosen] = set()
        for other in near - {chosen}:
            moved = self.members.pop(other)
            self.of[list(moved)] = chosen
            self.members[chosen] |= moved
            self.cost[chosen] += self.cost[other]
            self.cost[other] = 0.0
            self.unused.append(other)
        self.of[root] = chosen
        self.members[chosen].add(root)
        self.cost[chosen] += self.own[root]

    def made(self, root: int) -> None:
        """Take ``root`` out of its class."""
        old = int(self.of[root])
        if old == NONE:
            return
        self.of[root] = NONE
        self.cost[old] = max(0.0, self.cost[old] - self.own[root])
        self.members[old].remove(root)
        if not self.members[old]:
            del self.members[old]
            self.cost[old] = 0.0
            self.unused.append(old)

    def around(self, roots: Ints) -> Floats:
        """The cost of the evicted neighbourhoods of several storages, each class once."""
        classes = np.sort(self.of[self.table[roots]], axis=1)
        cost = self.cost[classes]
        cost[:, 1:][classes[:, 1:] == classes[:, :-1]] = 0.0
        return np.asarray(cost.sum(axis=1), dtype=np.float64)


@dataclass(slots=True)
class _Frame:
    """A node that is to run: what it still misses, and the storages locked for it."""

    node: int
    missing: list[int]
    locked: list[int] = field(default_factory=list)


class Machine:
    """Runs ``problem.start`` within a budget. Storages are known by their roots."""

    def __init__(
        self,
        problem: Problem,
        links: Links,
        budget: int,
        neighbours: Neighbours | None,
        deadline: Deadline,
    ) -> None:
        arrays, count = problem.arrays, len(links.maker)
        self.problem, self.arrays, self.links = problem, arrays, links
        self.budget, self.deadline = budget, deadline
        self.limit = _THRASHING * problem.base_cost
        self.sequence: list[int] = []
        self.clock = self.spent = 0.0
        self.memory = 0
        self.there = bytearray(count)
        self.made = bytearray(count)
        self.live = bytearray(count)
        self.locks = [0] * count
        self.members: list[list[int]] = [[] for _ in range(count)]
        for t, root in enumerate(links.root):
            self.members[root].append(t)
        self.left = [0] * count  # reads of each storage that the program has still to do
        for node in problem.start.tolist():
            for t in links.reads[node]:
                self.left[links.root[t]] += 1
        self.unread = self._unread()
        self.size: Ints = np.asarray(links.nbytes, dtype=np.int64)
        self.cost: Floats = np.asarray(
            [0.0 if node == NONE else links.cost[node] for node in links.maker]
        )
        self.touched: Floats = np.zeros(count)
        # In memory, not locked, and can be made again.
        self.pool = np.zeros(count, np.bool_)
        self.allowed = [
            root not in links.fixed and root not in self.unread and links.nbytes[root] > 0
            for root in range(count)
        ]
        self.lost = False  # something is gone that cannot be made again
        self.classes = _Classes(neighbours, self.cost) if neighbours is not None else None

    def _unread(self) -> dict[int, bool]:
        """Roots of outputs that nobody reads: True if they are gone after their own step."""
        arrays, found = self.arrays, {}
        for node in self.problem.start.tolist():
            for w in range(int(arrays.write_start[node]), int(arrays.write_start[node + 1])):
                root = self.links.root[int(arrays.writes[w])]
                if self.left[root] == 0 and not arrays.pinned[root]:
                    found[root] = bool(arrays.droppable[w] or arrays.fleeting[w])
        return found

    def run(self) -> Ints:
        """The sequence with everything that had to be made again.

        Raises:
            GivenUp: see there.
        """
        for node in self.problem.start.tolist():
            self._execute(node)
            for t in self.links.reads[node]:
                root = self.links.root[t]
                self.left[root] -= 1
                if self.left[root] == 0:
                    self._release(root)
        return np.asarray(self.sequence, dtype=np.int64)

    # --- Running ---------------------------------------------------------------------------------

    def _execute(self, node: int) -> None:
        """Run a node, before that whatever it needs and is gone (a stack: chains get long)."""
        stack = [self._enter(node)]
        while stack:
            frame = stack[-1]
            while frame.missing and self.there[frame.missing[-1]]:
                self._lock(frame, frame.missing.pop())
            if frame.missing:
                stack.append(self._enter(self.links.maker[frame.missing[-1]]))
            else:
                self._compute(frame, program=len(stack) == 1)
                stack.pop()

    def _enter(self, node: int) -> _Frame:
        if node == NONE:
            raise GivenUp
        frame = _Frame(node, [])
        for t in self.links.reads[node]:
            self.touched[self.links.root[t]] = self.clock
            if self.there[t]:
                self._lock(frame, t)
            else:
                frame.missing.append(t)
        return frame

    def _lock(self, frame: _Frame, tensor: int) -> None:
        root = self.links.root[tensor]
        self.locks[root] += 1
        self.pool[root] = False
        frame.locked.append(root)

    def _compute(self, frame: _Frame, program: bool) -> None:
        if self.deadline.passed or self.spent > self.limit:
            raise GivenUp
        node, links = frame.node, self.links
        new = {links.root[t] for t in links.writes[node] if not self.live[links.root[t]]}
        new = {root for root in new if not self.arrays.resident[root]}
        replaced = self._replaced(node, new, program)
        need = sum(links.nbytes[r] for r in new) - sum(links.nbytes[r] for r in replaced)
        transient = int(self.arrays.workspace[node] + self.arrays.inside[node])
        self._make_room(need + transient)
        self.sequence.append(node)
        self.spent += links.cost[node]
        self.clock += links.cost[node]
        self.memory += need
        for root in replaced:
            self._gone(root)
        for t in links.writes[node]:
            self.there[t] = self.made[t] = 1
            self.touched[links.root[t]] = self.clock
        for root in new:
            self.live[root] = True
            if self.classes is not None:
                self.classes.made(root)
        for root in frame.locked:
            self.locks[root] -= 1
        for root in {*frame.locked, *new}:
            self.pool[root] = self.live[root] and self.allowed[root] and self.locks[root] == 0
            if self.unread.get(root, False):
                self._drop(root)

    def _replaced(self, node: int, new: set[int], program: bool) -> set[int]:
        """Storages that outputs take over, as far as the program's own reads tell."""
        arrays, found = self.arrays, set[int]()
        for w in range(int(arrays.write_start[node]), int(arrays.write_start[node + 1])):
            t = int(arrays.writes[w])
            if self.links.root[t] not in new or arrays.pinned[t]:
                continue
            for c in range(int(arrays.inplace_start[w]), int(arrays.inplace_start[w + 1])):
                source = int(arrays.inplace_of[c])
                root = self.links.root[source]
                dies = self.live[root] and self.left[root] == program and self.locks[root] == 1
                alike = arrays.alike[t] == arrays.alike[source]
                if dies and alike and self.allowed[root] and root not in found:
                    found.add(root)
                    break
        return found

    # --- Memory ----------------------------------------------------------------------------------

    def _make_room(self, need: int) -> None:
        while self.memory + need > self.budget:
            victim = self._victim()
            if self.lost and not self._can_be_made(victim):
                self.allowed[victim] = False
                self.pool[victim] = False
            else:
                self._drop(victim)

    def _victim(self) -> int:
        """The storage of least cost per byte and second of staleness."""
        pool = np.flatnonzero(self.pool)
        if len(pool) == 0:
            raise GivenUp
        weight = self.size[pool] * np.maximum(self.clock - self.touched[pool], 1e-30)
        local = self.cost[pool] / weight
        if self.classes is None:
            return int(pool[local.argmin()])
        # The neighbourhood only adds: look it up in rising order, until no other can be less.
        order = np.argsort(local, kind="stable")
        best, least = NONE, np.inf
        for k in range(0, len(order), _PORTION):
            some = order[k : k + _PORTION]
            if local[some[0]] >= least:
                break
            score = local[some] + self.classes.around(pool[some]) / weight[some]
            if score.min() < least or best == NONE:
                best, least = int(pool[some[score.argmin()]]), float(score.min())
        return best

    def _drop(self, root: int) -> None:
        self.memory -= self.links.nbytes[root]
        self._gone(root)

    def _gone(self, root: int) -> None:
        self.live[root] = False
        self.pool[root] = False
        for t in self.members[root]:
            self.there[t] = 0
        if self.classes is not None and self.allowed[root]:
            self.classes.evicted(root)

    def _release(self, root: int) -> None:
        """The program will not read it any more: give it back at once (eager eviction)."""
        if not self.live[root] or self.arrays.pinned[root]:
            return
        if root in self.links.fixed:
            if self._needed(root):
                return
            self.lost = True
        self._drop(root)

    def _needed(self, root: int) -> bool:
        """Whether something that is gone can only be made again from ``root``."""
        waiting = [
            t
            for t, made in enumerate(self.made)
            if made and not self.there[t] and self.left[self.links.root[t]] > 0
        ]
        visited = set(waiting)
        while waiting:
            node = self.links.maker[waiting.pop()]
            for u in self.links.reads[node] if node != NONE else ():
                if self.links.root[u] == root:
                    return True
                if not self.there[u] and u not in visited:
                    visited.add(u)
                    waiting.append(u)
        return False

    def _can_be_made(self, root: int) -> bool:
        """Whether ``root`` can be made from what would be there without it."""
        waiting, visited = list(self.members[root]), set(self.members[root])
        while waiting:
            node = self.links.maker[waiting.pop()]
            if node == NONE:
                return False
            for u in self.links.reads[node]:
                if u not in visited and (not self.there[u] or self.links.root[u] == root):
                    visited.add(u)
                    waiting.append(u)
        return True
