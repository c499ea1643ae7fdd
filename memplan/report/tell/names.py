"""What reports of several commands say of names: how many, the first, and what they are for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from memplan import units
from memplan.ir.graph import Phase
from memplan.units import counted

_NAMES_SHOWN = 5


def listed(names: Sequence[str], details: bool = False, most: int = _NAMES_SHOWN) -> str:
    """``a, b and 3 more``; all of them with ``details``."""
    return units.listed(names, len(names) if details else most)


def named(what: str, noun: str, names: Sequence[str], details: bool) -> list[str]:
    """``2 buffers renewed: a, b`` for ``{} renewed`` and ``buffer``; nothing where none is."""
    return [f"{what.format(counted(len(names), noun))}: {listed(names, details)}"] if names else []


def nodes_by_phase(nodes: Mapping[Phase, int]) -> str:
    """``5 forward, 7 backward nodes``."""
    counts = [(count, phase) for phase, count in nodes.items() if count]
    noun = "node" if sum(count for count, _ in counts) == 1 else "nodes"
    return ", ".join(f"{count:,} {phase}" for count, phase in counts) + f" {noun}"


def feed_back(new_values: Mapping[str, str]) -> Iterator[str]:
    """Which outputs are inputs of the next step; nothing where none is."""
    for new, old in list(new_values.items())[:1]:
        yield (
            f"for the next step: feed {counted(len(new_values), 'output')} back, "
            f"'{new}' as '{old}' and so on (memplan.new_values in the file's metadata has all)"
        )
