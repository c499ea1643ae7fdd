"""Recurrent layers in text reports: what is stored for the backward part, per step and in total."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from memplan.passes.loops.loop_layers import ScanLayer
from memplan.report.terminal.tables import listed
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.api.analysis import Analysis


def scan_line(pair: ScanLayer, dims: Mapping[str, int], details: bool) -> str:
    """One layer; ``details`` lists every tensor."""
    each, total = pair.step_bytes(dims), pair.total_bytes(dims)
    names = [item.tensor for item in pair.stored]
    if each is None:
        size = "; bytes depend on symbolic dimensions (see --dim)"
    else:
        size = f", {each:,} B per step"
        if total is not None:
            steps = total // each if each else 0
            size += f" × {steps} = {total:,} B ({format_bytes(total)})"
    return f"{pair.forward}: stored for backward: {listed(names, details) or 'nothing'}{size}"


def untabled_scans(analysis: Analysis) -> list[ScanLayer]:
    """The layers that no table of pairs tells about: those in bodies, or of which nothing that
    their forward Scan computes is read."""
    tabled = {pair.forward.node.name for pair in analysis.recurrent}
    return [layer for layer in analysis.scans if layer.forward not in tabled]
