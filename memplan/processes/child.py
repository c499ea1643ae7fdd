"""One call in another process, which does not outlive the program.

A process of its own keeps measurements apart, and lets its parent survive whatever happens there.
The child watches a pipe that only its parent holds open: when the parent ends, however it ends, the
pipe closes, and the child removes the parent's scratch folders and ends as well.

    python -m memplan.processes.child FOLDERS FOLDER

is the child: FOLDERS is a JSON list of the parent's folders, FOLDER where it finds the call and
leaves the answer.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from memplan.processes.deferred import signal_name
from memplan.processes.scratch import open_folders, scratch_folder

_CALL, _ANSWER = "call", "answer"
_LONGEST_SECONDS = 10**6  # what the system can wait for ends at 2**31 milliseconds


class ChildError(Exception):
    """A call failed; the text is that of its exception, or says how the process died."""


def call(
    function: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    time_limit: float | None = None,
) -> Any:
    """What a function gives in a process of its own, which ends when this one does.

    ``multiprocessing`` would run the user's script once more, and imports from the current folder.

    Args:
        function: ``module:name``; its module is imported in the child only.
        arguments: what can be pickled, as is what the function gives.
        environment: variables that the child gets besides those of this process.
        time_limit: seconds after which the child is killed, up to some days; None: never.

    Raises:
        ChildError: the function failed, or the process died.
        OSError: no process can be started.
        subprocess.TimeoutExpired: it took longer than ``time_limit``.
    """
    if time_limit is not None and time_limit > _LONGEST_SECONDS:
        time_limit = None
    with scratch_folder() as folder:
        (folder / _CALL).write_bytes(pickle.dumps((function, arguments)))
        # What the child leaves behind when it is killed goes with the folder.
        variables = {"TMPDIR": str(folder), **(environment or {})}
        code, errors = _run(folder, variables, time_limit)
        if not (folder / _ANSWER).exists():
            raise ChildError(_death(code, errors))
        succeeded, answer = pickle.loads((folder / _ANSWER).read_bytes())
    if not succeeded:
        raise ChildError(answer)
    return answer


def _run(folder: Path, variables: Mapping[str, str], time_limit: float | None) -> tuple[int, str]:
    """Run a child to its end: its exit code, and what it printed on stderr."""
    # No import from the current directory: "-m" would run a numpy.py that lies beside a model.
    command = [sys.executable, "-P", "-m", "memplan.processes.child"]
    own = {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            [*command, json.dumps(open_folders()), str(folder)],
            stdin=reader,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **own, **variables},
        )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    try:
        with process:
            try:
                _, errors = process.communicate(timeout=time_limit)
            except BaseException:
                process.kill()
                raise
    finally:
        os.close(writer)
    return process.returncode, errors


def _death(code: int, errors: str) -> str:
    """How a process that ended with ``code`` died, in a line."""
    if code == -signal.SIGKILL:
        return "the process was killed, most likely because the machine is out of memory"
    if code < 0:
        return f"the process died with {signal_name(-code)}"
    lines = errors.strip().splitlines()
    return lines[-1] if lines else f"exit code {code}"


def _follow_parent(folders: Sequence[str]) -> None:
    """End this process, and remove the folders, when the other end of stdin closes."""

    def follow() -> None:
        # Not through sys.stdin, whose lock would be held.
        while os.read(0, 4096):
            pass
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def main(folders: str, folder: str) -> None:
    """Follow the parent, and answer its call."""
    _follow_parent(json.loads(folders))
    place = Path(folder)
    function, arguments = pickle.loads((place / _CALL).read_bytes())
    module, _, name = function.partition(":")
    called = getattr(import_module(module), name)
    try:
        answer = True, called(*arguments)
    except Exception as error:  # whoever asked words it for the user
        answer = False, str(error)
    part = place / f"{_ANSWER}.part"  # of a child that is killed meanwhile, there is no answer
    part.write_bytes(pickle.dumps(answer))
    part.rename(place / _ANSWER)


if __name__ == "__main__":
    main(*sys.argv[1:])
