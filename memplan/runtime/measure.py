"""Start a child process per task, hand it over and read the answer; run models that way.

A process per model keeps measurements apart (arena, peak RSS, random state) and lets the parent
survive anything that the runtime does.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from memplan.errors import RuntimeUnavailableError, UsageError
from memplan.processes.child import started
from memplan.processes.scratch import scratch_folder
from memplan.runtime.archive import save_arrays
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
from memplan.runtime.run_failures import explain

Array = npt.NDArray[np.generic]
AnswerOf = TypeVar("AnswerOf", bound=Answer)
_CHILD = "memplan.runtime.run_child"
_LONGEST_SECONDS = 10**6  # what the system can wait for ends at 2**31 milliseconds


def check_time_limit(seconds: float) -> None:
    """Refuse what no run can be held to.

    Raises:
        UsageError: ``seconds`` is not a finite number above 0.
    """
    if not (seconds > 0 and math.isfinite(seconds)):
        raise UsageError(f"a time limit of {seconds:g} s: it must be a finite number above 0")


def measure(
    model: Path,
    request: RunRequest,
    inputs: Path,
    outputs: Path,
    further: Sequence[Draw] = (),
    time_limit: float | None = None,
    weights: Path | None = None,
) -> Measurement:
    """Run ``model`` in a child process on the ``inputs`` archive; outputs go to ``outputs``.

    Args:
        model: an ONNX file.
        request: session kind, provider, dims, number of timed runs.
        inputs: an ``.npz`` archive with one array per graph input.
        outputs: where an ``.npz`` archive with the arrays ``o0``, ``o1``, ... is written.
        further: draws to run on once each, under the profiler too.
        time_limit: see :func:`run_child`.
        weights: the model beside which external data lies, if not ``model``.

    Raises:
        RuntimeUnavailableError: the provider is missing, or the run failed or was killed.
    """
    place = None if weights is None else str(weights.parent.resolve())
    task = MeasureTask(str(model), request, str(inputs), str(outputs), tuple(further), place)
    return run_child(task, Measurement, f"running {model.name}", time_limit=time_limit)


def run_child(
    task: Task,
    answer: type[AnswerOf],
    what: str,
    environment: Mapping[str, str] | None = None,
    time_limit: float | None = None,
) -> AnswerOf:
    """Hand ``task`` to :mod:`memplan.runtime.run_child` and return its answer.

    Args:
        task: what to do.
        answer: the type of its answer.
        what: what is being done, for error messages.
        environment: variables that the child gets besides those of this process.
        time_limit: seconds after which the child is killed, up to some days; None: never.

    The child ends when this process does, see :mod:`memplan.processes.child`.

    Raises:
        RuntimeUnavailableError: with the runtime's own reason in one line.
    """
    provider = task.request.provider
    with scratch_folder() as folder:
        task_path, answer_path = folder / "task.json", folder / "answer.json"
        task_path.write_text(encode(task))
        # What the child leaves behind when it is killed goes with the folder.
        variables = {"TMPDIR": str(folder), **(environment or {})}
        try:
            death = _run((str(task_path), str(answer_path)), variables, time_limit)
        except OSError as error:
            raise RuntimeUnavailableError(f"{what}: no process started: {error}") from None
        if death is None:
            raise RuntimeUnavailableError(
                f"{what} took more than {time_limit:g} s and was stopped",
                "give it longer with --time-limit, or look for a Loop that never ends",
            )
        result = _answered(answer_path)
        if result is None:
            raise explain(death, what, provider)
    if isinstance(result, Failure):
        raise explain(result.error, what, provider)
    assert isinstance(result, answer)
    return result


def _run(
    arguments: Sequence[str], variables: Mapping[str, str], time_limit: float | None
) -> str | None:
    """Run a child to its end: how it died, if it did not answer; None if it took too long.

    Raises:
        OSError: no process can be started.
    """
    if time_limit is not None and time_limit > _LONGEST_SECONDS:
        time_limit = None
    try:
        with started(_CHILD, *arguments, environment=variables) as child:
            _, errors = child.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired:
        return None
    return _death(child.returncode, errors)


def _answered(path: Path) -> Answer | None:
    """The child's answer, or None if it has not written (all of) it."""
    try:
        return decode_answer(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


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
    with scratch_folder() as folder:
        archive = folder / "inputs.npz"
        save_arrays(archive, feeds)
        yield folder, archive
