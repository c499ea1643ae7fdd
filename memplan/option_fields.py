"""Options, each declared once: as the field of a frozen dataclass that says what it means and what
it may be.

The command line makes its options of these fields, help and checks included; whoever calls a
function from Python gets the same answers by :func:`settle`, before any work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from memplan.errors import UsageError
from memplan.units import SizeSpec, did_you_mean, parse_budget, parse_size

_MOST_OF_ANY = 2**63 - 1  # where numbers of steps, sizes of ONNX and compiled code end
_MOST_LIKELY_PERCENT = 100
_C = TypeVar("_C", bound=type)


@dataclass(frozen=True, slots=True)
class Option:
    """What a field says of itself.

    ``help`` is a sentence; ``unset`` says what the default comes to, where its value does not.
    ``least`` and ``most`` are the ends of a number's range, ``above`` what it must exceed,
    ``choices`` the texts that it may be. ``rarely``: it stands below the others.
    """

    help: str
    unset: str = ""
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    rarely: bool = False


def option(help: str, default: Any = MISSING, **further: Any) -> Any:
    """A field that is an option; ``further`` are fields of :class:`Option`."""
    return field(default=default, metadata={"option": Option(help, **further)})


@dataclass(frozen=True, slots=True)
class Declared:
    """An option as it was found: its name, what its values may be, and its default."""

    name: str
    kinds: tuple[Any, ...]
    default: Any
    option: Option


def declared(kind: type) -> dict[str, Declared]:
    """The options of a dataclass by name; fields that no command line has are not among them."""
    kinds = _kinds(kind)
    return {
        each.name: Declared(each.name, kinds[each.name], each.default, each.metadata["option"])
        for each in fields(kind)
        if "option" in each.metadata
    }


def with_help(kind: _C) -> _C:
    """Decorates a dataclass of options: its docstring ends with the help of each."""
    rows = [f"    {name}: {found.option.help}\n" for name, found in declared(kind).items()]
    kind.__doc__ = f"{(kind.__doc__ or '').rstrip()}\n\n{''.join(rows)}"
    return kind


def settle(options: object) -> None:
    """Check every field of a frozen dataclass of options, and turn what is as good into its type.

    A path and a size may be text; one glob may stand for a tuple of it. Fields of other types are
    left alone. ``options`` is changed, before anybody else has seen it.

    Raises:
        UsageError: a value is of another kind, too small or large, no number, or none of the
            choices.
    """
    kinds = _kinds(type(options))
    for each in fields(options):  # type: ignore[arg-type]
        name, given = each.name, getattr(options, each.name)
        if given is None and type(None) in kinds[name]:
            continue
        reader = next((_READERS[kind] for kind in kinds[name] if kind in _READERS), None)
        if reader is not None:
            given = reader(name, given)
            object.__setattr__(options, name, given)
        if "option" in each.metadata:
            _check(name, given, each.metadata["option"])


class Options:
    """What is asked of a function. Frozen dataclasses: :func:`settle` has checked every field."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check what was given."""
        settle(self)


def _check(name: str, given: Any, option: Option) -> None:
    if option.least is not None and given < option.least:
        raise UsageError(f"{name} is {given}", f"give at least {option.least}")
    if option.most is not None and given > option.most:
        raise UsageError(f"{name} is {given:,}", f"give at most {option.most:,}")
    if option.above is not None and given <= option.above:
        raise UsageError(f"{name} is {given:g}", f"give a finite number above {option.above:g}")
    if option.choices and given not in option.choices:
        near = did_you_mean(given, option.choices)
        known = ", ".join(option.choices)
        raise UsageError(f"{name} is {given!r}", f"{near}expected one of: {known}")


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


def _size(name: str, given: object) -> SizeSpec:
    """A size; a bare number that looks like a percentage is refused."""
    if isinstance(given, SizeSpec):
        return given
    if isinstance(given, int) and not isinstance(given, bool):
        if 0 < given <= _MOST_LIKELY_PERCENT:
            raise UsageError(f"a {name} of {given} is {given} bytes", f"did you mean '{given}%'?")
        return parse_size(str(given))
    if not isinstance(given, str):
        raise UsageError(
            f"a {name} is a size, not {type(given).__name__}",
            "write '4GB', '60%' of the peak before, or a whole number of bytes",
        )
    return parse_budget(given) if name == "budget" else parse_size(given)


_READERS: Mapping[Any, Callable[[str, object], object]] = {
    int: _whole,
    float: _number,
    Path: _path,
    tuple[str, ...]: _texts,
    str: _text,
    SizeSpec: _size,
}
