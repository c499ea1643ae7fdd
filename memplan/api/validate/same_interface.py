"""What ``rewrite --wrt`` removed from a graph's interface, for whoever runs both models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memplan.passes.prune import Prune
from memplan.runtime.archive import save_arrays
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate
from memplan.units import counted, listed

_WHICH = ("input", "output")
_SHOWN = 8


def removed_names(metadata: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """Names of the graph ``input``s and ``output``s that were removed, as the file records them."""
    found = {}
    for which in _WHICH:
        names = metadata.get(f"removed_{which}s", [])
        found[which] = tuple(map(str, names)) if isinstance(names, list) else ()
    return found


def removed_notes(removed: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The same as sentences."""
    return [
        f"{counted(len(names), which)} {'was' if len(names) == 1 else 'were'} removed from the "
        f"rewritten model (--wrt), and not {'compared' if which == 'output' else 'fed'}: "
        f"{some_names(names)}"
        for which, names in removed.items()
        if names
    ]


def some_names(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    return listed(names, _SHOWN)


def without_inputs(archive: Path, feeds: Mapping[str, Any], removed: tuple[str, ...]) -> Path:
    """The archive of what the rewritten model is fed: ``archive`` itself where no input was
    removed, else a new one beside it."""
    if not removed:
        return archive
    fewer = archive.with_name(f"rewritten_{archive.name}")
    save_arrays(fewer, {name: value for name, value in feeds.items() if name not in removed})
    return fewer


def removal_findings(
    before: OpenModel, removed: Mapping[str, tuple[str, ...]], wrt: tuple[str, ...]
) -> list[str]:
    """Removed inputs and outputs that nobody asked for: the file's own word for them is no excuse.

    Args:
        before: the original.
        removed: what the rewritten file records.
        wrt: the globs that ``rewrite`` was given, by the user's account.

    Raises:
        UsageError: a glob matches nothing.
    """
    asked: dict[str, frozenset[str]] = {which: frozenset() for which in _WHICH}
    if wrt:
        timeline = simulate(before.graph, session_kind("tuned"))
        left = Prune(wrt).apply(before, timeline).model.prepared.proto.graph
        for which in _WHICH:
            had = {v.name for v in getattr(before.prepared.proto.graph, which)}
            asked[which] = frozenset(had - {v.name for v in getattr(left, which)})
    found = []
    for which, names in removed.items():
        unasked = [name for name in names if name not in asked[which]]
        if unasked:
            hint = (
                "--wrt does not remove these"
                if wrt
                else "if that was wanted, give --wrt GLOB as to rewrite"
            )
            found.append(
                f"missing: {counted(len(unasked), which)} of the original ({some_names(unasked)}); "
                f"{hint}"
            )
    return found


_WRITTEN_BY_REWRITE = ("budget_bytes", "predicted_peak_bytes")


def swapped(original: Mapping[str, object], rewritten: Mapping[str, object]) -> list[str]:
    """Whether the arguments seem to have changed places, by what the files record."""
    if any(k in rewritten for k in _WRITTEN_BY_REWRITE):
        return []
    if not any(k in original for k in _WRITTEN_BY_REWRITE):
        return []
    return [
        "the first file was written by rewrite and the second was not: the arguments seem to have "
        "changed places (ORIGINAL comes first)"
    ]
