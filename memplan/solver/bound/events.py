"""The order-free program: what any sequence must pay, whatever its order and recomputation.

Take nodes v1, v2, ... each of which needs the one before. An *event* is the first run of one of
them: in every sequence they come in this order, what each needs ran before it, and what needs it
runs behind it. Between the events lie *stages*: stage 0 up to and with the first event, stage k
behind the k-th. Within a stage nothing is timed; memory is counted at the events alone.

``runs[n, i]``: node ``n`` runs in stage ``i``, for the first time or again.
``held[t, k]``: a value of tensor ``t`` is there at event ``k``, and is read later.

What is read in a stage was there at the event before it, or is made in the stage. Every sequence
within the budget, in any order, yields such a solution of no more than its cost, so the least cost
is a lower bound. What a value takes in memory at the least, and what two values may share, is what
:mod:`memplan.solver.bound.relaxation` says; it also holds for any order.

``behind[n, k]``: node ``n`` runs behind event ``k`` at all. What that reads was there at the event,
or is made behind it. In whole numbers this follows from the stages. In the relaxation it does not,
where one half of a node runs in one stage and one half in the next, both from the same half of what
it reads: without these rows it got weaker with every event.

The relaxation by events is our own; that of Checkmate (Jain et al., MLSys 2020, section 4) keeps
the order and counts at every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from memplan.solver.bound.milp import Effort, Program, Term
from memplan.solver.bound.precedence import Precedence
from memplan.solver.bound.relaxation import Relaxation
from memplan.solver.problem import NONE, Floats

# Absorbs the rounding of memory rows, in shares of the largest tensor.
_SLACK = 1e-8
# Errors of the solver, in shares of the cost.
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class EventBound:
    """``seconds``: no sequence within the budget costs less extra (infinite: there is none).

    ``held``: tensors that the best solution keeps across each event, None without a solution;
    ``stage``: where it runs, for the first time, the nodes that have a choice; ``rules``: the
    rebuild rules that it runs. All are rounded where the program was relaxed.
    """

    seconds: float
    held: tuple[frozenset[int], ...] | None
    stage: Mapping[int, int] = field(default_factory=dict)
    rules: frozenset[int] = frozenset()


class EventProgram:
    """The program for ``events``: nodes, each of which surely runs before the next."""

    def __init__(
        self, relaxation: Relaxation, precedence: Precedence, events: Sequence[int], unit: float
    ) -> None:
        """``unit``: the cost of the step without recomputation, in seconds."""
        self.relaxation, self.events, self.unit = relaxation, tuple(events), unit
        self.stages = len(self.events)
        self.program = Program(unit)
        self.scale = float(max(relaxation.size, default=0)) or 1.0
        self.runs: dict[tuple[int, int], int] = {}
        self.held: dict[tuple[int, int], int] = {}
        self.waiting: list[tuple[int, int]] = []  # runs whose reads have no rows yet
        self.wanted: list[tuple[int, int]] = []  # held tensors that nothing supplies yet
        self.included = 0.0  # seconds of first runs that are columns
        self.impossible = False
        self._find_stages(precedence)
        self.makers: list[list[int]] = [[] for _ in relaxation.size]
        for node in relaxation.nodes():
            for tensor in relaxation.writes[node]:
                self.makers[tensor].append(node)
        self._first_runs()
        self._supply()
        for k in range(self.stages - 1, 0, -1):
            self._behind(k)
            self._supply()
        self._decoded()
        for k in range(1, self.stages + 1):
            self._memory(k)

    def _find_stages(self, precedence: Precedence) -> None:
        """The first and the last stage in which each node can run for the first time."""
        count = len(self.relaxation.step_of)
        self.first, self.last = [0] * count, [self.stages] * count
        self.surely: list[
            frozenset[int]
        ] = []  # by event: what has run when it does, itself included
        for k, event in enumerate(self.events, 1):
            for node in precedence.descendants(event):
                self.first[node] = k
            before = precedence.ancestors(event) | {event}
            self.surely.append(before)
            for node in before:
                self.last[node] = min(self.last[node], k - 1)

    def _is_certain(self, node: int, stage: int) -> bool:
        """Whether ``node`` runs for the first time in ``stage``, whatever the sequence."""
        original = self.relaxation.step_of[node] != NONE
        return original and self.first[node] == self.last[node] == stage

    def _run(self, node: int, stage: int) -> int | None:
        """The column of ``node`` in ``stage``, None where it cannot run."""
        if (node, stage) in self.runs:
            return self.runs[node, stage]
        original = self.relaxation.step_of[node] != NONE
        if stage < self.first[node] or not (
            self.relaxation.again[node] or (original and stage <= self.last[node])
        ):
            return None
        column = self.program.column(float(self.relaxation.again_cost[node]))
        self.runs[node, stage] = column
        self.waiting.append((node, stage))
        return column

    def _hold(self, tensor: int, event: int) -> int:
        if (tensor, event) not in self.held:
            self.held[tensor, event] = self.program.column()
            self.wanted.append((tensor, event))
        return self.held[tensor, event]

    def _first_runs(self) -> None:
        """Every node runs once; where its stage is certain, that is a constant."""
        for node in self.relaxation.node_at:
            first, last = self.first[node], self.last[node]
            if first == last:
                self.waiting.append((node, first))
                continue
            terms = [(self._run(node, stage), 1.0) for stage in range(first, last + 1)]
            self.program.at_least([(c, v) for c, v in terms if c is not None], 1.0)
            self.included += self.relaxation.again_cost[node]

    def _makers(self, tensor: int, stage: int) -> list[Term] | None:
        """Columns of what makes ``tensor`` in ``stage``; None if something surely does."""
        terms: list[Term] = []
        for node in self.makers[tensor]:
            if self._is_certain(node, stage):
                return None
            column = self._run(node, stage)
            if column is not None:
                terms.append((column, 1.0))
        return terms

    def _supply(self) -> None:
        """What is read is there, and what is held was there before or is made."""
        while self.waiting or self.wanted:
            while self.waiting:
                node, stage = self.waiting.pop()
                for tensor in self.relaxation.reads[node]:
                    self._read(node, stage, tensor)
            while self.wanted:
                tensor, event = self.wanted.pop()
                terms = self._makers(tensor, event - 1)
                if terms is None:
                    continue
                if event > 1:
                    terms.append((self._hold(tensor, event - 1), 1.0))
                terms.append((self.held[tensor, event], -1.0))
                self.program.at_least(terms, 0.0)

    def _read(self, node: int, stage: int, tensor: int) -> None:
        terms = self._makers(tensor, stage)
        if terms is None:
            return
        if stage > 0:
            terms.append((self._hold(tensor, stage), 1.0))
        if self._is_certain(node, stage):
            self.program.at_least(terms, 1.0)
        else:
            terms.append((self.runs[node, stage], -1.0))
            self.program.at_least(terms, 0.0)

    def _behind(self, k: int) -> None:
        """What runs behind event ``k`` at all, in one of its stages or in several, is supplied.

        No column is missing: what makes what a run reads has one in every stage up to that run's,
        unless something surely makes it.
        """
        relaxation, stages = self.relaxation, range(k, self.stages + 1)
        behind: dict[int, int] = {}
        sure = [node for node in relaxation.node_at if self.first[node] >= k]
        waiting: list[tuple[int, int | None]] = []  # tensors, and whose runs read them

        def column(node: int) -> int | None:
            runs = [(self.runs[node, s], 1.0) for s in stages if (node, s) in self.runs]
            if node not in behind and runs:
                behind[node] = self.program.column(whole=False)
                self.program.at_least([*runs, (behind[node], -1.0)], 0.0)
                waiting.extend((tensor, behind[node]) for tensor in relaxation.reads[node])
            return behind.get(node)

        waiting += [(t, None) for t in {t: 0 for node in sure for t in relaxation.reads[node]}]
        while waiting:
            tensor, runs = waiting.pop()
            makers = self.makers[tensor]
            if any(relaxation.step_of[m] != NONE and self.first[m] >= k for m in makers):
                continue
            terms = [(found, 1.0) for m in makers if (found := column(m)) is not None]
            terms.append((self._hold(tensor, k), 1.0))
            if runs is not None:
                terms.append((runs, -1.0))
            self.program.at_least(terms, 1.0 if runs is None else 0.0)

    def _decoded(self) -> None:
        """What is kept in other forms is made again in a stage only if one was there before.

        Within a stage nothing is timed, so else a form and its source make each other.
        """
        for again, first, tensors in self.relaxation.forms:
            if not all(self.makers[t] for t in tensors):
                continue
            for stage in range(1, self.stages + 1):
                if (again, stage) not in self.runs or self._is_certain(first, stage):
                    continue
                terms: list[Term] = [(self._hold(t, stage), 1.0) for t in tensors]
                if self.first[first] <= stage <= self.last[first]:
                    terms.append((self.runs[first, stage], 1.0))
                self.program.at_least([*terms, (self.runs[again, stage], -1.0)], 0.0)
        self._supply()

    def _memory(self, k: int) -> None:
        """The budget at event ``k``."""
        relaxation, event = self.relaxation, self.events[k - 1]
        there = set(relaxation.reads[event])
        takes = relaxation.takes[event]
        own = {t for t in relaxation.own[event] if t not in takes}
        fixed = relaxation.room[event] + sum(relaxation.size[t] for t in there | own)
        terms: list[Term] = []
        # An output that may lie where an input lay counts only where all such inputs are kept.
        for t in relaxation.own[event]:
            if t in takes:
                kept = [self.held[c, k] for c in takes[t] if (c, k) in self.held]
                if len(kept) == len(takes[t]):
                    terms.append(self._sharing(kept, relaxation.size[t]))
        made = set(relaxation.writes[event]) | set(relaxation.own[event])
        for (t, at), column in self.held.items():
            if at == k and t not in there and t not in made:
                terms.append((column, relaxation.size[t] / self.scale))
        for node, nbytes in relaxation.held_from_first_run().items():
            if node in self.surely[k - 1]:
                fixed += nbytes
            elif self.first[node] < k:
                terms.append((self._ran(node, k), nbytes / self.scale))
        room = (relaxation.budget - fixed) / self.scale + _SLACK
        if room < 0 and not terms:
            self.impossible = True
        self.program.at_most(terms, room)

    def _sharing(self, kept: Sequence[int], nbytes: int) -> Term:
        """A column that is 1 where all of ``kept`` are."""
        column = self.program.column(whole=False)
        self.program.at_least([(column, 1.0), *((c, -1.0) for c in kept)], 1.0 - len(kept))
        return column, nbytes / self.scale

    def _ran(self, node: int, k: int) -> int:
        """A column that is 1 where ``node`` ran before event ``k``."""
        stages = range(self.first[node], min(k, self.last[node] + 1))
        if len(stages) == 1:
            return self.runs[node, stages[0]]
        column = self.program.column(whole=False)
        for stage in stages:
            self.program.at_least([(column, 1.0), (self.runs[node, stage], -1.0)], 0.0)
        return column

    def solve(self, effort: Effort, gap: float, enough: float, relaxed: bool = False) -> EventBound:
        """Bound the extra cost.

        Args:
            effort: when to give up.
            gap: relative distance between bound and best solution at which to be content.
            enough: a bound on the extra cost at which to be content.
            relaxed: without whole numbers: quicker, and mostly weaker.
        """
        if self.impossible:
            return EventBound(float("inf"), None)
        answer = self.program.solve(effort, gap, enough + self.included, relaxed)
        bound = answer.bound * (1 - _TOLERANCE) - self.included
        if answer.values is None:
            return EventBound(max(0.0, bound), None)
        values = answer.values
        return EventBound(
            max(0.0, bound), self._kept(values), self._stages(values), self._rules(values)
        )

    def _kept(self, values: Floats) -> tuple[frozenset[int], ...]:
        sets: list[set[int]] = [set() for _ in self.events]
        for (tensor, k), column in self.held.items():
            if values[column] > 0.5:
                sets[k - 1].add(tensor)
        return tuple(frozenset(found) for found in sets)

    def _rules(self, values: Floats) -> frozenset[int]:
        return frozenset(
            node
            for (node, _), column in self.runs.items()
            if self.relaxation.step_of[node] == NONE and values[column] > 0.5
        )

    def _stages(self, values: Floats) -> dict[int, int]:
        found: dict[int, int] = {}
        for (node, stage), column in self.runs.items():
            free = self.relaxation.step_of[node] != NONE and self.first[node] < self.last[node]
            if free and values[column] > 0.5:
                found[node] = min(stage, found.get(node, stage))
        return found
