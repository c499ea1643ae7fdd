"""Runs one task in a process of its own and reports what came of it.

    python -m memplan.processes FOLDERS memplan.runtime.child TASK.json ANSWER.json

See :mod:`memplan.runtime.messages` for both.
"""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from memplan.runtime.messages import (
    Answer,
    CudaMeasurement,
    Failure,
    LoadTask,
    Measurement,
    MeasureTask,
    NodeRun,
    OptimizeTask,
    ProfiledRuns,
    RunRequest,
    Saved,
    StartTask,
    Task,
    Timed,
    TimeTask,
    decode_task,
    encode,
)
from memplan.runtime.options import session_options
from memplan.runtime.providers import PROVIDER_NAMES
from memplan.runtime.times import run_times

Feeds = dict[str, npt.NDArray[np.generic]]


def main(task_path: str, answer_path: str) -> int:
    """Carry out the task and write the answer; failures are answers too."""
    task = decode_task(Path(task_path).read_text())
    if task.request.provider == "cuda" and hasattr(ort, "preload_dlls"):
        # CUDA and cuDNN from NVIDIA's wheels (PyTorch's too), where the loader would not look.
        ort.preload_dlls()
    try:
        answer = _done(task)
    except Exception as error:  # reported to the parent, which words it for the user
        answer = Failure(str(error))
    Path(answer_path).write_text(encode(answer))
    return 0


def _done(task: Task) -> Answer:
    match task:
        case MeasureTask():
            return _measure(task)
        case TimeTask():
            return _time(task)
        case OptimizeTask():
            return _optimize(task)
        case LoadTask():
            return _load(task)
        case StartTask():
            from memplan.runtime.child_cuda import start_provider

            return start_provider(PROVIDER_NAMES[task.request.provider])


# Folded constants are resident for the whole session; the nodes that make them are cheap, and
# their results die early (measured: sample_models/unet.onnx +16 MB, lstm.onnx +13 MB).
_NOT_OFFLINE = ["ConstantFolding"]


def _session(
    model: str | bytes,
    request: RunRequest,
    options: Any,
    disabled: list[str] | None = None,
    more: Mapping[str, str] | None = None,
) -> Any:
    """A session on the provider that was asked for; ``more`` are options of the provider."""
    provider = PROVIDER_NAMES[request.provider]
    ort.set_seed(request.seed)
    options.intra_op_num_threads = request.threads
    settings = {**request.provider_options, **(more or {})}
    session = ort.InferenceSession(
        model, options, providers=[(provider, settings)], disabled_optimizers=disabled
    )
    if session.get_providers()[0] != provider:
        # The runtime falls back to the CPU in silence when a provider fails to start.
        raise RuntimeError(f"{provider} did not start; the session fell back to the CPU")
    # And it makes a new session on the CPU when a run fails.
    session.disable_fallback()
    return session


def _optimize(task: OptimizeTask) -> Saved:
    """Let the runtime optimize the model offline and save the result."""
    options = session_options("default", task.request.dims)
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = {
        "basic": levels.ORT_ENABLE_BASIC,
        "extended": levels.ORT_ENABLE_EXTENDED,
    }[task.level]
    _save_to(task.output, options)
    _session(_model(task, options), task.request, options, _NOT_OFFLINE)
    return Saved(ort.__version__)


# Layouts that the processor decides on; without them a saved graph is the same on any machine.
_BY_PROCESSOR = ["NchwcTransformer", "NhwcTransformer"]


def _load(task: LoadTask) -> Saved:
    """Load the model as a user would and save what the runtime made of it."""

    def load(target: str, settings: Mapping[str, str]) -> None:
        options = session_options(task.request.session, task.request.dims)
        _save_to(target, options)
        for key, value in settings.items():
            options.add_session_config_entry(key, value)
        disabled = _BY_PROCESSOR if task.portable else None
        _session(_model(task, options), task.request, options, disabled)

    load(task.output, {})
    if not task.indices:
        return Saved(ort.__version__)
    from memplan.runtime.node_indices import outputs_by_index

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "loaded.ort"
        load(str(target), {"session.save_model_format": "ORT"})
        return Saved(ort.__version__, outputs_by_index(target))


def _save_to(output: str, options: Any) -> None:
    """The session is made to be saved, not to be run. Weights in other files stay where they are,
    and are not even read: packing them for the kernels would read all (measured: 2.5 GiB of
    weights in 3 ms and 62 MB, instead of 14 s and 5 GB)."""
    options.optimized_model_filepath = output
    options.add_session_config_entry("session.disable_prepacking", "1")


def _model(task: MeasureTask | TimeTask | OptimizeTask | LoadTask, options: Any) -> str | bytes:
    """The model as a session takes it: its path, or its bytes where its weights lie elsewhere."""
    if task.weights is None:
        return task.model
    name = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(name, task.weights)
    return Path(task.model).read_bytes()


def _arrays(path: str) -> Feeds:
    with np.load(path) as archive:
        return dict(archive.items())


def _measure(task: MeasureTask) -> Measurement:
    """Bytes under the profiler, then seconds and the resident set without it."""
    request, feeds = task.request, _arrays(task.inputs)

    def save(outputs: list[Any]) -> None:
        np.savez(task.outputs, **{f"o{k}": value for k, value in enumerate(outputs)})

    def profiled(more: Mapping[str, str], keep: Callable[[list[Any]], None]) -> ProfiledRuns:
        options = session_options(request.session, request.dims)
        return profiled_runs(_model(task, options), request, feeds, options, keep, more)

    if request.provider != "cuda":
        return _measurement(profiled({}, save), *_timed_runs(task, feeds))
    from memplan.runtime import child_cuda as cuda

    before = cuda.device_free()
    runs = profiled({}, save)
    after = cuda.device_free()
    taken = None if before is None or after is None else before - after
    rss_growth, seconds = _timed_runs(task, feeds)

    def make(more: Mapping[str, str]) -> Any:
        options = session_options(request.session, request.dims)
        return _session(_model(task, options), request, options, more=more)

    tight = profiled(cuda.TIGHT_ARENA, lambda _: None)
    counted = cuda.counted_peak(make, feeds)
    more = CudaMeasurement(counted, tight.arena_bytes, taken)
    return _measurement(runs, rss_growth, seconds, more)


def _measurement(
    runs: ProfiledRuns,
    rss_growth: int,
    seconds: list[float],
    cuda: CudaMeasurement | None = None,
) -> Measurement:
    return Measurement(
        output_names=runs.output_names,
        nodes=runs.nodes,
        base_bytes=runs.base_bytes,
        dynamic_bytes=runs.dynamic_bytes,
        second_run_dynamic_bytes=runs.second_run_dynamic_bytes,
        arena_bytes=runs.arena_bytes,
        rss_growth_bytes=rss_growth,
        seconds_median=statistics.median(seconds) if seconds else None,
        cuda=cuda,
    )


def _time(task: TimeTask) -> Timed:
    """Seconds per node, run by run."""
    request, feeds = task.request, _arrays(task.inputs)
    options = session_options(request.session, request.dims)
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "run")
        session = _session(_model(task, options), request, options)
        names = [value.name for value in session.get_outputs()]
        for _ in range(task.warm_up + request.runs):
            session.run(names, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    runs = run_times(events)[task.warm_up :]
    if not runs:
        raise RuntimeError("the profiler recorded no complete run")
    return Timed(tuple(runs))


def profiled_runs(
    model: str | bytes,
    request: RunRequest,
    feeds: Feeds,
    options: Any,
    keep: Callable[[list[Any]], None] = lambda outputs: None,
    more: Mapping[str, str] | None = None,
) -> ProfiledRuns:
    """Two runs under the profiler: memory and place of every node.

    Args:
        model: a path, or a model as bytes.
        request: provider and its options, seed, threads.
        feeds: one array per graph input.
        options: ``onnxruntime.SessionOptions``, which get a profile file.
        keep: is given the outputs of the first run; they must be gone before the second, or they
            would count as in use there.
        more: further options of the provider.

    Figures are of the memory of the provider that was asked for: a node that ran elsewhere reports
    another memory.
    """
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "run")
        session = _session(model, request, options, more=more)
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
    here = PROVIDER_NAMES[request.provider]
    own, later = ([e for e in run if e["args"].get("provider", here) == here] for run in runs)
    base = _base(own)
    return ProfiledRuns(
        output_names=tuple(names),
        nodes=tuple(_node_run(event) for event in runs[0]),
        base_bytes=base,
        dynamic_bytes=_peak(own) - base,
        second_run_dynamic_bytes=_peak(later) - base,
        arena_bytes=max((int(e["args"].get("mem_arena_held", 0)) for e in own), default=0),
    )


def _node_run(event: dict[str, Any]) -> NodeRun:
    arguments = event["args"]
    return NodeRun(
        name=event["name"].removesuffix("_kernel_time"),
        op=arguments.get("op_name", ""),
        provider=arguments.get("provider", ""),
        nbytes=_in_use(event),
    )


def _in_use(event: dict[str, Any]) -> int:
    """Requested bytes in use when a node ended."""
    return int(event["args"].get("mem_bytes_requested_in_use", 0))


def _base(events: list[dict[str, Any]]) -> int:
    """Bytes in use before the first node of a run: small initializers.

    The runtime keeps initializers of 128 B and more outside the arena that it profiles. Nodes of a
    loop's body are listed before the loop, so the least that was in use before any node counts.
    """
    return min(
        (_in_use(e) - int(e["args"].get("mem_requested_in_use_delta", 0)) for e in events),
        default=0,
    )


def _peak(events: list[dict[str, Any]]) -> int:
    return max(map(_in_use, events), default=0)


def _timed_runs(task: MeasureTask, feeds: Feeds) -> tuple[int, list[float]]:
    """Without the profiler: growth of the resident set in bytes, and seconds of every run."""
    request = task.request
    options = session_options(request.session, request.dims)
    session = _session(_model(task, options), request, options)
    names = [value.name for value in session.get_outputs()]
    rss_before = _reset_peak_rss()
    session.run(names, feeds)
    rss = max(_peak_rss() - rss_before, 0)
    step: Callable[[], Any] = partial(session.run, names, feeds)
    if request.provider == "cuda":
        from memplan.runtime.child_cuda import resident_step

        step = resident_step(session, feeds)
        step()
    seconds = []
    for _ in range(request.runs):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return rss, seconds


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
