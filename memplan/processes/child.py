"""Child processes, which do not outlive the program.

A child watches a pipe that only its parent holds open: when the parent ends, however it ends, the
pipe closes, and the child removes the parent's scratch folders and ends as well.

    python -m memplan.processes.child FOLDERS MODULE ARGUMENT...

is the child: it calls ``main(ARGUMENT...)`` of MODULE; FOLDERS is a JSON list of paths.
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
) -> Iterator[subprocess.Popen[str]]:
    """A child that runs ``main(*arguments)`` of a module, and ends when this process does.

    When the block is left by an exception, the child is killed; else it is waited for.

    Args:
        module: its name.
        arguments: texts.
        environment: variables that the child gets besides those of this process.
        output: where its stdout and stderr go, as :class:`subprocess.Popen` takes it.

    Raises:
        OSError: no process can be started.
    """
    # No import from the current directory: "-m" would run a numpy.py that lies beside a model.
    command = [sys.executable, "-P", "-m", "memplan.processes.child"]
    own = {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            [*command, json.dumps(open_folders()), module, *arguments],
            stdin=reader,
            stdout=output,
            stderr=output,
            text=True,
            env={**os.environ, **own, **(environment or {})},
        )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    try:
        with process:
            try:
                yield process
            except BaseException:
                process.kill()
                raise
    finally:
        os.close(writer)


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


def main(arguments: Sequence[str]) -> int:
    """Follow the parent, and run what it asks for."""
    folders, module, *rest = arguments
    _follow_parent(json.loads(folders))
    return int(import_module(module).main(*rest) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
