"""Scratch folders and temporary files, which do not outlive the program.

A folder whose owner was killed with a child at work is removed by the child
(:mod:`memplan.processes.child`). What an owner leaves that ended otherwise (SIGKILL, power) is
removed by the next program that makes one in the same place: an owner keeps what it makes locked,
and locks end with the process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memplan.errors import RuntimeUnavailableError

_PREFIX = "memplan-run-"
_OURS = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# What this process has made and not removed yet, and whether it has cleaned up after others.
_open_folders: set[str] = set()
_swept: set[tuple[str, str]] = set()


def open_folders() -> list[str]:
    """The scratch folders of this process that are there now."""
    return sorted(_open_folders)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A private temporary folder, removed at the end, and by others if this process is killed.

    Raises:
        RuntimeUnavailableError: there is no temporary folder to write into, or no room in it.
    """
    try:
        root = tempfile.gettempdir()
        sweep(root)
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
        os.close(lock)


def _no_room(error: OSError) -> RuntimeUnavailableError:
    where = tempfile.tempdir or "any of the usual places"
    return RuntimeUnavailableError(
        f"temporary files cannot be written in {where}: {error.strerror or error}",
        "free some space there, or set TMPDIR to a folder with space",
    )


def _made(root: str) -> tuple[str, int]:
    """A new folder, and the descriptor that holds its lock."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=root)
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # taken for a leftover before it was locked
            continue
        if hold(folder, lock):
            return folder, lock
        os.close(lock)


def hold(path: str, handle: int) -> bool:
    """Keep ``path``, which is open as ``handle``, from :func:`sweep` until that is closed; False if
    another program has taken it for a leftover before it was locked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
    except OSError:  # a file system without locks; then nobody else gets one either
        return True
    return os.path.exists(path)


def sweep(root: str, ours: re.Pattern[str] = _OURS) -> None:
    """Remove what processes of this user that are dead have left in ``root`` under such names; once
    per folder."""
    if (root, ours.pattern) in _swept:
        return
    _swept.add((root, ours.pattern))
    with os.scandir(root) as entries:
        found = [entry.path for entry in entries if ours.fullmatch(entry.name)]
    for path in found:
        try:
            _remove_if_left(path)
        except OSError:  # somebody else's, held, or gone meanwhile
            continue


def _remove_if_left(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(handle)
        folder = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o700
        if status.st_uid != os.geteuid() or not (folder or stat.S_ISREG(status.st_mode)):
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder:
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    finally:
        os.close(handle)
