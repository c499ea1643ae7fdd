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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from memplan.errors import RuntimeUnavailableError
from memplan.runtime.archive import save_arrays
from memplan.runtime.failures import explain
from memplan.runtime.messages import (
    Answer,
    Draw,
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


def measure(
    model: Path,
    request: RunRequest,
    inputs: Path,
    outputs: Path,
    further: Sequence[Draw] = (),
    time_limit: float | None = None,
) -> Measurement:
    """Run ``model`` in a child process on the ``inputs`` archive; outputs go to ``outputs``.

    Args:
        model: an ONNX file.
        request: session kind, provider, dims, number of timed runs.
        inputs: an ``.npz`` archive with one array per graph input.
        outputs: where an ``.npz`` archive with the arrays ``o0``, ``o1``, ... is written.
        further: draws to run on once each, under the profiler too.
        time_limit: see :func:`run_child`.

    Raises:
        RuntimeUnavailableError: the provider is missing, or the run failed or was killed.
    """
    task = MeasureTask(str(model), request, str(inputs), str(outputs), tuple(further))
    return run_child(task, Measurement, f"running {model.name}", time_limit=time_limit)


def run_child(
    task: Task,
    answer: type[AnswerOf],
    what: str,
    environment: Mapping[str, str] | None = None,
    time_limit: float | None = None,
) -> AnswerOf:
    """Hand ``task`` to :mod:`memplan.runtime.child` and return its answer.

    Args:
        task: what to do.
        answer: the type of its answer.
        what: what is being done, for error messages.
        environment: variables that the child gets besides those of this process.
        time_limit: seconds after which the child is killed; None: never.

    Raises:
        RuntimeUnavailableError: with the runtime's own reason in one line.
    """
    provider = task.request.provider
    with tempfile.TemporaryDirectory(prefix="memplan-") as name:
        folder = Path(name)
        task_path, answer_path = folder / "task.json", folder / "answer.json"
        task_path.write_text(encode(task))
        # What the child leaves behind when it is killed goes with the folder.
        variables = {**_child_environment(), "TMPDIR": name, **(environment or {})}
        death = _run(
            [sys.executable, "-m", "memplan.runtime.child", str(task_path), str(answer_path)],
            variables,
            folder / "stderr.txt",
            time_limit,
        )
        if death is None:
            raise RuntimeUnavailableError(
                f"{what} took more than {time_limit:g} s and was stopped",
                "give it longer with --time-limit, or look for a Loop that does not end",
            )
        if not answer_path.exists():
            raise explain(death, what, provider)
        result = decode_answer(answer_path.read_text())
    if isinstance(result, Failure):
        raise explain(result.error, what, provider)
    assert isinstance(result, answer)
    return result


def _run(
    command: Sequence[str], variables: Mapping[str, str], errors: Path, time_limit: float | None
) -> str | None:
    """Run a child to its end: how it died, if it did not answer; None if it took too long.

    The child ends when its stdin does: this process may be killed. Whatever ends the waiting here
    kills the child.
    """
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=dict(variables),
        )
        try:
            code = process.wait(time_limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
    return _death(code, errors.read_text(errors="replace"))


def _child_environment() -> dict[str, str]:
    """This process's variables (``ORT_DISABLE_TELEMETRY`` among them, see
    :mod:`memplan.runtime`), and no import from the current directory: ``-m`` would run a
    ``numpy.py`` that lies beside somebody's model."""
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}


def _death(code: int, errors: str) -> str:
    """How a process that ended with ``code`` died, in a line."""
    if code == -signal.SIGKILL:
        return "the process was killed, most likely because the machine is out of memory"
    if code < 0:
        return f"the process died with {signal.Signals(-code).name}"
    lines = errors.strip().splitlines()
    return lines[-1] if lines else f"exit code {code}"


@contextmanager
def saved_inputs(feeds: Mapping[str, Array]) -> Iterator[tuple[Path, Path]]:
    """A temporary folder with ``feeds`` saved in it: (folder, archive)."""
    with tempfile.TemporaryDirectory(prefix="memplan-") as name:
        folder = Path(name)
        archive = folder / "inputs.npz"
        save_arrays(archive, feeds)
        yield folder, archive
