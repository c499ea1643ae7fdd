"""``order``: the nodes in the order with the lowest peak. Nothing is recomputed, so what it saves
is free.

The search also starts from orders that it would not find, as many nodes move at once: every
optimizer update right after the gradient that it waits for, where exporters write the optimizer
behind the whole backward part, which keeps all gradients until then (as in LOMO: Lv et al., "Full
Parameter Fine-tuning for Large Language Models with Limited Resources", 2023), and small results of
large tensors, such as masks, made early (:mod:`memplan.passes.early`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from memplan.deadline import Deadline
from memplan.errors import PlanError
from memplan.ir.graph import Graph, Phase
from memplan.ir.phases import Phases
from memplan.passes.early import early_results
from memplan.passes.graph_pass import Applied
from memplan.passes.surgery import ModelEdit
from memplan.planning.plan_file import EDITED
from memplan.simulate.opened import OpenModel
from memplan.simulate.state_memory import names_of, ordered_for_state
from memplan.simulate.timeline import Timeline

# Attempts from every start, at least and at most; between that, of so many nodes in all.
_ROUNDS, _NODES = (3, 40), 20_000


@dataclass(frozen=True, slots=True)
class Order:
    """``rounds``: attempts of the search from every start; 0: as many as suit the size of the
    graph, so that every run finds the same order. ``deadline``: when to stop before that."""

    name: ClassVar[str] = "order"
    rounds: int = 0
    deadline: Deadline = field(default_factory=Deadline)

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model in a lower order, if the search finds one."""
        # numba is slow to import: only where an order is wanted.
        from memplan.planning.encode_problem import within
        from memplan.planning.planner import PlanRequest, prepare
        from memplan.solver.order.lowest import LowestOptions, lowest_order

        request = PlanRequest(model.graph, timeline.session, 0, _no_costs)
        prepared = prepare(request)
        floor = prepared.floor.with_workspace
        nodes = max(1, len(model.graph.nodes))
        rounds = self.rounds or max(_ROUNDS[0], min(_NODES // nodes, _ROUNDS[1]))
        options = LowestOptions(rounds, floor, self.deadline)
        starts = [
            early_order(model.graph, updates_of(model.phases)),
            early_results(timeline, alone=False),
            early_results(timeline, alone=True),
        ]
        sequence = lowest_order(within(prepared.problem, floor), options, starts)
        return Applied(in_order(model, [int(node) for node in sequence]))


@dataclass(frozen=True, slots=True)
class OrderAgain:
    """``names``: the nodes in the order that :class:`Order` once found."""

    name: ClassVar[str] = Order.name
    names: Sequence[str]

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model in that order.

        Raises:
            PlanError: the graph has other nodes, or one would run before what it reads is made.
        """
        graph = model.graph
        ids = {node.name: node.id for node in graph.nodes}
        if sorted(self.names) != sorted(ids):
            raise PlanError("the plan's order: the graph has other nodes", EDITED)
        order = [ids[name] for name in self.names]
        place = {node: k for k, node in enumerate(order)}
        makers = ((node.id, graph.tensors[t].producer) for node in graph.nodes for t in node.reads)
        if any(maker >= 0 and place[maker] > place[reader] for reader, maker in makers):
            raise PlanError("the plan's order: a node comes before what it reads", EDITED)
        return Applied(in_order(model, order))


def _no_costs(graph: Graph) -> list[float]:
    """An order costs nothing, whatever the nodes do."""
    return [0.0] * len(graph.nodes)


def updates_of(phases: Phases) -> set[int]:
    """The nodes of the optimizer, and those that renew running statistics."""
    return {node for node, phase in enumerate(phases.of) if phase is Phase.UPDATE}


def in_order(model: OpenModel, sequence: Sequence[int]) -> OpenModel:
    """The model with its nodes in the order of ``sequence`` (ids), constants first.

    The model itself where that is its order already.
    """
    if list(sequence) == list(range(len(model.graph.nodes))):
        return model
    edit = ModelEdit(model)
    edit.reorder(sequence)
    return edit.opened(None)


def in_state_order(model: OpenModel) -> OpenModel:
    """The model with what writes over old state behind what still reads it, where that lets more
    state lie in place; else the model itself."""
    graph = model.graph
    if graph.state is None or not graph.state.apart:
        return model
    order = ordered_for_state(graph, names_of(graph), loss=graph.state.loss)
    moved = in_order(model, order)
    more = moved.graph.state is not None and len(moved.graph.state.apart) < len(graph.state.apart)
    return moved if more else model


def early_order(graph: Graph, updates: set[int]) -> list[int]:
    """Node ids with every node of ``updates`` as soon as the gradients are there that it needs.

    Updates that wait for no gradient (bias corrections) come right before the first that reads
    them.
    """
    sources = [{graph.tensors[t].producer for t in n.reads} - {-1} for n in graph.nodes]
    if graph.state is not None:
        for maker, nodes in graph.state.before.items():
            sources[maker].update(nodes)
    due: list[int] = []  # the last node other than updates that it waits for; -1: none
    last: dict[int, list[int]] = {}
    for node in graph.nodes:
        waits = (due[s] if s in updates else s for s in sources[node.id])
        due.append(max(waits, default=-1))
        if node.id in updates:
            last.setdefault(due[-1], []).append(node.id)
    order: dict[int, None] = {}

    def run(node: int) -> None:
        """``node``, and before it the updates that it reads."""
        for source in sorted(sources[node] - order.keys()):
            run(source)
        order.setdefault(node)

    for node in graph.nodes:
        if node.id not in updates:
            run(node.id)
            for update in last.get(node.id, ()):
                run(update)
    for update in sorted(updates):
        run(update)
    return list(order)
