"""Runs one task in a process of its own and reports what came of it.

    python -m memplan.processes.child FOLDERS memplan.runtime.run_child TASK.json ANSWER.json

See :mod:`memplan.runtime.messages` for both.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime as ort

from memplan.runtime.archive import load_arrays, save_arrays
from memplan.runtime.messages import (
    Answer,
    CudaMeasurement,
    Failure,
    LoadTask,
    Measurement,
    MeasureTask,
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
from memplan.runtime.profiled import Feeds, FurtherDraw, Keep, profiled_runs
from memplan.runtime.providers import PROVIDER_NAMES
from memplan.runtime.resident_set import peak_rss, reset_peak_rss
from memplan.runtime.session_options import point_to_weights, session_options
from memplan.runtime.sessions import open_session, run_step
from memplan.runtime.times import run_times


def main(task_path: str, answer_path: str) -> int:
    """Carry out the task and write the answer; failures are answers too."""
    task = decode_task(Path(task_path).read_text())
    if task.request.provider == "cuda" and hasattr(ort, "preload_dlls"):
        # CUDA and cuDNN from NVIDIA's wheels (PyTorch's too), where the loader would not look.
        ort.preload_dlls()
    try:
        answer = carry_out(task)
    except Exception as error:  # reported to the parent, which words it for the user
        answer = Failure(str(error))
    Path(answer_path).write_text(encode(answer))
    return 0


def carry_out(task: Task) -> Answer:
    """Do what the task says, in this process.

    Raises:
        Exception: whatever the runtime raises.
    """
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
# their results die early (measured: a U-Net +16 MB, an unrolled LSTM +13 MB).
_NOT_OFFLINE = ["ConstantFolding"]


def _optimize(task: OptimizeTask) -> Saved:
    """Let the runtime optimize the model offline and save the result."""
    options = session_options("default", task.request.dims)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    _save_to(task.output, options)
    open_session(_model(task, options), task.request, options, [*_NOT_OFFLINE, *task.disabled])
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
        open_session(_model(task, options), task.request, options, disabled)

    load(task.output, {})
    if not task.indices:
        return Saved(ort.__version__)
    from memplan.runtime.loaded_order import outputs_by_index

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
    point_to_weights(options, Path(task.weights))
    return Path(task.model).read_bytes()


def _measure(task: MeasureTask) -> Measurement:
    """Bytes under the profiler, then seconds and the resident set without it."""
    request, feeds = task.request, load_arrays(Path(task.inputs))
    further = [
        FurtherDraw(partial(load_arrays, Path(draw.inputs)), _saving(draw.outputs))
        for draw in task.further
    ]

    def profiled(
        more: Mapping[str, str], keep: Keep, further: Sequence[FurtherDraw] = ()
    ) -> ProfiledRuns:
        options = session_options(request.session, request.dims)
        model = _model(task, options)
        return profiled_runs(model, request, feeds, options, keep, more, further)

    if request.provider != "cuda":
        return _measurement(profiled({}, _saving(task.outputs), further), *_timed_runs(task, feeds))
    from memplan.runtime import child_cuda as cuda

    before = cuda.device_free()
    runs = profiled({}, _saving(task.outputs), further)
    after = cuda.device_free()
    taken = None if before is None or after is None else before - after
    rss_growth, seconds = _timed_runs(task, feeds)

    def make(more: Mapping[str, str]) -> Any:
        options = session_options(request.session, request.dims)
        return open_session(_model(task, options), request, options, more=more)

    if request.is_bound:
        return _measurement(runs, rss_growth, seconds)
    tight = profiled(cuda.TIGHT_ARENA, lambda _: None)
    counted = cuda.counted_peak(make, feeds)
    more = CudaMeasurement(counted, tight.arena_bytes, taken)
    return _measurement(runs, rss_growth, seconds, more)


def _saving(path: str) -> Keep:
    """Saves outputs by their place: ``o0``, ``o1``, ..."""
    return lambda outputs: save_arrays(
        Path(path), {f"o{k}": value for k, value in enumerate(outputs)}
    )


def _measurement(
    runs: ProfiledRuns,
    rss_growth: int,
    seconds: list[float],
    cuda: CudaMeasurement | None = None,
) -> Measurement:
    median = statistics.median(seconds) if seconds else None
    profiled = {field.name: getattr(runs, field.name) for field in fields(runs)}
    return Measurement(**profiled, rss_growth_bytes=rss_growth, seconds_median=median, cuda=cuda)


def _time(task: TimeTask) -> Timed:
    """Seconds per node, run by run."""
    request, feeds = task.request, load_arrays(Path(task.inputs))
    options = session_options(request.session, request.dims)
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "run")
        session = open_session(_model(task, options), request, options)
        for _ in range(task.warm_up + request.runs):
            run_step(session, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    runs = run_times(events)[task.warm_up :]
    if not runs:
        raise RuntimeError("the profiler recorded no complete run")
    return Timed(tuple(runs))


def _timed_runs(task: MeasureTask, feeds: Feeds) -> tuple[int, list[float]]:
    """Without the profiler: growth of the resident set in bytes, and seconds of every run."""
    request = task.request
    if not request.runs:
        return 0, []
    options = session_options(request.session, request.dims)
    session = open_session(_model(task, options), request, options)
    if request.is_bound:
        return _timed_bound(session, request, feeds)
    rss_before = reset_peak_rss()
    run_step(session, feeds)
    rss = max(peak_rss() - rss_before, 0)
    step: Callable[[], Any] = partial(run_step, session, feeds)
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


def _timed_bound(session: Any, request: RunRequest, feeds: Feeds) -> tuple[int, list[float]]:
    """The same with bound state; binding it anew before every run is not counted."""
    from memplan.runtime.bound import bind_step

    growth: list[int] = []
    seconds: list[float] = []
    for _ in range(1 + request.runs):
        binding = bind_step(session, feeds, request)
        rss_before = reset_peak_rss()
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        seconds.append(time.perf_counter() - start)
        growth.append(max(peak_rss() - rss_before, 0))
    return growth[0], seconds[1:]
