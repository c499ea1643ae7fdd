"""Child processes, which do not outlive the program.

A child watches a pipe that only its parent holds open: when the parent ends, however it ends, the
pipe closes, and the child removes the parent's scratch folders and ends as well.

    python -m memplan.processes.child FOLDERS MODULE ARGUMENT...

is the child: it calls ``main(ARGUMENT...)`` of MODULE; FOLDERS is a JSON list of paths. Where it
is to have a stdin, a number before FOLDERS says under which one that was opened.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module

from memplan.processes.scratch import open_folders


@contextmanager
def started(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    output: int = subprocess.PIPE,
    foreign: bool = False,
) -> Iterator[subprocess.Popen[str]]:
    """A child that runs ``main(*arguments)`` of a module, and ends when this process does.

    When the block is left by an exception, the child is killed; else it is waited for.

    Args:
        module: its name.
        arguments: texts.
        environment: variables that the child gets besides those of this process.
        output: where its stdout and stderr go, as :class:`subprocess.Popen` takes it.
        foreign: it runs code of the user's, which finds stdin and environment as they are here.

    Raises:
        OSError: no process can be started.
    """
    # No import from the current directory: "-m" would run a numpy.py that lies beside a model.
    command = [sys.executable, "-P", "-m", "memplan.processes.child"]
    own = {} if foreign else {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
    stdin = [os.dup(0)] if foreign and sys.platform != "win32" else []
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            [*command, *map(str, stdin), json.dumps(open_folders()), module, *arguments],
            stdin=reader,
            stdout=output,
            stderr=output,
            text=True,
            env={**os.environ, **own, **(environment or {})},
            pass_fds=stdin,
        )
    except BaseException:
        os.close(writer)
        raise
    finally:
        for number in (reader, *stdin):
            os.close(number)
    try:
        with process:
            try:
                yield process
            except BaseException:
                process.kill()
                raise
    finally:
        os.close(writer)


def _follow_parent(folders: Sequence[str], pipe: int) -> None:
    """End this process, and remove the folders, when the other end of ``pipe`` closes."""

    def follow() -> None:
        # Not through sys.stdin, whose lock would be held.
        while os.read(pipe, 4096):
            pass
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def main(arguments: Sequence[str]) -> int:
    """Follow the parent, and run what it asks for."""
    pipe = 0
    if arguments[0].isdecimal():
        pipe, stdin = os.dup(0), int(arguments[0])
        os.dup2(stdin, 0)
        os.close(stdin)
        arguments = arguments[1:]
    folders, module, *rest = arguments
    _follow_parent(json.loads(folders), pipe)
    return int(import_module(module).main(*rest) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
