"""The lock file and how it is read: every broken lock is one line that says where and what to do.

A lock is TOML with one table per model, keyed by the model's path relative to the lock's folder
(POSIX separators). :mod:`memplan.check.write` writes it.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from memplan.errors import LockError, UsageError
from memplan.runtime.providers import PROVIDERS
from memplan.simulate.session import SESSIONS
from memplan.units import parse_size

LOCK_VERSION = 1
_FIELDS = frozenset(
    {
        "accounting",
        "classes",
        "dims",
        "fingerprint",
        "peak_bytes",
        "peak_node",
        "peak_with_workspace_bytes",
        "provider",
        "session",
        "tolerance",
        "top",
    }
)
_TOP_FIELDS = frozenset({"name", "class", "count", "nbytes"})
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
    """How a model is looked at: sizes of its symbolic dimensions, session kind and provider."""

    dims: Mapping[str, int]
    session: str
    provider: str


@dataclass(frozen=True, slots=True)
class LockEntry:
    """What is committed about one model. Fields that end in ``_bytes`` are bytes.

    ``path`` is relative to the lock's folder. ``accounting`` is the version of memplan's memory
    model. ``top`` are the largest tensors at the peak, largest total first. ``tolerance`` is what
    a person wrote (a size, a percentage of the locked peak, or bytes); None is 0.
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

    @property
    def binding(self) -> Binding:
        """What the peak was found for."""
        return Binding(self.dims, self.session, self.provider)

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


def printable(text: str) -> str:
    """``text`` on one line: what no terminal shows is escaped.

    Names come from files that others wrote; raw, they could break a line or steer a terminal.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def path_problem(path: str) -> str | None:
    """Why ``path`` cannot be the path of an entry, or None when it can."""
    if not path or "\0" in path:
        return "is no path"
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
        data: dict[str, object] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_toml(path, text, error) from None
    source = _Source(path, text)
    version = data.get("version")
    if type(version) is not int:
        raise source.error("version", "the lock has no version number", _RESTORE)
    if version != LOCK_VERSION:
        hint = "upgrade memplan" if version > LOCK_VERSION else _RESTORE
        problem = f"lock version {version}, where this memplan reads version {LOCK_VERSION}"
        raise source.error("version", problem, hint)
    for name in sorted(set(data) - {"version", "models"}):
        raise source.error(name, f"unknown field '{printable(name)}'", _RESTORE)
    models = data.get("models", {})
    if not isinstance(models, dict):
        raise source.error("models", "'models' is not a table", _RESTORE)
    entries = {name: _Block(source, name, models[name]).entry() for name in sorted(models)}
    return Lock(path, entries, dict(source.headers), text)


def _read_text(path: Path) -> str:
    try:
        # Some editors put a byte order mark in front, which TOML does not know.
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise LockError(
            f"lock {path} does not exist", "record models: memplan check --update MODEL..."
        ) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise LockError(f"{path}:{line}: the lock is not UTF-8 text", _RESTORE) from None
    except OSError as error:
        raise LockError(f"lock {path} cannot be read: {error.strerror}") from None


def _not_toml(path: Path, text: str, error: Exception) -> LockError:
    conflict = _CONFLICT.search(text)
    if conflict is not None:
        line = text.count("\n", 0, conflict.start()) + 1
        return LockError(
            f"{path}:{line}: the lock holds an unresolved merge conflict",
            "keep one side of it, then run memplan check --update",
        )
    found = re.search(r"\(at line (\d+)", str(error))
    if found is not None:
        where = f"{path}:{found.group(1)}"
    else:
        where = (
            f"{path}:{text.count(chr(10)) + 1}" if "end of document" in str(error) else f"{path}"
        )
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).split(" (")[0]
    return LockError(f"{where}: the lock is not valid TOML: {printable(reason)}", _RESTORE)


class _Source:
    """The text of a lock, to tell on which line something stands."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        # Not splitlines: it also breaks at characters that TOML allows inside strings.
        self.lines = text.split("\n")
        self.headers: dict[str, int] = {}
        for number, line in enumerate(self.lines, 1):
            model = _header_model(line)
            if model is not None:
                self.headers.setdefault(model, number)

    def line_of(self, name: str, start: int = 1) -> int:
        """Line of ``name = ...`` from line ``start`` to the end of that table; 0 if not found."""
        pattern = re.compile(rf"\s*\"?{re.escape(name)}\"?\s*=")
        for number in range(start, len(self.lines) + 1):
            line = self.lines[number - 1]
            if pattern.match(line):
                return number
            if number > start and line.lstrip().startswith("["):
                break
        return 0

    def error(self, name: str, problem: str, hint: str, start: int = 1) -> LockError:
        """An error at the line of field ``name``, or of its table, or of the file alone."""
        line = self.line_of(name, start) or (start if start > 1 else 0)
        where = f"{self.path}:{line}" if line else f"{self.path}"
        return LockError(f"{where}: {problem}", hint)


def _header_model(line: str) -> str | None:
    """The model whose table this line opens; parsing it covers every way to quote a key."""
    line = line.strip()
    if not line.startswith("["):
        return None
    try:
        models = tomllib.loads(line).get("models")
    except (ValueError, RecursionError):
        return None
    return next(iter(models), None) if isinstance(models, dict) else None


class _Block:
    """The table of one model, field by field."""

    def __init__(self, source: _Source, path: str, table: object) -> None:
        self.source = source
        self.path = path
        self.start = source.headers.get(path, 1)
        if not isinstance(table, dict):
            raise self.error("", "is not a table")
        self.table: dict[str, object] = table

    def error(self, field: str, problem: str) -> LockError:
        """The error for one field, or for the whole block when ``field`` is empty."""
        model = f"model '{printable(self.path)}'"
        shown = f"'{printable(field)}' of {model}" if field else model
        hint = (
            "delete its table from the lock, then run memplan check --update with the model's path"
        )
        return self.source.error(field, f"{shown} {problem}", hint, self.start)

    def entry(self) -> LockEntry:
        """The whole block."""
        problem = path_problem(self.path)
        if problem is not None:
            raise self.error("", problem)
        for name in sorted(set(self.table) - _FIELDS):
            raise self.error(name, "is not a field that memplan knows")
        workspace = "peak_with_workspace_bytes"
        return LockEntry(
            path=self.path,
            fingerprint=self.text("fingerprint"),
            accounting=self.whole("accounting"),
            session=self.choice("session", SESSIONS),
            provider=self.choice("provider", PROVIDERS),
            dims=self.wholes("dims", least=1),
            peak_bytes=self.whole("peak_bytes"),
            peak_with_workspace_bytes=self.whole(workspace) if workspace in self.table else None,
            peak_node=self.text("peak_node"),
            classes=self.wholes("classes"),
            top=self.top(),
            tolerance=self.tolerance(),
        )

    def value(self, field: str) -> object:
        """A field that must be there."""
        if field not in self.table:
            raise self.error(field, "is missing")
        return self.table[field]

    def text(self, field: str) -> str:
        """A string."""
        value = self.value(field)
        if not isinstance(value, str):
            raise self.error(field, "is not a string")
        return value

    def choice(self, field: str, choices: tuple[str, ...]) -> str:
        """One of some strings."""
        value = self.text(field)
        if value not in choices:
            raise self.error(field, f"is '{printable(value)}', not one of {', '.join(choices)}")
        return value

    def whole(self, field: str) -> int:
        """A whole number from 0."""
        value = self.value(field)
        if type(value) is not int or value < 0:
            raise self.error(field, "is not a whole number from 0")
        return value

    def wholes(self, field: str, least: int = 0) -> dict[str, int]:
        """A table of whole numbers by name."""
        value = self.value(field)
        if not isinstance(value, dict):
            raise self.error(field, "is not a table")
        for name, number in value.items():
            if type(number) is not int or number < least:
                problem = f"has '{printable(name)}', which is not a whole number from {least}"
                raise self.error(field, problem)
        return value

    def top(self) -> tuple[TopTensors, ...]:
        """The array of the largest tensors."""
        value = self.value("top")
        if not isinstance(value, list):
            raise self.error("top", "is no array")
        return tuple(self.tensors(item) for item in value)

    def tensors(self, item: object) -> TopTensors:
        """One element of that array."""
        if not isinstance(item, dict) or set(item) != _TOP_FIELDS:
            raise self.error("top", "has an element other than {name, class, count, nbytes}")
        texts, numbers = (item["name"], item["class"]), (item["count"], item["nbytes"])
        if not all(isinstance(text, str) for text in texts):
            raise self.error("top", "has an element whose name or class is not a string")
        if any(type(number) is not int or number < 0 for number in numbers):
            raise self.error("top", "has an element whose count or nbytes is no whole number")
        return TopTensors(*texts, *numbers)

    def tolerance(self) -> str | int | None:
        """The tolerance as it was written."""
        value = self.table.get("tolerance")
        if value is None:
            return None
        example = 'is not a size or a percentage, such as "2MiB" or "1%"'
        if type(value) is int and value >= 0:
            return value
        if not isinstance(value, str):
            raise self.error("tolerance", example)
        try:
            tolerance_bytes(value, 0)
        except UsageError as error:
            raise self.error("tolerance", f"{example} ({printable(error.message)})") from None
        return value
