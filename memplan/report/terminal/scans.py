"""Recurrent layers in text reports: what is stored for the backward part, per step and in total."""

from __future__ import annotations

from collections.abc import Mapping

from memplan.loops.scan_pairs import ScanPair
from memplan.report.terminal.tables import listed
from memplan.units import format_bytes


def scan_line(pair: ScanPair, dims: Mapping[str, int], details: bool) -> str:
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
