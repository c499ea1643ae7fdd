"""Options as Python gives them: of the kind that a field states, or an error of usage.

The command line checks what is typed by its own means; whoever calls a function gets the same
answers from here, before any work.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from memplan.errors import UsageError
from memplan.units import did_you_mean

_MOST_AT_ONCE = max(64, os.cpu_count() or 1)
MOST: Mapping[str, int] = {
    "seed": 2**32 - 1,
    "threads": _MOST_AT_ONCE,
    "jobs": _MOST_AT_ONCE,
}
"""Of whatever has such a number. NumPy's seeds end there; 1,024 threads on two cores, which wait by
spinning, took five minutes for two steps of a few milliseconds; a job is a process that holds a
model."""
_MOST_OF_ANY = 2**63 - 1  # where numbers of steps, sizes of ONNX and compiled code end
_NONE: Mapping[str, Any] = {}
_T = TypeVar("_T", bound=Callable[..., Any])


def refuses(**gone: str) -> Callable[[_T], _T]:
    """Decorates a function, or a dataclass of options, that had further keywords in earlier
    versions: whoever gives one is told what does the same now (a text for each), by a
    :class:`UsageError`."""

    def decorated(made: _T) -> _T:
        target = made.__init__ if isinstance(made, type) else made  # type: ignore[misc]

        @wraps(target)
        def call(*args: Any, **given: Any) -> Any:
            for name in given.keys() & gone.keys():
                raise UsageError(f"{made.__name__} no longer takes {name}", gone[name])
            return target(*args, **given)

        if not isinstance(made, type):
            return call  # type: ignore[return-value]
        made.__init__ = call  # type: ignore[misc]
        return made

    return decorated


def settle(
    options: object,
    least: Mapping[str, int] = _NONE,
    choices: Mapping[str, Sequence[str]] = _NONE,
) -> None:
    """Check every field of a frozen dataclass by its type, and turn what is as good into it.

    A path may be text; one glob may stand for a tuple of it. Fields of other types than numbers,
    texts, paths and tuples of texts are left alone.

    Args:
        options: it is changed, before anybody else has seen it.
        least: the smallest number that a field may have.
        choices: the texts that a field may have.

    Raises:
        UsageError: a value is of another kind, too small or large, no number, or none of the
            choices.
    """
    for name, kind in _kinds(type(options)).items():
        given = getattr(options, name)
        if given is None and type(None) in kind:
            continue
        reader = next((_READERS[each] for each in kind if each in _READERS), None)
        if reader is not None:
            object.__setattr__(options, name, reader(name, given))
    for name, smallest in least.items():
        given = getattr(options, name)
        if given is not None and given < smallest:
            raise UsageError(f"{name} is {given}", f"give at least {smallest}")
    check_most({name: getattr(options, name, None) for name in MOST})
    for name, known in choices.items():
        given = getattr(options, name)
        if given not in known:
            near = did_you_mean(given, known)
            raise UsageError(f"{name} is {given!r}", f"{near}expected one of: {', '.join(known)}")


def check_most(given: Mapping[str, int | None]) -> None:
    """Refuse numbers that are larger than any machine takes.

    Raises:
        UsageError: one is.
    """
    for name, number in given.items():
        if number is not None and number > MOST[name]:
            raise UsageError(f"{name} is {number:,}", f"give at most {MOST[name]:,}")


def _kinds(options: type) -> Mapping[str, tuple[Any, ...]]:
    """The types that every field may have."""
    hints = get_type_hints(options)
    union = (Union, type(int | str))
    return {n: get_args(h) if get_origin(h) in union else (h,) for n, h in hints.items()}


def _whole(name: str, given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise UsageError(f"{name} is {given!r}", "give a whole number")
    number = int(given)
    if abs(number) > _MOST_OF_ANY:
        raise UsageError(f"{name} is {number:,}", f"give at most {_MOST_OF_ANY:,}")
    return number


def _number(name: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, Real) or not math.isfinite(given):
        raise UsageError(f"{name} is {given!r}", "give a finite number")
    return float(given)


def _text(name: str, given: object) -> str:
    if not isinstance(given, str):
        raise UsageError(f"{name} is {given!r}", "give a text")
    return given


def _path(name: str, given: object) -> Path:
    if not isinstance(given, str | PathLike):
        raise UsageError(f"{name} is {given!r}", "give a path, as str or Path")
    return Path(given)


def _texts(name: str, given: object) -> tuple[str, ...]:
    several = (given,) if isinstance(given, str) else given
    if not isinstance(several, Sequence) or not all(isinstance(each, str) for each in several):
        raise UsageError(f"{name} is {given!r}", "give a text, or several")
    return tuple(several)


_READERS: Mapping[Any, Callable[[str, object], object]] = {
    int: _whole,
    float: _number,
    Path: _path,
    tuple[str, ...]: _texts,
    str: _text,
}
