"""Starts the PyTorch peers, each in a process of its own, where torch is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.gpu.bench import Bench

Rows = Iterator[tuple[dict[str, Any], Callable[[], Mapping[str, Any]]]]
_MODES = (
    ("eager", None),
    ("checkpoint", None),
    ("compile", 0.7),
    ("compile", 0.5),
    ("compile", 0.35),
)
_TIMEOUT = 300
# On the CPU: give memory back at once, or the resident set shows no peak.
_TRIM = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def peer_rows(bench: Bench, batches: Mapping[str, int]) -> Rows:
    """Every network that has a batch, in every mode; nothing but a note without torch."""
    if find_spec("torch") is None:
        bench.record["notes"].append("torch is not installed: no peers")
        return
    # Compiling takes long: what needs none comes first.
    for mode, budget in _MODES:
        for net in bench.options.net:
            if net in batches:
                key = {"kind": "peer", "net": net, "batch": batches[net], "mode": mode}
                key |= {"activation_memory_budget": budget} if budget else {}
                yield key, lambda n=net, m=mode, b=budget: _run(bench, n, batches[n], m, b)


def _run(bench: Bench, net: str, batch: int, mode: str, budget: float | None) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu.peers",
        "--net",
        net,
        "--batch",
        str(batch),
        "--size",
        bench.options.size,
        "--mode",
        mode,
        "--device",
        bench.provider,
        "--steps",
        str(bench.options.runs),
        "--budget",
        str(budget or 1.0),
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            env={**os.environ, **_TRIM},
            cwd=Path(__file__).resolve().parents[2],
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {_TIMEOUT} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": reason[:300]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found
