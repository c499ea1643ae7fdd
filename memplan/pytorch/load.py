"""``FILE.py:FUNCTION``: the user's function, imported and called."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from memplan.errors import UsageError

_FORM = "as in train.py:make_step; the function takes nothing and returns model, loss and batch"


def split_target(target: str) -> tuple[Path, str]:
    """The file and the name of the function.

    Raises:
        UsageError: the text has another form, or there is no such file.
    """
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier() or not file:
        raise UsageError(f"'{target}' does not name a file and a function", _FORM)
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"there is no file {file}", _FORM)
    return path, name


def returned_by(path: Path, name: str) -> object:
    """Run the file, as a module of its own, and what its function returns.

    Its folder is on the import path meanwhile, as it is where Python runs the file.

    Raises:
        UsageError: the file or the function raises, or there is no such function.
    """
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        function = _function(path, name)
        try:
            return function()
        except (Exception, SystemExit) as error:
            raise _raised(f"{name}() in {path}", error) from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _function(path: Path, name: str) -> Callable[[], Any]:
    module_name = f"memplan_captured_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file", _FORM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickles look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _raised(str(path), error) from error
    function = getattr(module, name, None)
    if not callable(function):
        own = [
            key
            for key, value in vars(module).items()
            if isinstance(value, FunctionType) and value.__module__ == module_name
        ]
        raise UsageError(
            f"{path} has no function '{name}'",
            f"it has {', '.join(own)}" if own else _FORM,
        )
    found: Callable[[], Any] = function
    return found


def _raised(where: str, error: BaseException) -> UsageError:
    said = next(iter(str(error).splitlines()), "")
    return UsageError(
        f"{where} raises {type(error).__name__}: {said}", "-vv shows where; the code is yours"
    )
