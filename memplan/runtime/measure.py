"""Start a child process per task, hand it over and read the answer; run models that way.

A process per model keeps measurements apart (arena, peak RSS, random state) and lets the parent
survive anything that the runtime does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from memplan.runtime.failures import explain
from memplan.runtime.messages import (
    Answer,
    Failure,
    Measurement,
    MeasureTask,
    RunRequest,
    Task,
    decode_answer,
    encode,
)

Array = npt.NDArray[np.generic]
AnswerOf = TypeVar("AnswerOf", bound=Answer)


def measure(model: Path, request: RunRequest, inputs: Path, outputs: Path) -> Measurement:
    """Run ``model`` in a child process on the ``inputs`` archive; outputs go to ``outputs``.

    Args:
        model: an ONNX file.
        request: session kind, provider, dims, number of timed runs.
        inputs: an ``.npz`` archive with one array per graph input.
        outputs: where an ``.npz`` archive with the arrays ``o0``, ``o1``, ... is written.

    Raises:
        RuntimeUnavailableError: the provider is missing, or the run failed or was killed.
    """
    task = MeasureTask(str(model), request, str(inputs), str(outputs))
    return run_child(task, Measurement, f"running {model.name}")


def run_child(
    task: Task,
    answer: type[AnswerOf],
    what: str,
    environment: Mapping[str, str] | None = None,
) -> AnswerOf:
    """Hand ``task`` to :mod:`memplan.runtime.child` and return its answer.

    Args:
        task: what to do.
        answer: the type of its answer.
        what: what is being done, for error messages.
        environment: variables that the child gets besides those of this process.

    Raises:
        RuntimeUnavailableError: with the runtime's own reason in one line.
    """
    provider = task.request.provider
    with tempfile.TemporaryDirectory(prefix="memplan-") as folder:
        task_path, answer_path = Path(folder) / "task.json", Path(folder) / "answer.json"
        task_path.write_text(encode(task))
        process = subprocess.run(
            [sys.executable, "-m", "memplan.runtime.child", str(task_path), str(answer_path)],
            capture_output=True,
            text=True,
            env={**_child_environment(), **(environment or {})},
        )
        if not answer_path.exists():
            raise explain(_death(process), what, provider)
        result = decode_answer(answer_path.read_text())
    if isinstance(result, Failure):
        raise explain(result.error, what, provider)
    assert isinstance(result, answer)
    return result


def _child_environment() -> dict[str, str]:
    """This process's variables (``ORT_DISABLE_TELEMETRY`` among them, see
    :mod:`memplan.runtime`), and no import from the current directory: ``-m`` would run a
    ``numpy.py`` that lies beside somebody's model."""
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}


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
