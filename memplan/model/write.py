"""Write files so that nothing is ever lost: a temporary file beside the target, then a rename."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import onnx

from memplan.errors import UsageError


def check_output(path: Path, force: bool) -> None:
    """Fail early when ``path`` could not be written at the end of a long job.

    Raises:
        UsageError: it exists (and ``force`` is not given), is a folder, or its folder is missing
            or read-only.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "give a file name")
    if path.exists() and not force:
        raise UsageError(f"{path} exists", "choose another name or add --force")
    if not path.parent.is_dir():
        raise UsageError(f"folder {path.parent} does not exist", "create it first")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"folder {path.parent} is not writable", "choose another output path")


def write_atomically(path: Path, data: bytes, *, force: bool = False) -> None:
    """Write ``data`` to ``path`` through a temporary file in the same folder.

    Raises:
        UsageError: the output cannot be written.
    """
    check_output(path, force)
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        # mkstemp makes private files; an output has the permissions that any new file gets.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def write_model(model: onnx.ModelProto, path: Path, *, force: bool = False) -> None:
    """Write ``model`` to ``path`` atomically. External data stays where it is."""
    write_atomically(path, model.SerializeToString(), force=force)
