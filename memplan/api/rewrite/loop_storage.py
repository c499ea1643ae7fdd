"""Pairs of loops in a plan: what their steps recompute, and the graph around as before.

Where nothing is asked, what is cheap to recompute and all that can be are put into effect and
simulated, up to the first that keeps the budget without anything else. These graphs and the one
that is there are given to the planner, which recomputes around the loops; the least total cost
wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memplan.api.state_modes import like_state
from memplan.errors import UsageError
from memplan.ir.graph import Graph
from memplan.passes.loops.cell import CellPlan, plan_cell
from memplan.passes.loops.loop_pairs import find_pairs, sized_bytes
from memplan.passes.loops.loop_rewrite import store_less
from memplan.passes.loops.loop_step import OPTION, PairStep, extra_seconds, named, read_step
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
AUTO, NONE = "auto", "none"


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
    """The model with less stored in its pairs, in every way that is to be planned, by rising cost.

    Args:
        model: the model.
        session: what is simulated.
        policy: ``auto``: what is cheap recomputed, and all, up to one that keeps the budget by
            itself; ``all`` or names (:func:`memplan.passes.loops.loop_step.named`): that one;
            ``none``: none.
        costs: seconds of nodes.
        budget: bytes, workspace included.
        loss: the name of the loss, if the user gave one.

    Raises:
        UsageError: what is named cannot be done.
    """
    if policy == NONE:
        return ()
    steps = _read_pairs(model, session, costs)
    if policy != AUTO:
        return (_made(model, session, list(zip(steps, named(steps, policy), strict=True)), loss),)
    found: list[LoopStep] = []
    for wish in ("auto", "all") if steps else ():
        rows = list(zip(steps, named(steps, wish), strict=True))
        seconds = sum(extra_seconds(*row) for row in rows)
        if seconds <= sum(step.seconds for step in found[-1:]):
            continue
        found.append(_made(model, session, rows, loss))
        if found[-1].timeline.peak_with_workspace_bytes <= budget:
            break
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
    return (_made(model, session, list(zip(steps, kept, strict=True)), loss),)


def _read_pairs(model: OpenModel, session: SessionKind, costs: NodeCosts) -> list[PairStep]:
    prepared = model.prepared
    pairs = find_pairs(prepared.bound, prepared.types, model.graph, model.phases)
    protos = [n for n in prepared.proto.graph.node if n.op_type != "Constant" or n.domain]
    exact = session.provider == "cpu"
    return [read_step(p, model.graph, protos, costs.estimate, exact) for p in pairs]


def _made(
    model: OpenModel,
    session: SessionKind,
    rows: Sequence[tuple[PairStep, CellPlan]],
    loss: str | None,
) -> LoopStep:
    """The model with what is decided for every pair put into effect, simulated."""
    prepared = model.prepared
    proto = store_less(prepared.proto, rows, bool(symbolic_dims(prepared.proto)))
    known = symbolic_dims(proto)
    dims = {name: size for name, size in prepared.dims.items() if name in known}
    made = prepare(proto, prepared.path, dims, prepared.weights)
    after = like_state(opened(made, loss), model)
    changes = tuple(_change(*row) for row in rows)
    count = sum(len(change.recomputed) for change in changes)
    loops = counted(len(changes), "backward loop")
    note = f"{counted(count, 'node')} recomputed at every step of {loops}"
    timeline = simulate(after.graph, session)
    return LoopStep(NAME, after, timeline, True, note=note, pairs=changes)


def _change(step: PairStep, kept: CellPlan) -> PairChange:
    pair = step.pair
    return PairChange(
        pair.forward.node.name,
        pair.backward.node.name,
        pair.steps,
        pair.step_bytes,
        _stored_bytes(step, kept),
        tuple(next(o for o in node.output if o) for node in kept.recomputed),
        extra_seconds(step, kept),
    )


def _stored_bytes(step: PairStep, kept: CellPlan) -> int:
    """Bytes per step that the backward loop then reads of what the forward loop stacks."""
    call = step.pair.forward
    given = {*call.slices, *step.formals, call.counter}
    names = {*kept.stored, *kept.used} - given
    return sum(sized_bytes(call.types[name]) for name in names)


def loops_policy(asked: str, strategy: Strategy, session: SessionKind) -> str:
    """What is done with loops: what is ``asked``; where that is nothing, ``auto`` for the planner's
    own search in tuned sessions, and ``none`` else.

    Raises:
        UsageError: what earlier versions had is asked for.
    """
    if asked == "fit":
        raise UsageError(f"{OPTION} fit is gone", f"{OPTION} auto")
    searched = isinstance(strategy, Search) and session.name == "tuned"
    return asked or (AUTO if searched else NONE)


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
