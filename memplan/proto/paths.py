"""Paths as people give them: text or not."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from memplan.errors import UsageError


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
