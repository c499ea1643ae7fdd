"""What ``--keep`` and ``--recompute`` selected: what it saves and costs, and what became of it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import asdict, dataclass

from memplan.api.rewrite.cheapest import Planned
from memplan.api.rewrite.goal import Goal
from memplan.ir.graph import Graph
from memplan.ops.memory import MemorySemantics, semantics
from memplan.planning.selections import Selection, selections
from memplan.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True)
class SelectionRow:
    """One selector.

    ``tensors`` are all that it selects, ``nbytes`` those of them that would be made again where all
    of it were recomputed, which takes ``seconds``: a ``seconds_fraction`` of the step. Views take
    no bytes. ``at_peak_bytes`` of these are held at the peak of what was planned. ``recomputed``:
    how many of the tensors the plan makes again.
    """

    option: str
    selector: str
    tensors: int
    nbytes: int
    at_peak_bytes: int
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
    estimated = goal.costs.estimate(model.graph)
    measured = goal.costs.seconds
    seconds = [measured.get(n.name, estimated[n.id]) for n in model.graph.nodes]
    return tuple(_row(each, planned, seconds) for each in found)


def _row(selection: Selection, planned: Planned, seconds: list[float]) -> SelectionRow:
    tensors, nodes = planned.model.graph.tensors, planned.model.graph.nodes
    last = planned.steps[-1] if planned.steps else planned.candidate
    rules = semantics(last.timeline.session.provider)
    own = {t for t in selection.again if not _is_view(planned.model.graph, t, rules)}
    makers = {tensors[t].producer for t in selection.again}
    cost, whole = sum(seconds[node] for node in makers), sum(seconds)
    again = planned.plan.recomputed
    return SelectionRow(
        option=selection.selector.option,
        selector=selection.selector.text,
        tensors=len(selection.tensors),
        nbytes=sum(tensors[t].nbytes for t in own),
        at_peak_bytes=_at_peak(last.timeline, {tensors[t].name for t in own}, rules),
        seconds=cost,
        seconds_fraction=cost / whole if whole else 0.0,
        recomputed=sum(nodes[tensors[t].producer].name in again for t in selection.tensors),
    )


def _at_peak(timeline: Timeline, chosen: Set[str], rules: MemorySemantics) -> int:
    """Bytes at the peak of buffers that hold one of the ``chosen`` tensors by then: results may be
    written over the inputs that they are made of."""
    graph, step_of = timeline.graph, timeline.allocation.step_of
    found = 0
    for buffer in timeline.live_at(timeline.peak_step):
        made = [
            graph.tensors[t].name
            for t in buffer.members
            if step_of[graph.tensors[t].producer] <= timeline.peak_step
            and not _is_view(graph, t, rules)
        ]
        found += buffer.nbytes if made and made[-1] in chosen else 0
    return found


def _is_view(graph: Graph, tensor: int, rules: MemorySemantics) -> bool:
    """Whether a computed tensor lies in the memory of an input of its node."""
    maker = graph.nodes[graph.tensors[tensor].producer]
    return rules.alias_input(maker.key, maker.outputs.index(tensor)) is not None
