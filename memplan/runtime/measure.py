"""Start a child process per model and read what it measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.runtime.failures import explain

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One node of the first run: where it stood, who ran it, bytes in use when it ended."""

    name: str
    op: str
    index: int
    provider: str
    nbytes: int
    microseconds: int


@dataclass(frozen=True, slots=True)
class CudaMeasurement:
    """What is measured on CUDA only.

    ``counted_peak_bytes``: an allocator of our own saw so many bytes asked for at once, kernel
    workspace, initializers and copied inputs included; ``counted_base_bytes`` before the run.
    ``tight_arena_bytes``: what the arena held with ``arena_extend_strategy=kSameAsRequested``.
    ``device_taken_bytes``: how far the device's free memory fell, context and libraries included;
    None where the driver does not say.
    """

    counted_base_bytes: int
    counted_peak_bytes: int
    tight_arena_bytes: int
    device_taken_bytes: int | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one model did in one kind of session.

    ``dynamic_bytes`` is the peak of requested bytes in use, less what was in use before the run
    (``base_bytes``: small initializers); ``arena_bytes`` what the arena held; ``rss_growth_bytes``
    how far the resident set of the process grew. ``seconds`` are step times after the first run.
    ``cuda`` is there for runs on CUDA, where all of these are bytes on the device.
    """

    runtime: str
    base_bytes: int
    dynamic_bytes: int
    second_run_dynamic_bytes: int
    arena_bytes: int
    rss_growth_bytes: int
    seconds_median: float | None
    seconds: tuple[float, ...]
    nodes: tuple[NodeRun, ...]
    output_names: tuple[str, ...]
    cuda: CudaMeasurement | None = None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """How to run: session kind, provider and its options, symbolic dims, timed runs, seed."""

    session: str
    provider: str
    dims: Mapping[str, int]
    runs: int = 5
    seed: int = 0
    threads: int = 0
    provider_options: Mapping[str, str] = field(default_factory=dict)


def measure(model: Path, request: RunRequest, inputs: Path, outputs: Path) -> Measurement:
    """Run ``model`` in a child process on the ``inputs`` archive; outputs go to ``outputs``.

    Raises:
        RuntimeUnavailableError: the provider is missing, or the run failed or was killed.
    """
    result = run_child(
        {
            "task": "measure",
            "model": str(model),
            "session": request.session,
            "provider": request.provider,
            "dims": dict(request.dims),
            "runs": request.runs,
            "seed": request.seed,
            "threads": request.threads,
            "provider_options": dict(request.provider_options),
            "inputs": str(inputs),
            "outputs": str(outputs),
        },
        f"running {model.name}",
    )
    return Measurement(
        runtime=result["runtime"],
        base_bytes=result["base_bytes"],
        dynamic_bytes=result["measured_dynamic_bytes"],
        second_run_dynamic_bytes=result["second_run_dynamic_bytes"],
        arena_bytes=result["arena_bytes"],
        rss_growth_bytes=result["peak_rss_growth_bytes"],
        seconds_median=result["seconds_median"],
        seconds=tuple(result["seconds"]),
        nodes=tuple(
            NodeRun(n["name"], n["op"], n["index"], n["provider"], n["bytes"], n["microseconds"])
            for n in result["nodes"]
        ),
        output_names=tuple(result["output_names"]),
        cuda=_cuda(result) if "counted_peak_bytes" in result else None,
    )


def _cuda(result: Mapping[str, Any]) -> CudaMeasurement:
    return CudaMeasurement(
        result["counted_base_bytes"],
        result["counted_peak_bytes"],
        result["tight_arena_bytes"],
        result["device_taken_bytes"],
    )


def run_child(
    request: Mapping[str, Any], what: str, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Hand ``request`` to :mod:`memplan.runtime.child` and return its result.

    Args:
        request: the task, and what it needs.
        what: what is being done, for error messages.
        environment: variables that the child gets besides those of this process.

    Raises:
        RuntimeUnavailableError: with the runtime's own reason in one line.
    """
    with tempfile.TemporaryDirectory(prefix="memplan-") as folder:
        request_path, result_path = Path(folder) / "request.json", Path(folder) / "result.json"
        request_path.write_text(json.dumps(request))
        process = subprocess.run(
            [sys.executable, "-m", "memplan.runtime.child", str(request_path), str(result_path)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore", **(environment or {})},
        )
        if not result_path.exists():
            raise explain(_death(process), what, str(request.get("provider", "")))
        result: dict[str, Any] = json.loads(result_path.read_text())
    if "error" in result:
        raise explain(result["error"], what, str(request.get("provider", "")))
    return result


def _death(process: subprocess.CompletedProcess[str]) -> str:
    if process.returncode == -signal.SIGKILL:
        return "the process was killed, most likely because the machine is out of memory"
    if process.returncode < 0:
        return f"the process died with {signal.Signals(-process.returncode).name}"
    lines = process.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"


@contextmanager
def saved_inputs(feeds: Mapping[str, Array]) -> Iterator[tuple[Path, Path]]:
    """A temporary folder with ``feeds`` saved in it: (folder, archive)."""
    with tempfile.TemporaryDirectory(prefix="memplan-") as name:
        folder = Path(name)
        archive = folder / "inputs.npz"
        np.savez(archive, **feeds)  # type: ignore[arg-type]
        yield folder, archive
