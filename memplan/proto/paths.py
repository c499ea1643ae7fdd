"""Paths as people give them: text or not, of files or of what has no end."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from os import PathLike
from pathlib import Path

from memplan.errors import UsageError

MOST_TEXT = 1 << 28
"""Bytes of a lock, a costs file and their like: what is larger is something else."""

_STEP = re.compile(r"(.+\.py):([^\W\d]\w*)", re.DOTALL)


def python_step(given: PathLike[str] | str) -> tuple[Path, str] | None:
    """The file and the function of ``FILE.py:FUNCTION``; None of what is a file, or has not that
    form."""
    found = _STEP.fullmatch(os.fspath(given))
    return None if found is None or os.path.lexists(given) else (Path(found[1]), found[2])


def on_disk(given: Path) -> Path:
    """The file that a model is read from: of ``FILE.py:FUNCTION``, ``FILE.py``."""
    step = python_step(given)
    return given if step is None else step[0]


@contextmanager
def opened_file(path: PathLike[str] | str) -> Iterator[BufferedReader]:
    """A regular file, open to be read; links to one are followed.

    A pipe would make its reader wait for ever, and a device may have no end. It is looked at twice,
    as it may have become another in between.

    Raises:
        OSError: it is not there, cannot be read, or is not a regular file.
    """
    _require_regular(os.stat(path), path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as stream:
        _require_regular(os.fstat(handle), path)
        yield stream


def _require_regular(status: os.stat_result, path: PathLike[str] | str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_bytes(path: PathLike[str] | str, most: int | None = None) -> bytes:
    """What a regular file holds.

    Raises:
        OSError: see :func:`opened_file`; or it holds more than ``most`` bytes.
    """
    with opened_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, of at most {most:,}", str(path))
        return stream.read() if most is None else stream.read(most)


def file_problem(error: OSError) -> str:
    """Why a file cannot be read, in a few words."""
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    return error.strerror or str(error) or type(error).__name__


def as_path(given: object) -> Path:
    """The path of a model from what was given for one.

    Raises:
        UsageError: it cannot be one.
    """
    if not isinstance(given, str | PathLike):
        raise UsageError(
            f"a model is a path or an onnx.ModelProto, not {type(given).__name__}",
            "give the path of a .onnx file, as str or Path",
        )
    return Path(given)


def as_output(given: object) -> Path | None:
    """The path of an output from what was given for one; None: there is to be none.

    Raises:
        UsageError: it cannot be one.
    """
    if given is not None and not isinstance(given, str | PathLike):
        raise UsageError(f"an output is a path, not {type(given).__name__}", "give str or Path")
    return None if given is None else Path(given)
