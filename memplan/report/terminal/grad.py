"""``memplan grad`` as text: what was differentiated by, and how many nodes that took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group

from memplan.autodiff.optimizers import RATE, STEP
from memplan.ir.graph import Phase
from memplan.report.terminal.scans import scan_line
from memplan.report.terminal.tables import group, line, listed
from memplan.units import counted

if TYPE_CHECKING:
    from memplan.api.grad.run import TrainingGraph

_CONTROLS = {
    RATE: f"'{RATE}', the learning rate (a float32 scalar)",
    STEP: f"'{STEP}', the number of the step (an int64 scalar; the first is 1)",
}


def render(result: TrainingGraph, *, details: bool = False) -> Group:
    """What was built, by what, and what was left out; ``details`` lists every name."""
    nodes, wrt = result.nodes, result.wrt
    left = result.not_trained
    counts = [(count, phase) for phase, count in nodes.items() if count]
    total = " node" if sum(count for count, _ in counts) == 1 else " nodes"
    parts = ", ".join(f"{count:,} {phase}" for count, phase in counts) + total
    lines = []
    if nodes[Phase.BACKWARD]:
        lines.append(f"by {counted(len(wrt), 'tensor')}: {listed(wrt, details)}")
    if left:
        lines.append(f"not by {counted(len(left), 'tensor')}: {listed(left, details)} (see --wrt)")
    if result.class_axis is not None:
        lines.append(f"classes lie along axis {result.class_axis} (see --class-axis)")
    if result.statistics.renewed:
        renewed = tuple(result.statistics.renewed.values())
        what = counted(len(renewed), "running statistic")
        lines.append(f"{what} renewed: {listed(renewed, details)}")
    lines += list(result.notes)
    controls = [name for name in (RATE, STEP) if name in result.new_inputs]
    if controls:
        lines.append("to feed: " + ", ".join(_CONTROLS[name] for name in controls))
    if result.new_inputs:
        lines.append(f"new inputs: {_by_parameter(result.new_inputs, wrt, details)}")
    if result.new_outputs:
        lines.append(f"new outputs: {_by_parameter(result.new_outputs, wrt, details)}")
    if result.new_values:
        new, old = next(iter(result.new_values.items()))
        lines.append(
            f"for the next step: feed {counted(len(result.new_values), 'output')} back, "
            f"'{new}' as '{old}' and so on (memplan.new_values in the file's metadata has all)"
        )
    lines += [scan_line(pair, result.dims, details) for pair in result.scans]
    if result.placement.note:
        lines.append(result.placement.note)
    if result.output is not None:
        lines.append(f"wrote {result.output}")
    headline = line(f"{result.path}: loss '{result.loss}', {parts}", "bold")
    return group([headline, *map(line, lines)])


def _by_parameter(names: Sequence[str], wrt: Sequence[str], details: bool) -> str:
    """``lr, and for each NAME of the 60 tensors: NAME, NAME.exp_avg``: what every tensor has is
    said once."""
    known, endings = set(wrt), dict[str, list[str]]()
    for name in names:
        cut = next((k for k in range(len(name), 0, -1) if name[:k] in known), None)
        endings.setdefault("" if cut is None else f"NAME{name[cut:]}", []).append(name)
    every = [e for e, found in endings.items() if e and len(found) == len(wrt) > 1]
    others = [name for e, found in endings.items() if e not in every for name in found]
    if not every:
        return listed(names, details)
    each = f"for each NAME of the {counted(len(wrt), 'tensor')}: {', '.join(every)}"
    return f"{listed(others, details)}, and {each}" if others else each
