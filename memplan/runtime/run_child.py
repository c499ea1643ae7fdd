"""What child processes do for :func:`memplan.runtime.measure.run_child`: one function per question.

``weights`` is the model beside which external data lies, None if it is ``model``. Whatever the
runtime raises is the answer, too.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime as ort

from memplan.runtime.archive import load_arrays
from memplan.runtime.gpu import unused_bytes
from memplan.runtime.messages import (
    CudaMeasurement,
    Draw,
    Measurement,
    RunRequest,
    RunTimes,
    Saved,
    Start,
)
from memplan.runtime.profiled import Feeds, profiled_runs, save_outputs
from memplan.runtime.resident_set import peak_rss, reset_peak_rss
from memplan.runtime.session_options import point_to_weights, save_instead, session_options
from memplan.runtime.sessions import open_session, run_step
from memplan.runtime.times import run_times

# Folded constants are resident for the whole session; the nodes that make them are cheap, and
# their results die early (measured: a U-Net +16 MB, an unrolled LSTM +13 MB).
_NOT_OFFLINE = ("ConstantFolding",)
# Layouts that the processor decides on; without them a saved graph is the same on any machine.
_BY_PROCESSOR = ("NchwcTransformer", "NhwcTransformer")


def start(request: RunRequest) -> tuple[str, Start]:
    """The runtime's version, and how the provider runs a trivial model."""
    from memplan.runtime.child_cuda import start_provider

    return ort.__version__, start_provider(request)


def optimize(
    request: RunRequest, model: Path, output: Path, weights: Path | None, disabled: Sequence[str]
) -> None:
    """Save ``model`` at ``output`` as the runtime optimizes it offline at the level *extended*,
    without the optimizers in ``disabled``."""
    options, source = _ready(request, model, weights)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    save_instead(options, output)
    open_session(source, request, options, [*_NOT_OFFLINE, *disabled])


def load(
    request: RunRequest, model: Path, output: Path, weights: Path | None, portable: bool
) -> Saved:
    """Save ``model`` at ``output`` as a session holds it; of a tuned one, which runs nodes by
    index, also their order. ``portable``: without what depends on the processor."""

    def save(target: Path) -> None:
        options, source = _ready(request, model, weights)
        save_instead(options, target)
        open_session(source, request, options, [*_BY_PROCESSOR] if portable else None)

    save(output)
    if request.session != "tuned":
        return Saved(ort.__version__)
    from memplan.runtime.loaded_order import outputs_by_index

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "loaded.ort"
        save(target)
        return Saved(ort.__version__, outputs_by_index(target))


def _ready(request: RunRequest, model: Path, weights: Path | None) -> tuple[Any, str | bytes]:
    """Options of a session, and the model as it takes it: its path, or its bytes where its weights
    lie elsewhere."""
    options = session_options(request.session, request.dims)
    if weights is None:
        return options, str(model)
    point_to_weights(options, weights.parent)
    return options, model.read_bytes()


def measure(
    request: RunRequest,
    model: Path,
    inputs: Path,
    outputs: Path,
    further: Sequence[Draw],
    weights: Path | None,
) -> Measurement:
    """Bytes under the profiler, then seconds and the resident set without it."""
    feeds = load_arrays(inputs)
    ready = partial(_ready, request, model, weights)

    options, source = ready()
    before = unused_bytes(request.provider)
    runs = profiled_runs(
        source, request, feeds, options, partial(save_outputs, outputs), further=further
    )
    after = unused_bytes(request.provider)
    runs = _with_times(runs, request, ready, feeds)
    if request.provider != "cuda" or request.is_bound:
        return runs
    from memplan.runtime import child_cuda as cuda

    def make(more: Mapping[str, str]) -> Any:
        options, source = ready()
        return open_session(source, request, options, more=more)

    options, source = ready()
    tight = profiled_runs(source, request, feeds, options, more=cuda.TIGHT_ARENA)
    taken = None if before is None or after is None else before - after
    counted = cuda.counted_peak(make, feeds)
    return replace(runs, cuda=CudaMeasurement(counted, tight.arena_bytes, taken))


def time_nodes(
    request: RunRequest, model: Path, inputs: Path, warm_up: int, weights: Path | None
) -> list[RunTimes]:
    """Seconds per node, run by run; ``warm_up`` runs that do not count come first."""
    feeds = load_arrays(inputs)
    options, source = _ready(request, model, weights)
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "run")
        session = open_session(source, request, options)
        for _ in range(warm_up + request.runs):
            run_step(session, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    runs = run_times(events)[warm_up:]
    if not runs:
        raise RuntimeError("the profiler recorded no complete run")
    return runs


def _with_times(
    runs: Measurement,
    request: RunRequest,
    ready: Callable[[], tuple[Any, str | bytes]],
    feeds: Feeds,
) -> Measurement:
    """With what is measured without the profiler: growth of the resident set, and seconds."""
    if not request.runs:
        return runs
    options, source = ready()
    session = open_session(source, request, options)
    growth, seconds = (_timed_bound if request.is_bound else _timed)(session, request, feeds)
    return replace(runs, rss_growth_bytes=growth, seconds_median=statistics.median(seconds))


def _timed(session: Any, request: RunRequest, feeds: Feeds) -> tuple[int, list[float]]:
    """Growth of the resident set in the first run, and seconds of the others."""
    before = reset_peak_rss()
    run_step(session, feeds)
    growth = max(peak_rss() - before, 0)
    step: Callable[[], Any] = partial(run_step, session, feeds)
    if request.provider == "cuda":
        from memplan.runtime.child_cuda import resident_step

        step = resident_step(session, feeds)
        step()
    seconds = []
    for _ in range(request.runs):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return growth, seconds


def _timed_bound(session: Any, request: RunRequest, feeds: Feeds) -> tuple[int, list[float]]:
    """The same with bound state; binding it anew before every run is not counted."""
    from memplan.runtime.bound import bind_step

    growth: list[int] = []
    seconds: list[float] = []
    for _ in range(1 + request.runs):
        binding = bind_step(session, feeds, request)
        before = reset_peak_rss()
        begin = time.perf_counter()
        session.run_with_iobinding(binding)
        seconds.append(time.perf_counter() - begin)
        growth.append(max(peak_rss() - before, 0))
    return growth[0], seconds[1:]
