"""The user's code in our process: what it changes there holds for it, and not for us.

A function that is captured may change folder, leave a default device behind, close what it likes.
Whenever it or its loss has run, all of that is put back (:func:`their_turn`); what a step was made
under and may rely on (folder, environment, import path, PyTorch's defaults) is there again when it
runs next. It may also exit where it likes: :func:`foreign_code` has words for that.
"""

from __future__ import annotations

import builtins
import io
import json
import locale
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from memplan.errors import MemplanError, UsageError

if sys.platform != "win32":
    import resource

_LONGEST = 400
_TIMERS = ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")


class _Setting(NamedTuple):
    """Something that a process has one of."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


_Values = tuple[tuple[_Setting, Any], ...]
"""Settings, and what they were."""
_THEIRS: ContextVar[_Values | None] = ContextVar("theirs", default=None)
"""What the user's code relies on, as it left it."""


def _folder() -> str | None:
    with suppress(OSError):  # it is not there any more
        return os.getcwd()
    return None


def _go_to(folder: str | None) -> None:
    if folder is not None:
        with suppress(OSError):
            os.chdir(folder)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _set_environment(values: dict[str, str]) -> None:
    for name in os.environ.keys() - values.keys():
        del os.environ[name]
    os.environ.update(values)


def _contents(held: list[Any]) -> _Setting:
    """A list that stays the same object."""

    def write(values: list[Any]) -> None:
        held[:] = values

    return _Setting(lambda: list(held), write)


def _attribute(owner: Any, name: str) -> _Setting:
    return _Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _logging_level() -> tuple[int, int]:
    return logging.root.level, logging.root.manager.disable


def _set_logging_level(levels: tuple[int, int]) -> None:
    logging.root.setLevel(levels[0])
    logging.disable(levels[1])


def _handlers() -> dict[int, Any]:
    """Of signals, where this is the thread that may set them."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in found.items() if handler is not None}


def _set_handlers(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _timers() -> list[tuple[float, float]]:
    names = [name for name in _TIMERS if hasattr(signal, name)]
    return [signal.getitimer(getattr(signal, name)) for name in names]


def _stop_timers(before: list[tuple[float, float]]) -> None:
    for name, now, then in zip(_TIMERS, _timers(), before, strict=False):
        if now[0] and not then[0]:
            signal.setitimer(getattr(signal, name), 0)


def _limits() -> dict[int, tuple[int, int]]:
    """What the system lets this process use."""
    if sys.platform == "win32":
        return {}
    names = (name for name in dir(resource) if name.startswith("RLIMIT_"))
    return {number: resource.getrlimit(number) for number in {getattr(resource, n) for n in names}}


def _set_limits(limits: dict[int, tuple[int, int]]) -> None:
    for number, limit in limits.items():
        most = resource.getrlimit(number)[1]  # which only root raises again
        for wanted in (limit, (most, most)):
            with suppress(ValueError, OSError):
                resource.setrlimit(number, wanted)
                break


def _names(module: ModuleType) -> _Setting:
    """What a module's names stand for."""
    return _Setting(lambda: dict(vars(module)), vars(module).update)


def _now() -> tuple[_Setting, ...]:
    """What is put back as soon as the user's code has run."""
    found = [
        _Setting(_umask, os.umask),
        _Setting(_limits, _set_limits),
        *map(_names, (os, io, json, tempfile)),  # with which files are written
        _Setting(_timers, _stop_timers),
        _Setting(_handlers, _set_handlers),
        _Setting(lambda: locale.setlocale(locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)),
        _Setting(_logging_level, _set_logging_level),
        _contents(logging.root.handlers),
        _contents(sys.meta_path),
        *(_attribute(sys, name) for name in ("stdout", "stderr", "excepthook", "unraisablehook")),
        _attribute(builtins, "__import__"),
        _attribute(builtins, "open"),
    ]
    torch = sys.modules.get("torch")
    if torch is not None:
        found.append(_Setting(torch.is_grad_enabled, torch.set_grad_enabled))
    return tuple(found)


def _default_device() -> Any:
    """What was given to ``torch.set_default_device``; asking PyTorch makes a tensor."""
    held = getattr(sys.modules["torch"], "_GLOBAL_DEVICE_CONTEXT", None)
    return getattr(getattr(held, "device_context", None), "device", None)


def _relied_on() -> tuple[_Setting, ...]:
    """What is there again when the user's code runs once more."""
    found = [
        _Setting(_folder, _go_to),
        _Setting(lambda: dict(os.environ), _set_environment),
        _contents(sys.path),
        _attribute(sys, "argv"),
    ]
    torch = sys.modules.get("torch")
    if torch is not None:
        found += [
            _Setting(torch.get_default_dtype, torch.set_default_dtype),
            _Setting(_default_device, torch.set_default_device),
        ]
    return tuple(found)


def _at_the_end() -> tuple[_Setting, ...]:
    """What stays as the user's code has it until the step is captured."""
    found = [
        _Setting(sys.getrecursionlimit, sys.setrecursionlimit),
        _Setting(random.getstate, random.setstate),
    ]
    torch = sys.modules.get("torch")
    if torch is not None:
        found += [
            _Setting(torch.is_anomaly_enabled, torch.set_anomaly_enabled),
            _Setting(torch.get_num_threads, torch.set_num_threads),
            _Setting(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
            _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
            _Setting(torch.get_rng_state, torch.set_rng_state),
        ]
    return tuple(found)


def _read(settings: Sequence[_Setting]) -> _Values:
    return tuple((setting, setting.read()) for setting in settings)


def _write(values: _Values) -> None:
    for setting, value in values:
        now = setting.read()
        if now is not value and not _same(now, value):
            setting.write(value)


def _same(now: Any, value: Any) -> bool:
    equal = now == value
    return bool(equal.all() if hasattr(equal, "all") else equal)


@contextmanager
def their_turn(first: bool = False) -> Iterator[None]:
    """Inside, the user's code runs, with what it left behind the last time; behind it, all is as it
    was before. Without effect but for code that is captured from a file (:func:`foreign_code`).

    Args:
        first: there is no last time.
    """
    theirs = _THEIRS.get()
    if theirs is None and not first:
        yield
        return
    process, limit = os.getpid(), sys.getrecursionlimit()
    ours = _read((*_now(), *_relied_on()))
    if theirs is not None:
        _write(theirs)
    try:
        if first:
            with warnings.catch_warnings():
                yield
        else:
            yield
    finally:
        if os.getpid() != process:  # a fork, which would do all that follows once more
            os._exit(0)
        _THEIRS.set(_read(_relied_on()))
        sys.setrecursionlimit(max(limit, sys.getrecursionlimit()))
        _write(ours)


@contextmanager
def foreign_code(path: Path) -> Iterator[None]:
    """Inside, code of the file ``path`` runs every now and then.

    Raises:
        UsageError: it raises what nobody handles: it exits, say.
    """
    before, token = _read(_at_the_end()), _THEIRS.set(None)
    try:
        yield
    except MemplanError:
        raise
    except BaseException as error:
        where = _line_below(path.resolve().parent, error)
        if type(error) is KeyboardInterrupt or (isinstance(error, Exception) and not where):
            raise
        raise raised(where or str(path), error) from error
    finally:
        _THEIRS.reset(token)
        _write(before)


def _line_below(folder: Path, error: BaseException) -> str:
    """The innermost line of a traceback that lies below ``folder``, or nothing."""
    from memplan.pytorch.places import is_users, place

    found, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_users(file) and Path(file).is_relative_to(folder):
            found = place(file, trace.tb_lineno)
        trace = trace.tb_next
    return found


def raised(where: str, error: BaseException) -> UsageError:
    """What the user's code raised, in one line."""
    try:
        said = next(iter(str(error).splitlines()), "")[:_LONGEST]
    except BaseException:  # that text is the user's code, too
        said = ""
    return UsageError(
        f"{where} raises {type(error).__name__}{f': {said}' if said else ''}",
        "-vv shows where; the code is yours",
    )


def modes() -> dict[str, int]:
    """How many modes of PyTorch are entered, by what they are called."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    from torch.overrides import _get_current_function_mode_stack

    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    functions = [mode for mode in _get_current_function_mode_stack() if mode is not default]
    return {
        "torch.inference_mode": int(torch.is_inference_mode_enabled()),
        "torch.autocast": sum(map(torch.is_autocast_enabled, ("cpu", "cuda"))),
        "a mode (torch.device, TorchFunctionMode)": len(functions),
        "a TorchDispatchMode": torch._C._len_torch_dispatch_stack(),
    }
