"""Ask ONNX Runtime in a child process; run models that way.

A process per model keeps measurements apart (arena, peak RSS, random state) and lets the parent
survive anything that the runtime does.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.errors import RuntimeUnavailableError
from memplan.processes.child import ChildError, call
from memplan.processes.scratch import scratch_folder
from memplan.runtime.archive import save_arrays
from memplan.runtime.messages import Draw, Measurement, RunRequest
from memplan.runtime.run_failures import explain

Array = npt.NDArray[np.generic]


def measure(
    model: Path,
    request: RunRequest,
    inputs: Path,
    outputs: Path,
    further: Sequence[Draw] = (),
    time_limit: float | None = None,
    weights: Path | None = None,
) -> Measurement:
    """Run ``model`` in a child process: under the profiler, twice on ``inputs`` and once on every
    ``further`` draw; then ``request.runs`` times on ``inputs`` for its time.

    Args:
        model: an ONNX file.
        request: session kind, provider, dims, number of timed runs.
        inputs: an ``.npz`` archive with one array per graph input.
        outputs: where an ``.npz`` archive with the arrays ``o0``, ``o1``, ... of the first run is
            written.
        further: more draws, each of which is run on once.
        time_limit: seconds after which the child is killed, up to some days; None: never.
        weights: the model beside which external data lies, if not ``model``.

    Raises:
        RuntimeUnavailableError: the provider is missing, or the run failed or was killed.
    """
    what = f"running {model.name}"
    arguments = (model, inputs, outputs, tuple(further), weights)
    found: Measurement = run_child("measure", request, what, *arguments, time_limit=time_limit)
    return found


def run_child(
    function: str,
    request: RunRequest,
    what: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    time_limit: float | None = None,
) -> Any:
    """What a function of :mod:`memplan.runtime.run_child` gives for ``request`` and ``arguments``;
    the others as for :func:`memplan.processes.child.call`.

    Args:
        function: its name.
        request: its first argument.
        what: what is being done, for error messages.
        arguments: the others.
        environment: variables that the child gets besides those of this process.
        time_limit: seconds after which the child is killed; None: never.

    Raises:
        RuntimeUnavailableError: with the runtime's own reason in one line.
    """
    try:
        return call(
            f"memplan.runtime.run_child:{function}",
            request,
            *arguments,
            environment=environment,
            time_limit=time_limit,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeUnavailableError(
            f"{what} took more than {time_limit:g} s and was stopped",
            "give it longer with --time-limit, or look for a Loop that never ends",
        ) from None
    except OSError as error:
        raise RuntimeUnavailableError(f"{what}: no process started: {error}") from None
    except ChildError as error:
        raise explain(str(error), what, request.provider) from None


@contextmanager
def saved_inputs(feeds: Mapping[str, Array]) -> Iterator[tuple[Path, Path]]:
    """A temporary folder with ``feeds`` saved in it: (folder, archive)."""
    with scratch_folder() as folder:
        archive = folder / "inputs.npz"
        save_arrays(archive, feeds)
        yield folder, archive
