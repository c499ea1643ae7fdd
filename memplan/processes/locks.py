"""A file that several processes bring up to date: one at a time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memplan.errors import RuntimeUnavailableError

if sys.platform != "win32":
    import fcntl

PATIENCE_SECONDS = 20.0
_INTERVAL_SECONDS = 0.05


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
    if sys.platform == "win32":
        yield
        return
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
