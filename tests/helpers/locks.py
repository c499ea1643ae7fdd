"""Entries of a lock, and what is found of models that are held against them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from memplan.api.analysis import ACCOUNTING_VERSION
from memplan.api.check.finding import Finding, Target, hold
from memplan.api.check.peak import Peak, TopTensors

MIB = 1024**2
LOCK = Path("memplan.lock")


def an_entry(**changes: Any) -> Peak:
    entry = Peak(
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


def today(entry: Peak, **changes: Any) -> Peak:
    """The model of ``entry`` as it is now, with ``changes`` to what the lock has."""
    now = replace(entry, step=3, steps=9, phase="backward", floor_bytes=MIB, **changes)
    return replace(now, top=tuple(replace(t, held_by="MatMul mm (backward)") for t in now.top))


def held(locked: Peak | None, now: Peak, line: int = 9, **more: Any) -> Finding:
    """What is found of ``now``; ``more`` is of :func:`hold`."""
    entry = replace(locked, line=line) if locked is not None else None
    return hold(Target(now.path, Path(now.path), LOCK, entry, now.binding), now, **more)
