"""What ``--keep`` and ``--recompute`` selected: what it saves and costs, and what became of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from memplan.api.rewrite.cheapest import Planned
from memplan.api.rewrite.goal import Goal
from memplan.planning.selections import Selection, selections


@dataclass(frozen=True, slots=True)
class SelectionRow:
    """One selector.

    ``tensors`` are all that it selects, ``nbytes`` theirs that would be made again where all of it
    were recomputed, which takes ``seconds``: a ``seconds_fraction`` of the step. ``recomputed``:
    how many of the tensors the plan makes again.
    """

    option: str
    selector: str
    tensors: int
    nbytes: int
    seconds: float
    seconds_fraction: float
    recomputed: int

    def as_json(self) -> dict[str, object]:
        """The JSON object."""
        return asdict(self)


def selection_rows(planned: Planned, goal: Goal) -> tuple[SelectionRow, ...]:
    """A row for every selector, in the order in which they were given, ``--keep`` first."""
    model = planned.model
    found = selections(goal.selectors, model, goal.session.provider)
    if not found:
        return ()
    estimated = planned.costs.estimate(model.graph)
    measured = planned.costs.seconds
    seconds = [measured.get(n.name, estimated[n.id]) for n in model.graph.nodes]
    return tuple(_row(each, planned, seconds) for each in found)


def _row(selection: Selection, planned: Planned, seconds: list[float]) -> SelectionRow:
    tensors, nodes = planned.model.graph.tensors, planned.model.graph.nodes
    makers = {tensors[t].producer for t in selection.again}
    cost, whole = sum(seconds[node] for node in makers), sum(seconds)
    again = planned.plan.recomputed
    return SelectionRow(
        option=selection.selector.option,
        selector=selection.selector.text,
        tensors=len(selection.tensors),
        nbytes=sum(tensors[t].nbytes for t in selection.again),
        seconds=cost,
        seconds_fraction=cost / whole if whole else 0.0,
        recomputed=sum(nodes[tensors[t].producer].name in again for t in selection.tensors),
    )
