"""Files that several processes would write to: one brings them up to date at a time, and what one
has for as long as it runs is refused to others."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memplan.errors import RuntimeUnavailableError, UsageError

PATIENCE_SECONDS = 20.0
_INTERVAL_SECONDS = 0.05
_MOMENT_SECONDS = 0.5
"""Within which whoever only looks at a lock has let go of it."""
_own: set[str] = set()


@contextmanager
def updating(path: Path, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Keep others who update a file in the same folder waiting, so that nothing gets lost.

    The folder is what is locked: it is there before the file is, and stays when the file is
    replaced. A file system without locks is taken as it is.

    Args:
        path: the file, behind all links.
        patience: seconds to wait for others.

    Raises:
        RuntimeUnavailableError: somebody else kept it for ``patience`` seconds.
    """
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        _acquire(handle, path, patience)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, path: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(_INTERVAL_SECONDS)
                continue
            raise RuntimeUnavailableError(
                f"{path} is being updated by another process for more than {patience:g} s",
                "try again; memplan holds the file's folder only while it writes",
            ) from None
        except OSError:
            return
        return


@contextmanager
def kept(path: Path) -> Iterator[None]:
    """Keep a file from others who ask for it so, until the block ends or this process does.

    What is locked is a file beside it: ``path`` need not be there, and may be replaced. Its name is
    that of a temporary output, so that one that a killed process has left is removed like those
    (:func:`memplan.processes.scratch.sweep`). A file system without locks is taken as it is.

    Args:
        path: the file, behind all links.

    Raises:
        UsageError: somebody else keeps it; or a file cannot be made in its folder.
    """
    name = _name_of_lock(path)
    try:
        handle = _locked(name)
    except BlockingIOError:
        raise _in_use(path) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    _own.add(name)
    try:
        yield
    finally:
        _own.discard(name)
        with suppress(OSError):
            os.unlink(name)
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # a fork may have the file open, too
        os.close(handle)


def require_free(path: Path) -> None:
    """Refuse a file that another process has :func:`kept`.

    Raises:
        UsageError: one has.
    """
    name = _name_of_lock(path)
    if name in _own or not os.path.exists(name):
        return
    with kept(path):
        pass


def _name_of_lock(path: Path) -> str:
    digest = hashlib.blake2b(os.fsencode(path.name), digest_size=4).hexdigest()
    return os.path.join(os.path.realpath(path.parent), f".memplan-tmp-{digest}")


def _locked(name: str) -> int:
    """The lock file, made where it is missing, open and locked.

    Raises:
        BlockingIOError: somebody else has it.
        OSError: it cannot be made.
    """
    deadline = time.monotonic() + _MOMENT_SECONDS
    while True:
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            if time.monotonic() > deadline:
                raise
            time.sleep(_INTERVAL_SECONDS)
            continue
        except OSError:  # no locks here
            return handle
        if _is_still(handle, name):
            return handle
        os.close(handle)  # it was removed before it was locked


def _is_still(handle: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(name))
    except FileNotFoundError:
        return False


def _in_use(path: Path) -> UsageError:
    return UsageError(
        f"{path} is in use by another run", "wait for its end, or give a file of its own"
    )
