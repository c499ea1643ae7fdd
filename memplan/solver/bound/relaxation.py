"""What every sequence must pay for, stripped of what a lower bound may ignore.

A :class:`Relaxation` is a :class:`Problem` in which memory is counted per *tensor class* and never
too high. Each step down is safe, that is, no sequence becomes dearer or larger than it is:

* a view is its source (running it again costs nothing, it holds nothing of its own);
* a graph output, a resident tensor and a tensor of zero bytes are always at hand once made; the
  bytes of graph outputs are a constant from then on;
* an output that may take over the storage of an input counts only when that input is kept;
* a tensor whose makers disagree about what it is a view of is always at hand, for free;
* of what a recomputation makes and nobody reads, only what nobody ever reads is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from memplan.solver.forms import first_maker
from memplan.solver.problem import NONE, Arrays, Ints, Problem


@dataclass(slots=True)
class Relaxation:
    """Nodes and tensors keep their ids; *step* is the place of a node's first computation.

    Lists are indexed by node, tensor or step as noted.
    """

    budget: int
    node_at: list[int]  # (step)
    step_of: list[int]  # (node) NONE for rebuild rules, which are not in the order
    reads: list[list[int]]  # (node) tensors that must be kept or made again to be there
    writes: list[list[int]]  # (node) the same for what it makes
    own: list[list[int]]  # (node) outputs that count at its own step
    takes: list[dict[int, list[int]]]  # (node) own → inputs: counts only if all of these are kept
    room: list[int]  # (node) bytes while it runs beyond reads and own
    always: Ints  # (step) bytes that are there whatever the plan
    size: list[int]  # (tensor)
    again: list[bool]  # (node) may be recomputed
    again_cost: list[float]  # (node) seconds
    # What may be kept in another form: who makes it again, who made it first, and all that either
    # leads from or to that form. Only from one of these tensors can the others be made.
    forms: list[tuple[int, int, list[int]]] = field(default_factory=list)

    def held_from_first_run(self) -> dict[int, int]:
        """Node → bytes that its first run takes for good: graph outputs, and what nobody reads."""
        grows = np.diff(self.always, prepend=0)
        return {self.node_at[step]: int(grows[step]) for step in np.flatnonzero(grows)}

    def nodes(self) -> list[int]:
        """All nodes, those in the order first."""
        return self.node_at + [i for i, step in enumerate(self.step_of) if step == NONE]


def relax(problem: Problem) -> Relaxation:
    """The relaxation of ``problem``."""
    return _Builder(problem).build()


class _Builder:
    """Reads flat arrays once into lists, which plain Python walks faster."""

    def __init__(self, problem: Problem) -> None:
        arrays: Arrays = problem.arrays
        self.problem, self.arrays = problem, arrays
        self.order: list[int] = problem.order.tolist()
        self.nodes = len(arrays.cost)
        self.tensors = len(arrays.nbytes)
        self.step_of = [NONE] * self.nodes
        for step, node in enumerate(self.order):
            self.step_of[node] = step
        rules = [i for i in range(self.nodes) if self.step_of[i] == NONE]
        self.sequence = self.order + sorted(rules, key=lambda i: int(arrays.rank[i]))
        self.write_start = arrays.write_start.tolist()
        slots, starts = arrays.reads.tolist(), arrays.read_start.tolist()
        self.reads = [slots[starts[i] : starts[i + 1]] for i in range(self.nodes)]
        self.writes = arrays.writes.tolist()
        self.alias, self.nbytes = arrays.alias_of.tolist(), arrays.nbytes.tolist()
        self.alike, self.maker = arrays.alike.tolist(), arrays.maker.tolist()
        self.resident, self.pinned = arrays.resident.tolist(), arrays.pinned.tolist()
        # The tensor that stands for a class, or NONE: always at hand, for free.
        self.root = [NONE if self.resident[t] else t for t in range(self.tensors)]
        self.least: list[int] = []  # (tensor) smallest storage that a value of it can be in
        self.candidates: list[list[int]] = []  # (output) inputs whose storage it can take over

    def build(self) -> Relaxation:
        self._find_roots()
        self._find_least()
        base = [self._find(t) for t in range(self.tensors)]
        for t in range(self.tensors):
            if self.pinned[t] or self.least[t] == 0:
                self.root[t] = NONE
        root = [self._find(t) for t in range(self.tensors)]
        reads = [sorted({root[t] for t in found} - {NONE}) for found in self.reads]
        # The buffer of a graph output is never taken over, and a copy of one is not counted.
        takes = [
            {
                self.writes[w]: sorted(
                    {
                        root[c]
                        for c in self.candidates[w]
                        if base[c] == NONE or not self.pinned[base[c]]
                    }
                )
                for w in range(self.write_start[i], self.write_start[i + 1])
                if self.candidates[w]
            }
            for i in range(self.nodes)
        ]
        relaxation = self._outputs(root, reads, takes)
        release(relaxation, self._early(relaxation) | self._twins(base))
        return relaxation

    def _twins(self, base: list[int]) -> set[int]:
        """Outputs that may take over a storage of which a later output of the node is a view."""
        found = set()
        for start, end in pairwise(self.write_start):
            views: set[int] = set()
            for w in range(end - 1, start - 1, -1):
                if any(base[c] in views for c in self.candidates[w]):
                    found.add(self.writes[w])
                if self.alias[w] != NONE:
                    views.add(base[self.alias[w]])
        return found

    def _find(self, tensor: int) -> int:
        while self.root[tensor] not in (NONE, tensor):
            tensor = self.root[tensor]
        return self.root[tensor]

    def _find_roots(self) -> None:
        """What every tensor is a view of; NONE where its makers disagree."""
        seen = [False] * self.tensors
        for w, t in enumerate(self.writes):
            root = t if self.alias[w] == NONE or self.pinned[t] else self.alias[w]
            if seen[t] and self.root[t] != root:
                root = NONE
            self.root[t], seen[t] = root, True

    def _find_least(self) -> None:
        """The smallest storage that a value of a tensor can live in, and who can be taken over."""
        arrays = self.arrays
        stored = [False] * self.tensors  # not always a view of a resident tensor
        changed = True
        while changed:
            changed = False
            for w, t in enumerate(self.writes):
                if not stored[t] and (self.alias[w] == NONE or stored[self.alias[w]]):
                    stored[t] = changed = True
        for i, reads in enumerate(self.reads):
            for w in range(self.write_start[i], self.write_start[i + 1]):
                options = arrays.inplace_of[arrays.inplace_start[w] : arrays.inplace_start[w + 1]]
                # Read twice by the node, a storage has a read pending when the output is placed.
                self.candidates.append(
                    [
                        c
                        for c in (options.tolist() if self.alias[w] == NONE else ())
                        if self.alike[c] == self.alike[self.writes[w]]
                        and reads.count(c) == 1
                        and stored[c]
                    ]
                )
        self.least = [0 if self.resident[t] else self.nbytes[t] for t in range(self.tensors)]
        changed = True
        while changed:
            changed = False
            for w, t in enumerate(self.writes):
                sources = self.candidates[w] if self.alias[w] == NONE else [self.alias[w]]
                least = min((self.least[c] for c in sources), default=self.least[t])
                if least < self.least[t]:
                    self.least[t], changed = least, True

    def _outputs(
        self, root: list[int], reads: list[list[int]], takes: list[dict[int, list[int]]]
    ) -> Relaxation:
        """Sort every output into: kept or not by choice, there at its own step, or constant."""
        arrays, steps = self.arrays, len(self.order)
        wanted = {t for found in reads for t in found}
        writes: list[list[int]] = [[] for _ in range(self.nodes)]
        own: list[list[int]] = [[] for _ in range(self.nodes)]
        room = (arrays.workspace + arrays.inside).tolist()
        grows = np.zeros(steps + 1, np.int64)
        for i in self.sequence:
            for w in range(self.write_start[i], self.write_start[i + 1]):
                t, step = self.writes[w], self.step_of[i]
                if self.pinned[t]:
                    grows[step if step != NONE else steps] += self.nbytes[t]
                elif self.alias[w] != NONE or root[t] != t:
                    continue
                elif t in wanted:
                    writes[i].append(t)
                    if not arrays.droppable[w]:
                        own[i].append(t)
                elif arrays.droppable[w]:
                    continue
                elif t in takes[i]:
                    own[i].append(t)
                elif step == NONE or arrays.fleeting[w]:
                    room[i] += self.least[t]
                else:
                    grows[step] += self.least[t]
        for i in range(self.nodes):
            # A storage that is not counted may be what the output takes over.
            own[i] = [t for t in own[i] if NONE not in takes[i].get(t, ())]
            takes[i] = {t: found for t, found in takes[i].items() if found}
        again = [False] * self.nodes
        encode = (node for form in self.problem.forms for node in form.encode)
        for i in (*self.maker, *arrays.others.tolist(), *encode):
            if i != NONE:
                again[i] = True
        return Relaxation(
            budget=self.problem.budget,
            node_at=self.order,
            step_of=self.step_of,
            reads=reads,
            writes=writes,
            own=own,
            takes=takes,
            room=room,
            always=np.cumsum(grows[:steps]),
            size=self.least,
            again=again,
            again_cost=arrays.cost.tolist(),
            forms=self._forms(root),
        )

    def _forms(self, root: list[int]) -> list[tuple[int, int, list[int]]]:
        """See :class:`Relaxation`; none of which a tensor is always at hand."""
        found = []
        for form in self.problem.forms:
            tensors, waiting = {form.tensor}, [form.decode, *form.encode]
            while waiting:
                for t in self.reads[waiting.pop()]:
                    if t not in tensors and not self.resident[t]:
                        tensors.add(t)
                        waiting += [self.maker[t]] if self.maker[t] != NONE else []
            roots = {root[t] for t in tensors}
            if NONE not in roots:
                found.append((form.decode, first_maker(self.problem, form.tensor), sorted(roots)))
        return found

    def _early(self, relaxation: Relaxation) -> set[int]:
        """Tensors that a rule could make before the first computation, for other rules: that is not
        looked into."""
        born = [len(self.order)] * self.tensors  # first step after which a tensor can be there
        for step, i in enumerate(self.order):
            for t in relaxation.writes[i]:
                born[t] = min(born[t], step)
        rules = self.sequence[len(self.order) :]
        # Another form may be free, but it is made from the tensor.
        behind = {form.decode: self._find(form.tensor) for form in self.problem.forms}
        original = [step < len(self.order) for step in born]
        early = set()
        changed = True
        while changed:
            changed = False
            for i in rules:
                there = max((born[u] for u in relaxation.reads[i]), default=0)
                if behind.get(i, NONE) != NONE:
                    there = max(there, born[behind[i]])
                for t in relaxation.writes[i]:
                    if there < born[t]:
                        if original[t]:
                            early.add(t)
                        else:
                            born[t], changed = there, True
        return early & {u for i in rules for u in relaxation.reads[i]}


def _wanted(relaxation: Relaxation) -> set[int]:
    """What first runs read, and what rules read that could make that again."""
    found = {t for i in relaxation.node_at for t in relaxation.reads[i]}
    rules = [i for i, step in enumerate(relaxation.step_of) if step == NONE and relaxation.again[i]]
    before = -1
    while len(found) > before:
        before = len(found)
        for i in rules:
            if not found.isdisjoint(relaxation.writes[i]):
                found.update(relaxation.reads[i])
    return found


def free_small(relaxation: Relaxation, share: float) -> set[int]:
    """Let the smallest tensors be kept for free, in sum at most ``share`` of the budget; which."""
    total, free, wanted = 0, set(), _wanted(relaxation)
    for t in sorted(range(len(relaxation.size)), key=lambda t: relaxation.size[t]):
        if t not in wanted:
            continue
        total += relaxation.size[t]
        if total > share * relaxation.budget:
            break
        free.add(t)
    release(relaxation, free)
    return free


def release(relaxation: Relaxation, free: set[int]) -> None:
    """Let some tensors be at hand for free."""
    if not free:
        return
    for i, options in enumerate(relaxation.takes):
        gone = free | {t for t, found in options.items() if not free.isdisjoint(found)}
        relaxation.own[i] = [t for t in relaxation.own[i] if t not in gone]
    for lists in (relaxation.reads, relaxation.writes):
        for i, found in enumerate(lists):
            lists[i] = [t for t in found if t not in free]
