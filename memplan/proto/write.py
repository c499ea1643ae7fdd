"""Write files so that nothing is ever lost: a temporary file beside the target, then a rename."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import IO, NamedTuple

import onnx

from memplan.errors import UsageError
from memplan.processes.scratch import hold, sweep
from memplan.proto.external import data_files
from memplan.proto.metadata import sealed_bytes
from memplan.proto.paths import on_disk

_PREFIX = ".memplan-tmp-"
_OURS = re.compile(rf"{re.escape(_PREFIX)}[a-z0-9_]{{8}}")


def check_output(path: Path, force: bool) -> None:
    """Fail early when ``path`` could not be written at the end of a long job.

    A link is followed: what it leads to is what is written.

    Raises:
        UsageError: it exists (and ``force`` is not given), is not a regular file (a folder, a
            device) or a link to nothing, or its folder is missing or read-only.
    """
    shown, path = path, followed(path)
    try:
        exists, regular, folder = path.exists(), path.is_file(), path.parent.is_dir()
        is_folder = path.is_dir()
    except OSError as error:  # a name too long, a folder that may not be searched
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    if is_folder:
        raise UsageError(f"{shown} is a folder", "give a file name")
    if exists and not regular:
        raise UsageError(f"{shown} is not a regular file", "give a file name, or - for stdout")
    if shown.is_symlink() and not exists:
        raise UsageError(
            f"{shown} is a link to {path}, which does not exist",
            "delete the link, or give the name of a file",
        )
    if exists and not force:
        raise UsageError(f"{shown} exists", "choose another name or add --force")
    if not folder:
        raise UsageError(f"folder {path.parent} does not exist", "create it first")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"folder {path.parent} is not writable", "choose another output path")


def followed(path: Path) -> Path:
    """What ``path`` leads to, if it is a link: an atomic write would replace the link itself.

    Raises:
        UsageError: the link leads to itself.
    """
    if not os.path.islink(path):
        return path
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        raise UsageError(f"{path} is a link that leads nowhere", "delete it") from None


def check_target(
    path: Path, force: bool, *inputs: Path | None, others: Iterable[Path | None] = ()
) -> None:
    """Fail early when ``path`` could not be written, or would overwrite what is read or one of the
    ``other`` outputs.

    Raises:
        UsageError: see :func:`check_output` and :func:`keep_apart`.
    """
    keep_apart((path, *others), *inputs)
    check_output(path, force)


def keep_apart(outputs: Iterable[Path | None], *inputs: Path | None) -> None:
    """Refuse to write over a file that is read, or twice over one, whatever is forced.

    A model's weights in other files are read with it. What one command writes is held against all
    that it reads and writes here, before any work.

    Raises:
        UsageError: an output is one of ``inputs`` or of what they refer to, by whatever name or
            link; or two outputs are one file.
    """
    written = [path for path in outputs if path is not None]
    # Of a file that is not there yet, nothing is lost.
    there = [path for path in written if _exists(path)]
    for source in inputs if there else ():
        if source is not None:
            spare(there, [on_disk(source)], "is an input of this command")
            spare(there, data_files(source), f"holds weights of {source}")
    for one, other in combinations(written, 2):
        if _same(one, other) or _same_name(one, other):
            raise UsageError(
                f"{other}: another output of this command is written there",
                "give each output a file of its own",
            )


def spare(outputs: Iterable[Path], inputs: Iterable[Path], what: str) -> None:
    """Refuse an output that is one of ``inputs``; ``what`` says what these are.

    Raises:
        UsageError: one is.
    """
    known = list(inputs)
    for path in outputs:
        if any(_same(path, source) for source in known):
            raise UsageError(
                f"{path} {what}, and inputs are never overwritten", "choose another output"
            )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # not a name at all, which the check of the output says
        return False


def _same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # one of them is not there, or is not a name
        return False


def _same_name(one: Path, other: Path) -> bool:
    """Whether two files that are not there would be one: on many systems, also where only capitals
    differ."""
    try:
        return os.path.realpath(one).casefold() == os.path.realpath(other).casefold()
    except (OSError, ValueError):
        return False


def write_atomically(path: Path, data: bytes, *, force: bool = False) -> None:
    """Write ``data`` to ``path``, all of it or nothing: see :func:`written_atomically`.

    Raises:
        UsageError: the output cannot be written.
    """
    with written_atomically(path, force=force) as stream:
        stream.write(data)


@contextmanager
def written_atomically(path: Path, *, force: bool = False) -> Iterator[IO[bytes]]:
    """A stream to what ``path`` is to hold, through a temporary file in the same folder.

    A link is followed. Whatever happens on the way (a full disk, Ctrl-C), ``path`` holds either
    what it held before or all that was written, and no temporary file is left.

    Raises:
        UsageError: the output cannot be written.
    """
    check_output(path, force)
    path = followed(path)
    try:
        with made_beside(path) as made:
            yield made.stream
            put(made, path, force)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


class Made(NamedTuple):
    """A temporary file: its name, and where to write its content."""

    name: str
    stream: IO[bytes]


@contextmanager
def made_beside(path: Path) -> Iterator[Made]:
    """A temporary file in the folder of ``path``, which is gone when the block has ended, if it was
    not :func:`put` into its place.

    If this process is killed meanwhile, the next one that writes into the folder removes it.

    Raises:
        OSError: the file system refuses.
    """
    sweep(str(path.parent), _OURS)
    handle, name = _made(path.parent)
    with os.fdopen(handle, "wb") as stream:  # closed last: with it goes the lock
        try:
            yield Made(name, stream)
        finally:
            if os.path.lexists(name):
                os.unlink(name)


def _made(folder: Path) -> tuple[int, str]:
    while True:
        handle, name = tempfile.mkstemp(prefix=_PREFIX, dir=folder)
        if hold(name, handle):
            return handle, name
        os.close(handle)


def put(made: Made, path: Path, force: bool) -> None:
    """Move a temporary file to ``path`` once it is on the disk; without ``force`` only if nobody
    made a file there since.

    Raises:
        OSError: the file system refuses.
        UsageError: somebody made a file there.
    """
    temporary = made.name
    made.stream.flush()
    os.fsync(made.stream.fileno())
    # mkstemp makes private files; an output has the permissions that any new file gets.
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(temporary, 0o666 & ~umask)
    if not force:
        try:
            os.link(temporary, path)
            return
        except FileExistsError:
            raise UsageError(f"{path} exists", "choose another name or add --force") from None
        except OSError:
            pass  # a file system without hard links
    os.replace(temporary, path)


def write_model(model: onnx.ModelProto, path: Path, *, force: bool = False) -> None:
    """Write ``model`` to ``path`` atomically. External data stays where it is."""
    write_atomically(path, sealed_bytes(model), force=force)
