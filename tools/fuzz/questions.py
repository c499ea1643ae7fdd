"""What memplan asks ONNX Runtime, answered by forks of a server that has imported it.

Starting Python and importing the runtime anew for each of some forty questions about a graph takes
longer than all the rest. A fork that dies takes nobody with it, as a child of the program does not.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from memplan.processes.child import ChildError
from memplan.runtime import measure, run_child

_FORKS = multiprocessing.get_context("forkserver")


def answer_by_forks() -> None:
    """From here on, what this process asks the runtime is answered by forks."""
    _FORKS.set_forkserver_preload(["memplan.runtime.run_child"])
    measure.call = _call


def _call(
    function: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    time_limit: float | None = None,
) -> Any:
    """As :func:`memplan.processes.child.call`."""
    here, there = _FORKS.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        variables = {"TMPDIR": folder, **(environment or {})}
        name = function.rpartition(":")[2]
        process = _FORKS.Process(target=_answer, args=(there, variables, name, arguments))
        process.start()
        there.close()
        try:
            if not here.poll(time_limit):
                raise subprocess.TimeoutExpired("fork", time_limit or 0)
            succeeded, answer = here.recv()
        except EOFError:
            process.join()
            raise ChildError(f"the process ended with {process.exitcode}") from None
        finally:
            process.kill()
            process.join()
    if not succeeded:
        raise ChildError(answer)
    return answer


def _answer(
    there: Connection, variables: Mapping[str, str], name: str, arguments: tuple[object, ...]
) -> None:
    """In the fork."""
    os.environ.update(variables)
    tempfile.tempdir = None  # TMPDIR is another now
    try:
        answer = True, getattr(run_child, name)(*arguments)
    except Exception as error:
        answer = False, str(error)
    there.send(answer)
