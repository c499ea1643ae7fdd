"""``early-update``: every optimizer update right after the gradient that it waits for.

Exporters write the optimizer behind the whole backward part, which keeps all gradients until then.
Right after its gradient, an update lets go of it at once (as in LOMO: Lv et al., "Full Parameter
Fine-tuning for Large Language Models with Limited Resources", 2023). Where an update makes more
than it frees, as AdamW does with its two moments, that may cost memory instead; such a graph stays
as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memplan.analysis import OpenModel
from memplan.graph.types import Graph, Phase
from memplan.passes.base import Applied, lower
from memplan.passes.order import in_order
from memplan.simulate.timeline import Timeline, simulate


@dataclass(frozen=True, slots=True)
class EarlyUpdate:
    """No options. All updates move, or none."""

    name: ClassVar[str] = "early-update"
    summary: ClassVar[str] = "optimizer updates right after their gradient"

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with its updates moved, if the peak is lower by it."""
        updates = {n for n, phase in enumerate(model.phases.of) if phase is Phase.UPDATE}
        if not updates:
            return Applied(model, note="no optimizer in the graph")
        moved = in_order(model, early_order(model.graph, updates))
        if moved is model:
            return Applied(model)
        if not lower(simulate(moved.graph, timeline.session), timeline):
            return Applied(model, note=f"{len(updates)} update nodes stay: no lower peak by it")
        return Applied(moved, note=f"{len(updates)} update nodes")


def early_order(graph: Graph, updates: set[int]) -> list[int]:
    """Node ids with every node of ``updates`` as soon as the gradients are there that it needs.

    Updates that wait for no gradient (bias corrections) come right before the first that reads
    them.
    """
    sources = [{graph.tensors[t].producer for t in n.reads} - {-1} for n in graph.nodes]
    waiting_for: list[int] = []  # per node: how many nodes that are no updates it needs, in all
    behind: list[set[int]] = []
    for node in graph.nodes:
        mine = set().union(*(behind[s] if s in updates else {s} for s in sources[node.id]))
        behind.append(mine if node.id in updates else set())
        waiting_for.append(len(mine))
    readers: dict[int, list[int]] = {}
    for update in sorted(updates):
        for source in behind[update]:
            readers.setdefault(source, []).append(update)
    order: list[int] = []
    done: set[int] = set()

    def run(node: int) -> None:
        """``node``, and before it the updates that it reads."""
        for source in sorted(sources[node] - done):
            run(source)
        if node not in done:
            done.add(node)
            order.append(node)

    for node in graph.nodes:
        if node.id in updates:
            continue
        run(node.id)
        for update in readers.get(node.id, ()):
            waiting_for[update] -= 1
            if waiting_for[update] == 0:
                run(update)
    for update in sorted(updates):
        run(update)
    return order
