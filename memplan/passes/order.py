"""``order``: the schedule alone. Nothing runs twice, so what it saves is free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memplan.ir.graph import Graph
from memplan.passes.base import Applied
from memplan.passes.schedule import early_order, in_order, updates_of
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Order:
    """``seconds``: time for the search. ``rounds``: attempts instead of it (0: ``seconds``), so
    that the order depends on ``seed`` alone.
    """

    name: ClassVar[str] = "order"
    summary: ClassVar[str] = "the node order of least peak, nothing recomputed"
    seconds: float = 2.0
    rounds: int = 0
    seed: int = 0

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model in a lower order, if the search finds one (tuned sessions only)."""
        if timeline.session.reuse or not timeline.session.priority_order:
            return Applied(model, note="a default session has an order of its own")
        # numba is slow to import: only where an order is wanted.
        from memplan.planning.planner import PlanRequest, prepare
        from memplan.solver.order.lowest import LowestOptions, lowest_order
        from memplan.solver.search.warm_up import warm_up

        warm_up()
        request = PlanRequest(model.graph, timeline.session, 0, _no_costs)
        prepared = prepare(request)
        floor = prepared.floor.with_workspace
        options = LowestOptions(self.seconds, self.rounds, self.seed, floor)
        early = early_order(model.graph, updates_of(model.phases))
        sequence = lowest_order(prepared.encoded.problem(floor), options, [early])
        return Applied(in_order(model, [int(node) for node in sequence]))


def _no_costs(graph: Graph) -> list[float]:
    """An order costs nothing, whatever the nodes do."""
    return [0.0] * len(graph.nodes)
