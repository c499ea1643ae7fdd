"""``FILE.py:FUNCTION``: the user's function, imported and called.

Its code runs in this process: what it sets in PyTorch holds while its step runs, and is as it was
before afterwards (:func:`users_code`)."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import FunctionType
from typing import Any, NoReturn
from unittest import mock

from memplan.errors import MemplanError, UsageError

_LONGEST = 400
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


@contextmanager
def users_code(path: Path) -> Iterator[None]:
    """Inside, code of the file ``path`` runs every now and then. Behind it PyTorch's defaults,
    random numbers and the import path are as they were.

    Raises:
        UsageError: it raises what nobody handles: it exits, say.
    """
    import torch

    from memplan.pytorch.torch_defaults import defaults, defaults_now

    drawn, numbers, folders = torch.get_rng_state(), random.getstate(), list(sys.path)
    try:
        with (
            _ends_by_raising(),
            defaults(defaults_now()),
            torch.set_grad_enabled(torch.is_grad_enabled()),
        ):
            yield
    except MemplanError:
        raise
    except BaseException as error:
        where = _line_below(path.resolve().parent, error)
        if type(error) is KeyboardInterrupt or (isinstance(error, Exception) and not where):
            raise
        raise _raised(where or str(path), error) from error
    finally:
        torch.set_rng_state(drawn)
        random.setstate(numbers)
        sys.path[:] = folders


@contextmanager
def _ends_by_raising() -> Iterator[None]:
    """Inside, ``os._exit`` raises ``SystemExit`` in this process: it would end a command with the
    code of the user's choice, and neither a file nor a word."""
    own, end = os.getpid(), os._exit

    def ends(status: int) -> NoReturn:
        if os.getpid() != own:  # a fork of it
            end(status)
        raise SystemExit(status)

    with mock.patch.object(os, "_exit", ends):
        yield


def _line_below(folder: Path, error: BaseException) -> str:
    """The innermost line of a traceback that lies below ``folder``, or nothing."""
    from memplan.pytorch.places import is_users, place

    found = ""
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if is_users(file) and Path(file).is_relative_to(folder):
            found = place(file, line)
    return found


def returned_by(path: Path, name: str) -> object:
    """Run the file, as a module of its own, and what its function returns.

    Its folder is on the import path meanwhile, as it is where Python runs the file; for what the
    step imports later it stays there, behind all others.

    Raises:
        UsageError: the file or the function raises, there is no such function, or it leaves a mode
            of PyTorch entered.
    """
    file = path.resolve()
    folder, before, known, arguments = str(file.parent), _modes(), set(sys.modules), sys.argv
    sys.path.insert(0, folder)
    sys.argv = [str(file)]
    try:
        found = _called(_function(path, name), f"{name}() in {path}")
        left = [what for what, count in _modes().items() if count > before.get(what, 0)]
    finally:
        sys.argv = arguments
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
        raise _raised(what, error) from error


def _raised(where: str, error: BaseException) -> UsageError:
    """What the user's code raised, in one line."""
    try:
        said = next(iter(str(error).splitlines()), "")[:_LONGEST]
    except BaseException:  # that text is the user's code, too
        said = ""
    return UsageError(
        f"{where} raises {type(error).__name__}{f': {said}' if said else ''}",
        "-vv shows where; the code is yours",
    )


def _modes() -> dict[str, int]:
    """How many modes of PyTorch are entered, by what they are called."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "torch.inference_mode": int(torch.is_inference_mode_enabled()),
        "torch.autocast": sum(map(torch.is_autocast_enabled, ("cpu", "cuda"))),
    }


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
