"""Write files so that nothing is ever lost: a temporary file beside the target, then a rename."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import onnx

from memplan.errors import UsageError
from memplan.proto.external import data_files


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


def check_target(path: Path, force: bool, *inputs: Path | None) -> None:
    """Fail early when ``path`` could not be written, or would overwrite what is read.

    Raises:
        UsageError: see :func:`check_output` and :func:`keep_inputs`.
    """
    keep_inputs(path, *inputs)
    check_output(path, force)


def keep_inputs(path: Path, *inputs: Path | None) -> None:
    """Refuse to write over a file that is read, whatever is forced.

    A model's weights in other files are read with it.

    Raises:
        UsageError: ``path`` is one of ``inputs`` or of what they refer to, by whatever name or
            link.
    """
    try:
        there = path.exists()
    except (OSError, ValueError):  # not a name at all, which the check of the output says
        there = False
    if not there:  # nothing is lost
        return
    for source in inputs:
        if source is None:
            continue
        if _same(path, source):
            raise UsageError(
                f"{path} is an input of this command, and inputs are never overwritten",
                "choose another output",
            )
        if any(_same(path, data) for data in data_files(source)):
            raise UsageError(
                f"{path} holds weights of {source}, and inputs are never overwritten",
                "choose another output",
            )


def _same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # one of them is not there, or is not a name
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
        try:
            put(made.name, path, force)
        finally:
            if os.path.lexists(made.name):
                os.unlink(made.name)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


class Made(NamedTuple):
    """A temporary file: its name, and where to write its content."""

    name: str
    stream: IO[bytes]


@contextmanager
def made_beside(path: Path) -> Iterator[Made]:
    """A temporary file in the folder of ``path``, which is on the disk when the block has ended,
    and then the caller's to move or remove. If the block fails, it is removed.

    Raises:
        OSError: the file system refuses.
    """
    handle, name = tempfile.mkstemp(prefix=".memplan-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield Made(name, stream)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        os.unlink(name)
        raise


def put(temporary: str, path: Path, force: bool) -> None:
    """Move ``temporary`` to ``path``; without ``force`` only if nobody made a file there since.

    Raises:
        OSError: the file system refuses.
        UsageError: somebody made a file there.
    """
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
    write_atomically(path, model.SerializeToString(), force=force)
