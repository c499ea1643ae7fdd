"""Runs one model in a process of its own and reports what it measured.

    python -m memplan.runtime.child REQUEST.json RESULT.json

A process per model keeps measurements apart (arena, peak RSS, random state) and lets the parent
survive anything that the runtime does.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from memplan.runtime.options import PROVIDER_NAMES, session_options
from memplan.runtime.times import run_times

Feeds = dict[str, npt.NDArray[np.generic]]


def main(request_path: str, result_path: str) -> int:
    """Carry out the request and write the result; failures are results too."""
    request = json.loads(Path(request_path).read_text())
    if request.get("provider") == "cuda" and hasattr(ort, "preload_dlls"):
        # CUDA and cuDNN from NVIDIA's wheels (PyTorch's too), where the loader would not look.
        ort.preload_dlls()
    try:
        result = _TASKS[request["task"]](request)
    except Exception as error:  # reported to the parent, which words it for the user
        result = {"error": str(error), "error_type": type(error).__name__}
    Path(result_path).write_text(json.dumps(result))
    return 0


# Folded constants are resident for the whole session; the nodes that make them are cheap, and
# their results die early (measured: sample_models/unet.onnx +16 MB, lstm.onnx +13 MB).
_NOT_OFFLINE = ["ConstantFolding"]


def _session(
    request: dict[str, Any],
    options: Any,
    model: str | bytes,
    disabled: list[str] | None = None,
    more: Mapping[str, str] | None = None,
) -> Any:
    """A session on the provider that was asked for; ``more`` are options of the provider."""
    provider = PROVIDER_NAMES[request["provider"]]
    ort.set_seed(request.get("seed", 0))
    options.intra_op_num_threads = request.get("threads", 0)
    settings = {**request.get("provider_options", {}), **(more or {})}
    session = ort.InferenceSession(
        model, options, providers=[(provider, settings)], disabled_optimizers=disabled
    )
    if session.get_providers()[0] != provider:
        # The runtime falls back to the CPU in silence when a provider fails to start.
        raise RuntimeError(f"{provider} did not start; the session fell back to the CPU")
    # And it makes a new session on the CPU when a run fails.
    session.disable_fallback()
    return session


def _optimize(request: dict[str, Any]) -> dict[str, Any]:
    """Let the runtime optimize the model offline and save the result."""
    options = session_options("default", request["dims"])
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = {
        "basic": levels.ORT_ENABLE_BASIC,
        "extended": levels.ORT_ENABLE_EXTENDED,
    }[request["level"]]
    options.optimized_model_filepath = request["output"]
    _session(request, options, request["model"], _NOT_OFFLINE)
    return {"runtime": ort.__version__}


def _load(request: dict[str, Any]) -> dict[str, Any]:
    """Load the model as a user would and save what the runtime made of it."""
    options = session_options(request["session"], request["dims"])
    options.optimized_model_filepath = request["output"]
    _session(request, options, request["model"])
    return {"runtime": ort.__version__}


def _measure(request: dict[str, Any]) -> dict[str, Any]:
    with np.load(request["inputs"]) as archive:
        feeds: Feeds = dict(archive.items())

    def save(outputs: list[Any]) -> None:
        np.savez(request["outputs"], **{f"o{k}": value for k, value in enumerate(outputs)})

    def profiled(more: Mapping[str, str], keep: Callable[[list[Any]], None]) -> dict[str, Any]:
        options = session_options(request["session"], request["dims"])
        return profiled_run(request, feeds, options, keep, more)

    if request["provider"] != "cuda":
        profile = profiled({}, save)
        timing = _timed_runs(request, feeds)
        return {"runtime": ort.__version__, **profile, **timing}
    from memplan.runtime import child_cuda as cuda

    before = cuda.device_free()
    profile = profiled({}, save)
    after = cuda.device_free()
    taken = None if before is None or after is None else before - after
    timing = _timed_runs(request, feeds)

    def make(more: Mapping[str, str]) -> Any:
        options = session_options(request["session"], request["dims"])
        return _session(request, options, request["model"], more=more)

    more = cuda.measure_cuda(make, lambda extra: profiled(extra, lambda _: None), feeds)
    return {"runtime": ort.__version__, **profile, **timing, **more, "device_taken_bytes": taken}


def _device(request: dict[str, Any]) -> dict[str, Any]:
    """Whether one provider really starts."""
    from memplan.runtime.child_cuda import start_provider

    return start_provider(request["name"])


def _time(request: dict[str, Any]) -> dict[str, Any]:
    """Seconds per node, run by run."""
    with np.load(request["inputs"]) as archive:
        feeds: Feeds = dict(archive.items())
    options = session_options(request["session"], request["dims"])
    options.enable_profiling = True
    # The model is a copy with other node names; its weights may lie beside the original.
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", request["weights"]
    )
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "run")
        session = _session(request, options, Path(request["model"]).read_bytes())
        names = [value.name for value in session.get_outputs()]
        for _ in range(request["warm_up"] + request["runs"]):
            session.run(names, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    runs = run_times(events)[request["warm_up"] :]
    if not runs:
        raise RuntimeError("the profiler recorded no complete run")
    return {"runs": [{"step": run.step, "nodes": run.nodes} for run in runs]}


def profiled_run(
    request: dict[str, Any],
    feeds: Feeds,
    options: Any,
    keep: Callable[[list[Any]], None],
    more: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Two runs under the profiler: memory and place of every node.

    ``keep`` is given the outputs of the first run; they must be gone before the second, or they
    would count as in use there. ``more`` are options of the provider. Figures are of the memory of
    the provider that was asked for: a node that ran elsewhere reports another memory.
    """
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "run")
        session = _session(request, options, request["model"], more=more)
        names = [value.name for value in session.get_outputs()]
        keep(session.run(names, feeds))
        session.run(names, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    nodes = [
        event
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    ]
    runs = [nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]]
    here = PROVIDER_NAMES[request["provider"]]
    own, later = ([e for e in run if e["args"].get("provider", here) == here] for run in runs)
    base = _base(own)
    return {
        "output_names": names,
        "nodes": [_node_event(event) for event in runs[0]],
        "base_bytes": base,
        "measured_dynamic_bytes": _peak(own) - base,
        "second_run_dynamic_bytes": _peak(later) - base,
        "arena_bytes": max((int(e["args"].get("mem_arena_held", 0)) for e in own), default=0),
    }


def _node_event(event: dict[str, Any]) -> dict[str, Any]:
    arguments = event["args"]
    return {
        "name": event["name"].removesuffix("_kernel_time"),
        "op": arguments.get("op_name", ""),
        "index": int(arguments.get("node_index", -1)),
        "provider": arguments.get("provider", ""),
        "bytes": int(arguments.get("mem_bytes_requested_in_use", 0)),
        "microseconds": event.get("dur", 0),
    }


def _base(events: list[dict[str, Any]]) -> int:
    """Bytes in use before the first node of a run: small initializers.

    The runtime keeps initializers of 128 B and more outside the arena that it profiles. Nodes of a
    loop's body are listed before the loop, so the least that was in use before any node counts.
    """
    return min(
        (
            int(event["args"].get("mem_bytes_requested_in_use", 0))
            - int(event["args"].get("mem_requested_in_use_delta", 0))
            for event in events
        ),
        default=0,
    )


def _peak(events: list[dict[str, Any]]) -> int:
    return max((_node_event(event)["bytes"] for event in events), default=0)


def _timed_runs(request: dict[str, Any], feeds: Feeds) -> dict[str, Any]:
    """Median step time and the growth of the resident set, without the profiler."""
    session = _session(
        request, session_options(request["session"], request["dims"]), request["model"]
    )
    names = [value.name for value in session.get_outputs()]
    rss_before = _reset_peak_rss()
    session.run(names, feeds)
    rss = max(_peak_rss() - rss_before, 0)
    step: Callable[[], Any] = partial(session.run, names, feeds)
    if request["provider"] == "cuda":
        from memplan.runtime.child_cuda import resident_step

        step = resident_step(session, feeds)
        step()
    seconds = []
    for _ in range(request["runs"]):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return {
        "seconds_median": statistics.median(seconds) if seconds else None,
        "seconds": seconds,
        "peak_rss_growth_bytes": rss,
    }


def _reset_peak_rss() -> int:
    """Reset the peak of the resident set where the system allows; the present value in bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak_rss()
    return _status("VmRSS")


def _peak_rss() -> int:
    high = _status("VmHWM")
    return high if high else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


_TASKS = {
    "optimize": _optimize,
    "load": _load,
    "measure": _measure,
    "time": _time,
    "device": _device,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
