"""``FILE.py:FUNCTION``: the user's function, imported and called."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from memplan.errors import UsageError
from memplan.pytorch.foreign import modes, raised, their_turn

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
        raise UsageError(f"{file} does not exist", _FORM)
    return path, name


def returned_by(path: Path, name: str) -> object:
    """Run the file, as a module of its own, and what its function returns.

    Its folder is on the import path meanwhile, as it is where Python runs the file; when the step
    runs later, behind all others.

    Raises:
        UsageError: the file or the function raises, there is no such function, or it leaves a mode
            of PyTorch entered.
    """
    file = path.resolve()
    folder, before, known = str(file.parent), modes(), set(sys.modules)
    with their_turn(first=True):
        sys.path.insert(0, folder)
        sys.argv = [str(file)]
        try:
            found = _called(_function(path, name), f"{name}() in {path}")
            left = [what for what, count in modes().items() if count > before.get(what, 0)]
        finally:
            if folder in sys.path:
                sys.path.remove(folder)
            sys.path.append(folder)
    _forget_shadows(known, file.parent)
    if left:
        raise UsageError(
            f"{name}() in {path} leaves {left[0]} entered",
            "leave it; where the step is to run in it, enter it in the loss function",
        )
    return found


def _called(function: Callable[[], Any], what: str) -> Any:
    try:
        return function()
    except BaseException as error:
        if type(error) is KeyboardInterrupt:
            raise
        raise raised(what, error) from error


def _forget_shadows(known: set[str], folder: Path) -> None:
    """Let later imports of the standard library find that, and not files of the same name that lie
    beside the user's and that this has imported."""
    for name in sys.modules.keys() - known:
        file = getattr(sys.modules[name], "__file__", None)
        standard = name.partition(".")[0] in sys.stdlib_module_names
        if standard and file and Path(file).is_relative_to(folder):
            del sys.modules[name]


def _function(path: Path, name: str) -> Callable[[], Any]:
    module_name = f"memplan_captured_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path.resolve())
    loader = spec.loader if spec is not None else None
    if spec is None or loader is None:
        raise UsageError(f"{path} is not a Python file", _FORM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickles look their module up
    _called(lambda: loader.exec_module(module), str(path))
    function = _called(lambda: getattr(module, name, None), str(path))
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
