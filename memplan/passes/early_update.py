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

from memplan.passes.base import Applied, lower
from memplan.passes.schedule import early_order, in_order, updates_of
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline, simulate


@dataclass(frozen=True, slots=True)
class EarlyUpdate:
    """No options. All updates move, or none."""

    name: ClassVar[str] = "early-update"
    summary: ClassVar[str] = "optimizer updates right after their gradient"

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with its updates moved, if the peak is lower by it."""
        updates = updates_of(model.phases)
        if not updates:
            return Applied(model, note="no optimizer in the graph")
        moved = in_order(model, early_order(model.graph, updates))
        if moved is model:
            return Applied(model)
        if not lower(simulate(moved.graph, timeline.session), timeline):
            return Applied(model, note=f"{len(updates)} update nodes stay: no lower peak by it")
        return Applied(moved, note=f"{len(updates)} update nodes")
