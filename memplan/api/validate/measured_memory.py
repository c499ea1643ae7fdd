"""What is wrong with the memory of a run: budgets, predictions, a peak that rose."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.api.validate.validation import Run
from memplan.ir.graph import Graph
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a prediction may be off, in the words of its assumptions.

    ``upper``: it may be too high; ``either``: too high or too low.
    """

    upper: tuple[str, ...] = ()
    either: tuple[str, ...] = ()

    def excuses(self, predicted: int, measured: int) -> str | None:
        """The assumption that explains the difference, if one does."""
        reasons = (*self.either, *self.upper) if measured < predicted else self.either
        return reasons[0] if reasons else None


def doubt(model: OpenModel, timeline: Timeline) -> Doubt:
    """What the simulation of a model had to assume. All it has in operators that were not probed,
    in bodies and in bounded shapes is an upper bound, but for what is decided at run time."""
    prepared = model.prepared
    bounded = tuple(text for text in prepared.assumptions if "upper bounds" in text)
    # The functions of the user's own file: its session runs their nodes later.
    inlined = tuple(text for text in prepared.assumptions if "runs their nodes later" in text)
    open_ended = tuple(_open_ended(timeline.graph))
    uncounted = tuple(text for text in prepared.assumptions if "not counted" in text)
    return Doubt((*timeline.assumptions, *bounded), (*open_ended, *inlined, *uncounted))


def _open_ended(graph: Graph) -> list[str]:
    """Bodies whose number of iterations or shapes only a run decides."""
    found = []
    for index, bodies in graph.bodies.items():
        node = graph.nodes[index]
        for body in bodies:
            if body.graph is None:
                found.append(f"shapes inside {node.op} '{node.name}' are not known")
            elif body.trips is None:
                found.append(f"data decides how often {node.op} '{node.name}' iterates")
            else:
                found.extend(_open_ended(body.graph))
    return found


def prediction_differences(run: Run, doubts: Doubt) -> tuple[list[str], list[str]]:
    """Findings and notes: where the measured bytes of a run are not those predicted."""
    if run.predicted_peak_bytes is None or run.predicted_later_dynamic_bytes is None:
        return [], []
    later = run.predicted_later_dynamic_bytes
    pairs = [
        ("in the first run", run.predicted_peak_bytes - run.resident_bytes),
        ("in the second run", later),
        *((f"on draw {k}", later) for k in range(2, 2 + len(run.further_dynamic_bytes))),
    ]
    wrong, excused = [], []
    for (when, predicted), measured in zip(pairs, run.all_dynamic_bytes, strict=True):
        if predicted == measured:
            continue
        text = (
            f"{run.label}: {predicted:,} B dynamic were predicted and {measured:,} B were measured "
            f"{when}"
        )
        excuse = doubts.excuses(predicted, measured)
        if excuse is None:
            wrong.append(text)
        else:
            excused.append(f"{text}: {excuse}")
    # One reason explains all runs.
    return wrong[:1], [] if wrong else excused[:1]


def budget_findings(run: Run, budget: int | None, later_with_workspace: int | None) -> list[str]:
    """Runs over the budget that the file records, as measured and with predicted workspace."""
    if budget is None:
        return []
    limit = f"over the budget {budget:,} B"
    first, *later = (run.resident_bytes + nbytes for nbytes in run.all_dynamic_bytes)
    if first > budget:
        return [f"the {run.known} peak is {first - budget:,} B {limit}"]
    found = []
    highest = max(later, default=0)
    if highest > budget:
        hint = (
            "; session_options.enable_mem_pattern = False makes every run like the first"
            if run.session == "default"
            else ""
        )
        found.append(f"later runs are {highest - budget:,} B {limit}{hint}")
    predicted = max(run.predicted_peak_with_workspace_bytes or 0, later_with_workspace or 0)
    if predicted > budget and not found:
        found.append(
            f"with the workspace that is predicted, and not measured, the peak is "
            f"{predicted - budget:,} B {limit}"
        )
    return found


def rise_findings(before: Run, after: Run, budget: int | None) -> list[str]:
    """Without a budget to keep, a peak may at least not rise."""
    if budget is not None:
        return []
    rise = after.highest_measured_bytes - before.highest_measured_bytes
    if after.measured_peak_bytes > before.measured_peak_bytes or rise > 0:
        over = max(rise, after.measured_peak_bytes - before.measured_peak_bytes)
        return [
            f"the {after.known} peak is {over:,} B above the original's, and no budget is recorded"
        ]
    return []
