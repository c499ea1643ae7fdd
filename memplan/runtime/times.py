"""Seconds per node: several runs under the profiler, and one figure per node from them."""

from __future__ import annotations

import platform
import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memplan.providers import PROVIDERS
from memplan.runtime.gpu import find_gpu
from memplan.runtime.measure import run_child
from memplan.runtime.messages import RunRequest, RunTimes

WARM_UP_RUNS = 2
"""Runs that are thrown away: the first allocates, and touches every page for the first time."""
_FAR = 3.0
_QUIET = 0.05
# The profiler cuts durations to whole microseconds: half of one is lost on average.
_CUT = 0.5e-6
_KERNEL = "_kernel_time"

Event = Mapping[str, Any]
"""Of the profiler."""


def time_nodes(
    model: Path,
    request: RunRequest,
    inputs: Path,
    weights: Path | None = None,
    time_limit: float | None = None,
) -> list[RunTimes]:
    """Run ``model`` under the profiler in a child process, ``request.runs`` times after warm-up.

    Args:
        model: an ONNX file; nodes are told by name.
        request: how to run it.
        inputs: an ``.npz`` archive with one array per graph input.
        weights: the model beside which external data lies, if not ``model``.
        time_limit: seconds for all runs together.

    Raises:
        RuntimeUnavailableError: the provider is missing, or the run failed, was killed or took too
            long.
    """
    found: list[RunTimes] = run_child(
        "time_nodes",
        request,
        f"profiling {model.name}",
        *(model, inputs, WARM_UP_RUNS, weights),
        environment=PROVIDERS[request.provider].profiling,
        time_limit=time_limit,
    )
    return found


def split_runs(events: Sequence[Event]) -> list[tuple[Event, list[Event]]]:
    """The profiler's events of every run that ended: of the run, and of its nodes, in the
    profiler's order."""
    runs = [event for event in events if event.get("name") == "model_run"]
    runs.sort(key=lambda event: event["ts"])
    ends = [event["ts"] + event["dur"] for event in runs]
    nodes: list[list[Event]] = [[] for _ in runs]
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            place = bisect_left(ends, event["ts"])
            if place < len(ends):
                nodes[place].append(event)
    return list(zip(runs, nodes, strict=True))


def node_name(event: Event) -> str:
    """The node that an event of :func:`split_runs` is of."""
    return str(event["name"]).removesuffix(_KERNEL)


def run_times(events: Sequence[Event]) -> list[RunTimes]:
    """The profiler's events, run by run. A node that ran several times counts with their sum."""
    found = []
    for run, nodes in split_runs(events):
        seconds: dict[str, float] = {}
        for event in nodes:
            name = node_name(event)
            seconds[name] = seconds.get(name, 0.0) + event["dur"] * 1e-6 + _CUT
        found.append(RunTimes(run["dur"] * 1e-6, seconds))
    return found


def steady(runs: Sequence[RunTimes]) -> list[RunTimes]:
    """The runs that were not disturbed.

    A run is dropped as a whole when the sum of its nodes is further from the median of all runs
    than 3 times the median distance (MAD), and by more than 5%: whatever slows a machine down, it
    slows many nodes at once, and on a quiet machine the MAD alone would drop good runs.
    """
    if not runs:
        return []
    middle = statistics.median(run.total for run in runs)
    spread = statistics.median(abs(run.total - middle) for run in runs)
    limit = max(_FAR * spread, _QUIET * middle)
    return [run for run in runs if abs(run.total - middle) <= limit]


def medians(runs: Sequence[RunTimes]) -> dict[str, float]:
    """Median seconds of every node over the runs in which it ran."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for name, seconds in run.nodes.items():
            found.setdefault(name, []).append(seconds)
    return {name: statistics.median(values) for name, values in found.items()}


def device_name(provider: str) -> str:
    """The processor or graphics card as its maker calls it; empty when nobody says."""
    if provider == "cuda":
        gpu = find_gpu()
        return "" if isinstance(gpu, str) else gpu.name
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
