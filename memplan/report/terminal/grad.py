"""A training graph as text: what was differentiated by, and how many nodes that took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from memplan.ir.graph import Phase
from memplan.report.terminal.base import console
from memplan.report.terminal.scans import scan_line

if TYPE_CHECKING:
    from memplan.api.grad.run import TrainingGraph

_SHOWN = 5


def print_training_graph(result: TrainingGraph, color: str = "auto", details: bool = False) -> None:
    """Print the report; ``details`` lists every name."""
    console(color).print(render_training_graph(result, details))


def render_training_graph(result: TrainingGraph, details: bool) -> Group:
    """What was built, by what, and what was left out."""
    nodes = result.nodes
    counts = ", ".join(f"{count} {phase}" for phase, count in nodes.items() if count)
    wrt, left = result.wrt, [n for n in result.candidates.all if n not in result.wrt]
    headline = f"{result.path}: loss '{result.loss}', {counts} nodes"
    lines = []
    if nodes[Phase.BACKWARD]:
        lines.append(f"by {_count(wrt, 'tensor')}: {_listed(wrt, details)}")
    if left:
        lines.append(f"not by {_count(left, 'tensor')}: {_listed(left, details)} (see --wrt)")
    if result.class_axis is not None:
        lines.append(f"classes lie along axis {result.class_axis} (see --class-axis)")
    if result.new_inputs:
        lines.append(f"new inputs: {_listed(result.new_inputs, details)}")
    if result.new_outputs:
        lines.append(f"new outputs: {_listed(result.new_outputs, details)}")
    lines += [scan_line(pair, result.dims, details) for pair in result.scans]
    if result.output is not None:
        lines.append(f"wrote {result.output}")
    return Group(Text(headline, style="bold"), *map(Text, lines))


def _count(names: Sequence[str], noun: str) -> str:
    return f"{len(names)} {noun}" + ("" if len(names) == 1 else "s")


def _listed(names: Sequence[str], details: bool) -> str:
    shown = list(names) if details else list(names[:_SHOWN])
    return ", ".join(shown) + (", ..." if len(shown) < len(names) else "")
