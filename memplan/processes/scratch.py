"""Scratch folders, which do not outlive the program.

A folder whose owner was killed with a child at work is removed by the child
(:mod:`memplan.processes.child`). One whose owner ended with no child at work (SIGKILL, power) is
removed by the next program that needs one: an owner keeps its folders locked, and locks end with
the process.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
