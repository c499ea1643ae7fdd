"""A training graph as text: what was differentiated by, and how many nodes that took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from memplan.graph.types import Phase
from memplan.model.scan_pairs import ScanPair
from memplan.report.text import console
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.differentiation import TrainingGraph

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
    lines += [_scan(pair, result.dims, details) for pair in result.scans]
    if result.output is not None:
        lines.append(f"wrote {result.output}")
    return Group(Text(headline, style="bold"), *map(Text, lines))


def _scan(pair: ScanPair, dims: Mapping[str, int], details: bool) -> str:
    """What a recurrent layer stores."""
    each, total = pair.step_bytes(dims), pair.total_bytes(dims)
    names = _listed([item.tensor for item in pair.stored], details)
    if each is None:
        size = "; bytes depend on symbolic dimensions (see --dim)"
    else:
        size = f", {each:,} B per step"
        if total is not None:
            size += f" × {total // each if each else 0} = {total:,} B ({format_bytes(total)})"
    return f"{pair.forward}: stored for the backward: {names or 'nothing'}{size}"


def _count(names: Sequence[str], noun: str) -> str:
    return f"{len(names)} {noun}" + ("" if len(names) == 1 else "s")


def _listed(names: Sequence[str], details: bool) -> str:
    shown = list(names) if details else list(names[:_SHOWN])
    return ", ".join(shown) + (", ..." if len(shown) < len(names) else "")
