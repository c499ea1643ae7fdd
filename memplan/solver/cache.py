"""Where compiled code, and captured steps, are kept between runs: a folder of the user's that
nobody else can write.

What is loaded from there is run, so a folder that others can put files into is not used, whoever
named it. Where there is no other, code is kept in a temporary folder until the program ends.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import stat
import sys
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from memplan.errors import RuntimeUnavailableError
from memplan.processes.scratch import scratch_folder

_LOG = logging.getLogger(__name__)

before_compiling: list[Callable[[], None]] = []
"""What is called, and taken out, before anything of a version is compiled for the first time."""


def version_name() -> str:
    """A hash of the planner's sources, and numba's version.

    numba notices a change of a function's own file only, not of the files that it calls into; so
    every version of the sources gets a folder of its own.
    """
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return f"{digest.hexdigest()[:16]}-numba-{version('numba')}"


def cache_folder() -> Path | None:
    """The user's cache folder for compiled code; None if it cannot be told.

    ``MEMPLAN_CACHE_DIR`` overrides it. Like ``XDG_CACHE_HOME`` it is an absolute path: an empty or
    a relative one is ignored, or the current folder would decide what is run.
    """
    own = _absolute("MEMPLAN_CACHE_DIR")
    if own is not None:
        return own
    try:
        if sys.platform == "darwin":
            base = _home() / "Library" / "Caches"
        else:
            base = _absolute("XDG_CACHE_HOME") or _home() / ".cache"
    except RuntimeError:
        return None
    return base / "memplan"


def _home() -> Path:
    """The user's home.

    Raises:
        RuntimeError: there is none, or nobody knows where.
    """
    home = _absolute("HOME") if "HOME" in os.environ else Path.home()
    if home is None or not home.is_dir():
        raise RuntimeError("no home")
    return home


def _absolute(variable: str) -> Path | None:
    path = Path(os.environ.get(variable, ""))
    return path if path.is_absolute() else None


def code_folder(name: str) -> Path | None:
    """A folder for compiled code, made where it is missing; ``name``: what it is the code of.

    One of that name in ``NUMBA_CACHE_DIR`` comes first: the process that started this one chose it.
    None where not even a temporary folder can be made: then nothing is kept.
    """
    given = _absolute("NUMBA_CACHE_DIR")
    if given is not None and given.name == name and given.is_dir() and is_private(given):
        return given
    kept = private_folder("numba", name)
    if kept is not None:
        return kept
    stack = ExitStack()
    try:
        place = stack.enter_context(scratch_folder()) / name
        place.mkdir(mode=0o700)
    except RuntimeUnavailableError:
        return None
    atexit.register(stack.close)
    return place


def is_empty(folder: Path | None) -> bool:
    """Whether a folder for compiled code, if there is one, holds none yet."""
    return folder is None or not any(folder.rglob("*.nbc"))


def private_folder(*names: str) -> Path | None:
    """A folder in the user's cache folder, made where it is missing; None where others can write
    there, or this user cannot: that is said in the log."""
    folder = cache_folder()
    if folder is None:
        return None
    place = folder.joinpath(*names)
    above = [folder.joinpath(*names[:depth]) for depth in range(len(names) + 1)]
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if all(map(is_private, above)) and os.access(place, os.W_OK):
            return place
        _LOG.warning("%s is not used: others can write there, or this user cannot", folder)
    except OSError as error:
        _LOG.warning("%s is not used: %s", folder, error.strerror)
    return None


def is_private(folder: Path) -> bool:
    """Whether this user owns ``folder``, and nobody else may write into it."""
    status = folder.lstat()
    others = stat.S_IWGRP | stat.S_IWOTH
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return own and not status.st_mode & others
