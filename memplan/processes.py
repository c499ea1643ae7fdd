"""Child processes and scratch folders, neither of which outlives the program.

A child watches a pipe that only its parent holds open: when the parent ends, however it ends, the
pipe closes, and the child removes the parent's scratch folders and ends as well. A folder whose
owner ended with no child at work (SIGKILL, power) is removed by the next program that needs one:
an owner keeps its folders locked, and locks end with the process.

    python -m memplan.processes FOLDERS MODULE ARGUMENT...

is the child: it calls ``main(ARGUMENT...)`` of MODULE; FOLDERS is a JSON list of paths.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from memplan.errors import RuntimeUnavailableError

if sys.platform != "win32":  # there, folders of a process that was killed stay
    import fcntl

_PREFIX = "memplan-run-"
_OURS = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# What this process has made and not removed yet, and whether it has cleaned up after others.
_open_folders: set[str] = set()
_swept: set[str] = set()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A private temporary folder, removed at the end, and by others if this process is killed.

    Raises:
        RuntimeUnavailableError: there is no temporary folder to write into, or no room in it.
    """
    try:
        root = tempfile.gettempdir()
        _sweep(root)
        folder, lock = _made(root)
    except OSError as error:
        raise _no_room(error) from None
    _open_folders.add(folder)
    try:
        yield Path(folder)
    except OSError as error:
        if error.errno in _FULL:
            raise _no_room(error) from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _open_folders.discard(folder)
        if lock is not None:
            os.close(lock)


def _no_room(error: OSError) -> RuntimeUnavailableError:
    where = tempfile.tempdir or "any of the usual places"
    return RuntimeUnavailableError(
        f"temporary files cannot be written in {where}: {error.strerror or error}",
        "make room there, or let TMPDIR name a folder that has some",
    )


def _made(root: str) -> tuple[str, int | None]:
    """A new folder, and the descriptor that holds its lock."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=root)
        if sys.platform == "win32":
            return folder, None
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
        except OSError:  # a file system without locks; then nobody else gets one either
            return folder, lock
        # Another program may have taken it for a leftover before it was locked.
        if os.path.isdir(folder):
            return folder, lock
        os.close(lock)


def _sweep(root: str) -> None:
    """Remove the folders of this user's processes that were killed; once per folder ``root``."""
    if sys.platform == "win32" or root in _swept:
        return
    _swept.add(root)
    with os.scandir(root) as entries:
        found = [entry.path for entry in entries if _OURS.fullmatch(entry.name)]
    for folder in found:
        try:
            _remove_if_left(folder)
        except OSError:  # somebody else's, or gone meanwhile
            continue


def _remove_if_left(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


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
    variables = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "memplan.processes", json.dumps(sorted(_open_folders))]
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            [*command, module, *arguments],
            stdin=reader,
            stdout=output,
            stderr=output,
            text=True,
            env={**variables, **(environment or {})},
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
