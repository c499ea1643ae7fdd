"""Entries of a lock, and what they are compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.check.current import Current, Family
from memplan.api.check.lock import (
    LockEntry,
    TopTensors,
)

MIB = 1024**2


def an_entry(**changes: Any) -> LockEntry:
    entry = LockEntry(
        path="models/mlp.onnx",
        fingerprint="f" * 32,
        accounting=ACCOUNTING_VERSION,
        session="tuned",
        provider="cpu",
        dims={"N": 32},
        peak_bytes=100 * MIB,
        peak_with_workspace_bytes=101 * MIB,
        peak_node="mul_5",
        classes={"weights": 20 * MIB, "stash": 80 * MIB},
        top=(TopTensors("act*", "stash", 8, 10 * MIB),),
    )
    return replace(entry, **changes)


def today(entry: LockEntry, families: tuple[Family, ...] | None = None, **changes: Any) -> Current:
    """The model of ``entry`` as it is now, with ``changes`` to what the lock has."""
    now = replace(entry, **changes)
    if families is None:
        families = tuple(Family(tensors, "MatMul mm (backward)") for tensors in now.top)
    return Current(now, step=3, steps=9, phase="backward", floor_bytes=MIB, families=families)
