"""What memplan asks ONNX Runtime, answered by forks of a server that has imported it.

Starting Python and importing the runtime anew for each of some forty questions about a graph takes
longer than all the rest. A fork that dies takes nobody with it, as a child of the program does not.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from memplan.runtime import measure, run_child

_FORKS = multiprocessing.get_context("forkserver")


def answer_by_forks() -> None:
    """From here on, what this process asks the runtime is answered by forks."""
    _FORKS.set_forkserver_preload(["memplan.runtime.run_child"])
    measure.started = _started


class _Fork:
    """As much of a :class:`subprocess.Popen` as is used."""

    def __init__(self, arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self._process = _FORKS.Process(target=_answer, args=(arguments, dict(environment)))
        self._process.start()

    @property
    def returncode(self) -> int:
        return self._process.exitcode or 0

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: it did not come in time.
        """
        self._process.join(timeout)
        if self._process.is_alive():
            self._process.kill()
            raise subprocess.TimeoutExpired("fork", timeout or 0)
        return "", ""


@contextmanager
def _started(
    _module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[_Fork]:
    yield _Fork(arguments, environment or {})


def _answer(arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """In the fork."""
    os.environ.update(environment)
    tempfile.tempdir = None  # TMPDIR is another now
    run_child.main(*arguments)
