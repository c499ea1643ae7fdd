"""What ``rewrite --wrt`` removed from a graph's interface, for whoever runs both models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
        f"{len(names)} {which}s were removed from the rewritten model (--wrt), so they are not "
        f"{'compared' if which == 'output' else 'fed'}: {some_names(names)}"
        for which, names in removed.items()
        if names
    ]


def some_names(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def without_inputs(archive: Path, feeds: Mapping[str, Any], removed: tuple[str, ...]) -> Path:
    """The archive of what the rewritten model is fed: ``archive`` itself where no input was
    removed, else a new one beside it."""
    if not removed:
        return archive
    fewer = archive.with_name("rewritten_inputs.npz")
    np.savez(fewer, **{name: value for name, value in feeds.items() if name not in removed})
    return fewer
