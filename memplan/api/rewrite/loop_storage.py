"""Pairs of loops in a plan: what their steps recompute, and the graph around as before.

The problem of one step is solved for every price of a byte
(:mod:`memplan.passes.loops.choose_storage`), which leaves a handful of graphs, from the one that is
there to the one that stores the least. They are simulated by rising cost up to the first that keeps
the budget without anything else; of that, what the budget does not ask for is left out again. Those
that cost less are given to the planner, which recomputes around the loops; the least total cost
wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from memplan.ir.graph import Graph
from memplan.passes.loops.cell import CellPlan, plan_cell
from memplan.passes.loops.choose_storage import FIT, NONE, Choice, choice_of, front, named
from memplan.passes.loops.loop_pairs import find_pairs, sized_bytes
from memplan.passes.loops.loop_rewrite import store_less
from memplan.passes.loops.loop_step import PairStep, read_step
from memplan.passes.manager import PassStep
from memplan.planning.costs import NodeCosts
from memplan.planning.plan import Plan
from memplan.planning.plan_file import LoopDecision
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import OpenModel, opened
from memplan.simulate.session import SessionKind
from memplan.simulate.timeline import simulate
from memplan.solver.strategies.builtin import Search
from memplan.solver.strategy import Strategy
from memplan.units import counted

NAME = "recurrent"
_TRIALS = 24
"""Simulations that are spent on leaving out what a budget does not ask for."""


@dataclass(frozen=True, slots=True)
class PairChange:
    """What the backward loop of a pair reads of what the forward one stacks, in bytes per step
    before and after, and what is recomputed in a step: the first outputs of the nodes, and the
    seconds of all steps together."""

    forward: str
    backward: str
    steps: int
    before_bytes: int
    after_bytes: int
    recomputed: tuple[str, ...]
    seconds: float

    def as_json(self) -> dict[str, object]:
        """All figures, by name; seconds are those of a whole run."""
        return {
            "forward": self.forward,
            "backward": self.backward,
            "steps": self.steps,
            "stored_bytes_per_step_before": self.before_bytes,
            "stored_bytes_per_step_after": self.after_bytes,
            "stored_bytes_before": self.steps * self.before_bytes,
            "stored_bytes_after": self.steps * self.after_bytes,
            "recomputed": list(self.recomputed),
            "extra_seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class LoopStep(PassStep):
    """The pairs of a graph, changed: a step on the way like a pass, but one that costs time."""

    pairs: tuple[PairChange, ...] = ()

    @property
    def seconds(self) -> float:
        """Estimated seconds of all that is recomputed in the loops."""
        return sum(pair.seconds for pair in self.pairs)


def loop_steps(
    model: OpenModel,
    session: SessionKind,
    policy: str,
    costs: NodeCosts,
    budget: int,
    loss: str | None = None,
) -> tuple[LoopStep, ...]:
    """The choices of what to store less in the pairs of a model, by rising cost.

    Args:
        model: the model.
        session: what is simulated.
        policy: ``fit``: those that may be worth it, up to one that keeps the budget by itself;
            ``all``, ``auto`` or names (:func:`memplan.passes.loops.choose_storage.named`): that
            one; ``none``: none.
        costs: seconds of nodes.
        budget: bytes, workspace included.
        loss: the name of the loss, if the user gave one.

    Raises:
        UsageError: what is named cannot be done.
    """
    if policy == NONE:
        return ()
    steps = _read_pairs(model, session, costs)
    maker = _Maker(model, session, steps, loss)
    if policy != FIT:
        return (maker.made(choice_of(steps, named(steps, policy))),)
    found: list[LoopStep] = []
    for choice in front(steps) if steps else ():
        if not choice.seconds:
            continue
        changed = maker.made(choice)
        if fits(changed, budget):
            last = maker.trimmed(choice, changed, budget)
            return (*(each for each in found if each.seconds < last.seconds), last)
        found.append(changed)
    return tuple(found)


def loops_again(
    model: OpenModel,
    session: SessionKind,
    decisions: Sequence[LoopDecision],
    costs: NodeCosts,
    loss: str | None = None,
) -> tuple[LoopStep, ...]:
    """The pairs of a plan that the model has, changed as the plan says."""
    asked = {(each.forward, each.backward): {*each.recomputed} for each in decisions}
    steps = _read_pairs(model, session, costs) if asked else []
    names = [(step.pair.forward.node.name, step.pair.backward.node.name) for step in steps]
    if asked.keys().isdisjoint(names):
        return ()
    kept: list[CellPlan] = []
    for step, pair in zip(steps, names, strict=True):
        cell, wanted = step.cell, asked.get(pair, set())
        again = (n for n in cell.nodes if cell.recomputes(n) and wanted.intersection(n.output))
        chosen = {name for node in again for name in node.output if name} - cell.stacked
        kept.append(plan_cell(cell, chosen | step.constants))
    return (_Maker(model, session, steps, loss).made(choice_of(steps, kept)),)


def _read_pairs(model: OpenModel, session: SessionKind, costs: NodeCosts) -> list[PairStep]:
    prepared = model.prepared
    pairs = find_pairs(prepared.bound, prepared.types, model.graph, model.phases)
    protos = [n for n in prepared.proto.graph.node if n.op_type != "Constant" or n.domain]
    exact = session.provider == "cpu"
    return [read_step(p, model.graph, protos, costs.estimate, exact) for p in pairs]


def fits(changed: LoopStep, budget: int) -> bool:
    """Whether a change of the loops keeps the budget by itself."""
    return changed.timeline.peak_with_workspace_bytes <= budget


@dataclass(frozen=True, slots=True)
class _Maker:
    """Puts choices for ``steps`` into effect."""

    model: OpenModel
    session: SessionKind
    steps: Sequence[PairStep]
    loss: str | None

    def made(self, choice: Choice) -> LoopStep:
        """The model with a choice put into effect, simulated."""
        prepared = self.model.prepared
        symbolic = symbolic_dims(prepared.proto)
        rows = list(zip(self.steps, choice.kept, strict=True))
        proto = store_less(prepared.proto, rows, bool(symbolic))
        known = symbolic_dims(proto)
        dims = {name: size for name, size in prepared.dims.items() if name in known}
        after = opened(prepare(proto, prepared.path, dims, prepared.weights), self.loss)
        changes = tuple(_change(step, kept) for step, kept in rows)
        count = sum(len(change.recomputed) for change in changes)
        loops = counted(len(changes), "backward loop")
        note = f"{counted(count, 'node')} recomputed at every step of {loops}"
        timeline = simulate(after.graph, self.session)
        return LoopStep(NAME, after, timeline, True, note=note, pairs=changes)

    def trimmed(self, choice: Choice, changed: LoopStep, budget: int) -> LoopStep:
        """The same with as many recomputations left out as the budget allows, the costliest first:
        corners of the hull are few, and what lies between them may do."""
        trials = _TRIALS
        improved = True
        while improved and trials:
            improved = False
            options = sorted(self._less(choice), key=lambda each: each.seconds)
            for each in options[:trials]:
                trials -= 1
                lower = self.made(each)
                if fits(lower, budget):
                    choice, changed, improved = each, lower, True
                    break
        return changed

    def _less(self, choice: Choice) -> Iterator[Choice]:
        """Choices in which one node fewer of one pair is recomputed, and what only it needed."""
        for place, (step, kept) in enumerate(zip(self.steps, choice.kept, strict=True)):
            again = {name for node in kept.recomputed for name in node.output if name}
            for node in kept.recomputed:
                fewer = again - set(node.output)
                if again <= step.constants | fewer:
                    continue
                kept_then = [*choice.kept]
                kept_then[place] = plan_cell(step.cell, fewer | step.constants)
                found = choice_of(self.steps, kept_then)
                if found.seconds < choice.seconds:
                    yield found


def _change(step: PairStep, kept: CellPlan) -> PairChange:
    pair = step.pair
    return PairChange(
        pair.forward.node.name,
        pair.backward.node.name,
        pair.steps,
        pair.step_bytes,
        _stored_bytes(step, kept),
        tuple(next(o for o in node.output if o) for node in kept.recomputed),
        choice_of([step], [kept]).seconds,
    )


def _stored_bytes(step: PairStep, kept: CellPlan) -> int:
    """Bytes per step that the backward loop then reads of what the forward loop stacks."""
    call = step.pair.forward
    given = {*call.slices, *step.formals, call.counter}
    names = {*kept.stored, *kept.used} - given
    return sum(sized_bytes(call.types[name]) for name in names)


def loops_policy(asked: str, strategy: Strategy, session: SessionKind) -> str:
    """What is done with loops: what is ``asked``; where that is nothing, ``fit`` for the planner's
    own search in tuned sessions, and ``none`` else."""
    searched = isinstance(strategy, Search) and session.name == "tuned"
    return asked or (FIT if searched else NONE)


def with_loops(plan: Plan, loops: Sequence[LoopStep], costs: NodeCosts, graph: Graph) -> Plan:
    """A plan whose extra cost counts what is recomputed in loops, too.

    What would be cheaper with other changes of the loops is not known: the bound is 0.
    """
    added = sum(step.seconds for step in loops)
    if not added:
        return plan
    whole = step_seconds(costs, graph)
    # Loops of a costs file were measured before anything was recomputed in them.
    estimated = (p for step in loops for p in step.pairs if p.backward not in costs.seconds)
    inside = sum(pair.seconds for pair in estimated)
    again = plan.extra_cost_fraction * whole + added
    return replace(
        plan,
        extra_cost_fraction=again / (whole - inside),
        bound_fraction=0.0,
        bound_kind="trivial",
    )


def step_seconds(costs: NodeCosts, graph: Graph) -> float:
    """Seconds of a step of a graph."""
    estimated = costs.estimate(graph)
    return sum(costs.seconds.get(node.name, estimated[node.id]) for node in graph.nodes)
