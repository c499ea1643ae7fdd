"""The lock file and how it is read: every broken lock is one line that says where and what to do.

A lock is TOML with one table per model, keyed by the model's path relative to the lock's folder
(POSIX separators). :mod:`memplan.api.check.lock_writer` writes it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from memplan.api.check.toml import Lines, parse_toml
from memplan.api.check.traits import Traits
from memplan.errors import LockError, UsageError
from memplan.proto.metadata import APART, IN_PLACE
from memplan.proto.paths import MOST_TEXT, file_problem, read_bytes
from memplan.runtime.providers import PROVIDERS
from memplan.simulate.session import SESSIONS
from memplan.units import parse_size, printable

LOCK_VERSION = 1
# The largest size that ONNX, and memplan's arrays, can hold.
_MOST = 2**63 - 1
_RESTORE = "restore it from version control, or delete it and run memplan check --update MODEL..."
_CONFLICT = re.compile(r"^(<{7}|>{7})( |$)", re.MULTILINE)
_ZERO = re.compile(r"^\s*0+(\.0+)?\s*(%|[kKMGT]?i?B)?\s*$")


@dataclass(frozen=True, slots=True)
class TopTensors:
    """Tensors of one family that are in memory at the peak: ``count`` of ``nbytes`` bytes each.

    ``name`` is a tensor's name, or what a family of several has in common, with ``*`` in place of
    numbers.
    """

    name: str
    tensor_class: str
    count: int
    nbytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all of them."""
        return self.count * self.nbytes


@dataclass(frozen=True, slots=True)
class Binding:
    """How a model is looked at: sizes of its symbolic dimensions, session kind and provider.

    ``state`` is where its state lies: empty, as the file is run; ``apart``; None: as a lock means
    it that does not say (:func:`memplan.api.state_modes.as_recorded`).
    """

    dims: Mapping[str, int]
    session: str
    provider: str
    state: str | None = ""


@dataclass(frozen=True, slots=True)
class LockEntry:
    """What is committed about one model. Fields that end in ``_bytes`` are bytes.

    ``path`` is relative to the lock's folder. ``accounting`` is the version of memplan's memory
    model. ``top`` are the largest tensors at the peak, largest total first. ``tolerance`` is what
    a person wrote (a size, a percentage of the locked peak, or bytes); None is 0. ``runtime`` is
    the version of ONNX Runtime that was installed (None: none was, or an older memplan wrote the
    entry). ``state``: ``in-place`` or ``apart``, as it was counted (None: the file said nothing
    of it, or an older memplan wrote the entry). ``as_loaded`` is there where figures rest on what
    that runtime makes of the file when it loads it; False: it could not be asked. ``traits`` name
    the cause of a growth (None: an older memplan wrote the entry).
    """

    path: str
    fingerprint: str
    accounting: int
    session: str
    provider: str
    dims: Mapping[str, int]
    peak_bytes: int
    peak_with_workspace_bytes: int | None
    peak_node: str
    classes: Mapping[str, int]
    top: tuple[TopTensors, ...]
    tolerance: str | int | None = None
    runtime: str | None = None
    state: str | None = None
    as_loaded: bool | None = None
    traits: Traits | None = None

    @property
    def rests_on(self) -> tuple[bool | None, str | None]:
        """What of the runtime the figures rest on; entries in which that differs do not compare."""
        return self.as_loaded, self.runtime if self.as_loaded else None

    @property
    def binding(self) -> Binding:
        """What the peak was found for."""
        state = "" if self.state == IN_PLACE else self.state
        return Binding(self.dims, self.session, self.provider, state)

    @property
    def limit_bytes(self) -> int:
        """The peak that the model is held to: the locked one and the tolerance."""
        return self.peak_bytes + tolerance_bytes(self.tolerance, self.peak_bytes)


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that was read: entries by path, and the line of each one's table header (from 1).

    ``text`` is the file's text, empty for a lock that does not exist yet.
    """

    path: Path
    entries: Mapping[str, LockEntry]
    lines: Mapping[str, int]
    text: str = ""


def tolerance_bytes(tolerance: str | int | None, peak_bytes: int) -> int:
    """A tolerance in bytes; a percentage is taken of ``peak_bytes`` and rounded down.

    Raises:
        UsageError: the text is neither a size nor a percentage.
    """
    if tolerance is None:
        return 0
    if isinstance(tolerance, int):
        return tolerance
    # A budget of 0 is an error, a tolerance of 0 is the default spelled out.
    return 0 if _ZERO.match(tolerance) else parse_size(tolerance).resolve(peak_bytes)


def path_problem(path: str) -> str | None:
    """Why ``path`` cannot be the path of an entry, or None when it can."""
    if not path or "\0" in path:
        return "is not a path"
    if path.startswith("/"):
        return "is absolute; paths are relative to the lock's folder"
    if posixpath.normpath(path) != path:
        return f"is not in its shortest form '{printable(posixpath.normpath(path))}'"
    return None


def read_lock(path: Path) -> Lock:
    """Read and check the lock at ``path``.

    Raises:
        LockError: the lock is missing, not TOML, of another version, or a field is missing,
            unknown or of the wrong type.
    """
    text = _read_text(path)
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise _not_toml(path, text, str(error)) from None
    source = _Source(path, Lines(text, "models"))
    version = data.get("version")
    if type(version) is not int:
        raise source.error("version", "the lock has no version number", _RESTORE)
    if version != LOCK_VERSION:
        hint = "upgrade memplan" if version > LOCK_VERSION else _RESTORE
        shown = f"{version}" if abs(version) <= _MOST else f"{str(version)[:9]}…"
        problem = f"lock version {shown}, where this memplan reads version {LOCK_VERSION}"
        raise source.error("version", problem, hint)
    for name in sorted(set(data) - {"version", "models"}):
        raise source.error(name, f"unknown field '{printable(name)}'", _RESTORE)
    models = data.get("models", {})
    if not isinstance(models, dict):
        raise source.error("models", "'models' is not a table", _RESTORE)
    entries = {name: _entry(source, name, models[name]) for name in sorted(models)}
    return Lock(path, entries, dict(source.lines.headers), text)


def _read_text(path: Path) -> str:
    try:
        # Some editors put a byte order mark in front, which TOML does not know.
        return read_bytes(path, MOST_TEXT).decode("utf-8-sig")
    except FileNotFoundError:
        raise LockError(
            f"lock {path} does not exist", "record models: memplan check --update MODEL..."
        ) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise LockError(f"{path}:{line}: the lock is not UTF-8 text", _RESTORE) from None
    except OSError as error:
        raise LockError(f"lock {path} cannot be read: {file_problem(error)}") from None


def _not_toml(path: Path, text: str, problem: str) -> LockError:
    conflict = _CONFLICT.search(text)
    if conflict is not None:
        line = text.count("\n", 0, conflict.start()) + 1
        return LockError(
            f"{path}:{line}: the lock holds an unresolved merge conflict",
            "keep one side of it, then run memplan check --update",
        )
    found = re.search(r"\(at line (\d+)", problem)
    where = f"{path}"
    if found is not None:
        where = f"{path}:{found.group(1)}"
    elif "end of document" in problem:
        where = f"{path}:{text.count(chr(10)) + 1}"
    reason = printable(problem.split(" (")[0])
    return LockError(f"{where}: the lock is not valid TOML: {reason}", _RESTORE)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a lock comes from, to say in errors where something stands."""

    path: Path
    lines: Lines

    def error(self, name: str, problem: str, hint: str, start: int = 1) -> LockError:
        """An error at the line of field ``name``, or of its table, or of the file alone."""
        line = self.lines.line_of(name, start) or (start if start > 1 else 0)
        where = f"{self.path}:{line}" if line else f"{self.path}"
        return LockError(f"{where}: {problem}", hint)

    def entry_error(self, model: str, field: str, problem: str, first: str = "") -> LockError:
        """The error for one field of a model, or for its whole table when ``field`` is empty."""
        named = f"model '{printable(model)}'"
        shown = f"'{printable(field)}' of {named}" if field else named
        hint = (
            "delete its table from the lock, then run memplan check --update with the model's path"
        )
        return self.error(
            field, f"{shown} {problem}", first + hint, self.lines.headers.get(model, 1)
        )


def _entry(source: _Source, path: str, table: object) -> LockEntry:
    """The table of one model, field by field."""
    problem = "is not a table" if not isinstance(table, dict) else path_problem(path)
    if problem is not None:
        raise source.entry_error(path, "", problem)
    assert isinstance(table, dict)
    for name in sorted(set(table) - set(_FIELDS)):
        first = "upgrade memplan if a newer one wrote the lock; else "
        raise source.entry_error(path, name, "is not a field that memplan knows", first)
    values: dict[str, Any] = {}
    for name, read in _FIELDS.items():
        if name in table:
            try:
                values[name] = read(table[name])
            except _Wrong as wrong:
                raise source.entry_error(path, name, wrong.problem) from None
        elif name not in _OPTIONAL:
            raise source.entry_error(path, name, "is missing")
    told = {name: values.pop(name) for name in _TRAITS if name in values}
    traits = Traits(**told) if len(told) == len(_TRAITS) else None
    optional = dict.fromkeys(name for name in _OPTIONAL if name not in _TRAITS)
    return LockEntry(path=path, traits=traits, **{**optional, **values})


class _Wrong(Exception):
    """A value that a field cannot have; ``problem`` completes "'peak_bytes' of model 'm.onnx'"."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _Wrong("is not a string")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Wrong("is not true or false")
    return value


def _choice(choices: tuple[str, ...], value: object) -> str:
    if _text(value) not in choices:
        raise _Wrong(f"is '{printable(_text(value))}', not one of {', '.join(choices)}")
    return _text(value)


def _is_whole(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value <= _MOST


def _whole(value: object) -> object:
    if not _is_whole(value):
        raise _Wrong("is not a whole number from 0 to 2^63 - 1")
    return value


def _wholes(least: int, value: object) -> Mapping[str, int]:
    """A table of whole numbers by name."""
    if not isinstance(value, dict):
        raise _Wrong("is not a table")
    for name, number in value.items():
        if not _is_whole(number, least):
            which = f"which is not a whole number from {least} to 2^63 - 1"
            raise _Wrong(f"has '{printable(name)}', {which}")
    return value


def _texts(value: object) -> Mapping[str, str]:
    """A table of strings by name."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _Wrong("is not a table of strings")
    return value


def _top(value: object) -> tuple[TopTensors, ...]:
    """The array of the largest tensors."""
    if not isinstance(value, list):
        raise _Wrong("is not an array")
    return tuple(map(_tensors, value))


def _tensors(item: object) -> TopTensors:
    if not isinstance(item, dict) or set(item) != {"name", "class", "count", "nbytes"}:
        raise _Wrong("has an element other than {name, class, count, nbytes}")
    texts, numbers = (item["name"], item["class"]), (item["count"], item["nbytes"])
    if not all(isinstance(text, str) for text in texts):
        raise _Wrong("has an element whose name or class is not a string")
    if not all(map(_is_whole, numbers)):
        raise _Wrong("has an element whose count or nbytes is not a whole number")
    return TopTensors(*texts, *numbers)


def _tolerance(value: object) -> object:
    """The tolerance as it was written."""
    example = 'is not a size or a percentage, such as "2MiB" or "1%"'
    if _is_whole(value):
        return value
    if not isinstance(value, str):
        raise _Wrong(example)
    try:
        tolerance_bytes(value, 0)
    except UsageError as error:
        raise _Wrong(f"{example} ({printable(error.message)})") from None
    return value


_FIELDS: Mapping[str, Callable[[object], object]] = {
    "fingerprint": _text,
    "accounting": _whole,
    "session": partial(_choice, SESSIONS),
    "provider": partial(_choice, PROVIDERS),
    "dims": partial(_wholes, 1),
    "peak_bytes": _whole,
    "peak_with_workspace_bytes": _whole,
    "peak_node": _text,
    "classes": partial(_wholes, 0),
    "top": _top,
    "tolerance": _tolerance,
    "runtime": _text,
    "state": partial(_choice, (IN_PLACE, APART)),
    "as_loaded": _flag,
    "structure": _text,
    "operators": partial(_wholes, 0),
    "types": partial(_wholes, 0),
    "inputs": _texts,
}
_TRAITS = ("structure", "operators", "types", "inputs")
_OPTIONAL = ("peak_with_workspace_bytes", "tolerance", "runtime", "state", "as_loaded", *_TRAITS)
