"""The lock file, read and written: every broken lock is one line that says where and what to do.

A lock is TOML with one table per model, keyed by the model's path relative to the lock's folder
(POSIX separators). Fields stand in the order of :data:`_FIELDS`, which says what each may hold; the
same peaks are the same bytes on every machine.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from memplan.api.check.peak import TOP_FAMILIES, Peak, TopTensors, tolerance_bytes
from memplan.api.check.toml import lines_of_tables, parse_toml, toml_value
from memplan.errors import LockError, UsageError
from memplan.options import SESSIONS
from memplan.proto.metadata import APART, IN_PLACE
from memplan.proto.paths import MOST_TEXT, file_problem, read_bytes
from memplan.proto.write import write_atomically
from memplan.providers import PROVIDERS
from memplan.units import printable

LOCK_VERSION = 1
# The largest size that ONNX, and memplan's arrays, can hold.
_MOST = 2**63 - 1
_RESTORE = "restore it from version control, or delete it and run memplan check --update MODEL..."
_CONFLICT = re.compile(r"^(<{7}|>{7})( |$)", re.MULTILINE)
_HEADER = f"""\
# Peak memory of one training step of each model, written by: memplan check --update
# The one field to edit by hand is a model's tolerance ("1%", "2MiB"); --update keeps it.
version = {LOCK_VERSION}
"""


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that was read: entries by path. ``text`` is the file's text, empty for a lock that
    does not exist yet."""

    path: Path
    entries: Mapping[str, Peak]
    text: str = ""


def path_problem(path: str) -> str:
    """Why ``path`` cannot be the path of an entry; empty when it can."""
    if not path or "\0" in path:
        return "is not a path"
    if path.startswith("/"):
        return "is absolute; paths are relative to the lock's folder"
    if posixpath.normpath(path) != path:
        return f"is not in its shortest form '{printable(posixpath.normpath(path))}'"
    return ""


def write_lock(path: Path, entries: Iterable[Peak]) -> None:
    """Replace the lock at ``path`` atomically.

    Raises:
        UsageError: the file cannot be written.
    """
    write_atomically(path, lock_text(entries).encode(), force=True)


def lock_text(entries: Iterable[Peak]) -> str:
    """The text of a lock with these entries, sorted by path."""
    return "\n".join([_HEADER, *map(_block, sorted(entries, key=lambda entry: entry.path))])


def _block(entry: Peak) -> str:
    """The table of one model."""
    written: dict[str, object] = {name: getattr(entry, name) for name in _FIELDS}
    written["dims"] = dict(sorted(entry.dims.items()))
    written["top"] = [
        {"name": t.name, "class": t.tensor_class, "count": t.count, "nbytes": t.nbytes}
        for t in entry.top[:TOP_FAMILIES]
    ]
    lines = [f"{name} = {toml_value(v)}\n" for name, v in written.items() if v is not None]
    return f"[models.{toml_value(entry.path)}]\n{''.join(lines)}"


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
    version = data.get("version")
    if type(version) is not int:
        raise LockError(f"{path}: the lock has no version number", _RESTORE)
    if version != LOCK_VERSION:
        hint = "upgrade memplan" if version > LOCK_VERSION else _RESTORE
        shown = f"{version}" if abs(version) <= _MOST else f"{str(version)[:9]}…"
        problem = f"lock version {shown}, where this memplan reads version {LOCK_VERSION}"
        raise LockError(f"{path}: {problem}", hint)
    for name in sorted(set(data) - {"version", "models"}):
        raise LockError(f"{path}: unknown field '{printable(name)}'", _RESTORE)
    models = data.get("models", {})
    if not isinstance(models, dict):
        raise LockError(f"{path}: 'models' is not a table", _RESTORE)
    source = _Source(path, lines_of_tables(text, "models"))
    entries = {name: _entry(source, name, models[name]) for name in sorted(models)}
    return Lock(path, entries, text)


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
    """Where a lock comes from, and the lines of its tables, to say in errors."""

    path: Path
    lines: Mapping[str, int]

    def error(self, model: str, field: str, problem: str, first: str = "") -> LockError:
        """The error for one field of a model, or for its whole table when ``field`` is empty."""
        named = f"model '{printable(model)}'"
        shown = f"'{printable(field)}' of {named}" if field else named
        where = f"{self.path}:{self.lines[model]}" if model in self.lines else f"{self.path}"
        hint = (
            "delete its table from the lock, then run memplan check --update with the model's path"
        )
        return LockError(f"{where}: {shown} {problem}", first + hint)


def _entry(source: _Source, path: str, table: object) -> Peak:
    """The table of one model, field by field."""
    if not isinstance(table, dict):
        raise source.error(path, "", "is not a table")
    if problem := path_problem(path):
        raise source.error(path, "", problem)
    for name in sorted(set(table) - set(_FIELDS)):
        first = "upgrade memplan if a newer one wrote the lock; else "
        raise source.error(path, name, "is not a field that memplan knows", first)
    line = source.lines.get(path, 0)
    values: dict[str, Any] = {"path": path, "line": line, **table}
    for name, problem_of in _FIELDS.items():
        if name in table:
            if problem := problem_of(table[name]):
                raise source.error(path, name, problem)
        elif name in _REQUIRED:
            raise source.error(path, name, "is missing")
    values["top"] = tuple(
        TopTensors(each["name"], each["class"], each["count"], each["nbytes"])
        for each in values["top"]
    )
    return Peak(**values)


def _text(value: object) -> str:
    return "" if isinstance(value, str) else "is not a string"


def _flag(value: object) -> str:
    return "" if isinstance(value, bool) else "is not true or false"


def _choice(choices: Collection[str], value: object) -> str:
    known = f"is '{printable(str(value))}', not one of {', '.join(choices)}"
    return _text(value) or ("" if value in choices else known)


def _is_whole(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value <= _MOST


def _whole(value: object) -> str:
    return "" if _is_whole(value) else "is not a whole number from 0 to 2^63 - 1"


def _wholes(least: int, value: object) -> str:
    """Of a table of whole numbers by name."""
    if not isinstance(value, dict):
        return "is not a table"
    for name, number in value.items():
        if not _is_whole(number, least):
            which = f"which is not a whole number from {least} to 2^63 - 1"
            return f"has '{printable(name)}', {which}"
    return ""


def _texts(value: object) -> str:
    """Of a table of strings by name."""
    texts = isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    return "" if texts else "is not a table of strings"


def _top(value: object) -> str:
    """Of the array of the largest tensors."""
    if not isinstance(value, list):
        return "is not an array"
    for item in value:
        if not isinstance(item, dict) or set(item) != {"name", "class", "count", "nbytes"}:
            return "has an element other than {name, class, count, nbytes}"
        if _text(item["name"]) or _text(item["class"]):
            return "has an element whose name or class is not a string"
        if _whole(item["count"]) or _whole(item["nbytes"]):
            return "has an element whose count or nbytes is not a whole number"
    return ""


def _tolerance(value: object) -> str:
    """Of the tolerance as it was written."""
    example = 'is not a size or a percentage, such as "2MiB" or "1%"'
    if _is_whole(value):
        return ""
    if not isinstance(value, str):
        return example
    try:
        tolerance_bytes(value, 0)
    except UsageError as error:
        return f"{example} ({printable(error.message)})"
    return ""


_FIELDS: Mapping[str, Callable[[object], str]] = {
    "fingerprint": _text,
    "accounting": _whole,
    "session": partial(_choice, SESSIONS),
    "provider": partial(_choice, PROVIDERS),
    "state": partial(_choice, (IN_PLACE, APART)),
    "runtime": _text,
    "torch": _text,
    "memplan": _text,
    "as_loaded": _flag,
    "dims": partial(_wholes, 1),
    "peak_bytes": _whole,
    "peak_with_workspace_bytes": _whole,
    "peak_node": _text,
    "classes": partial(_wholes, 0),
    "top": _top,
    "structure": _text,
    "operators": partial(_wholes, 0),
    "types": partial(_wholes, 0),
    "inputs": _texts,
    "tolerance": _tolerance,
}
"""The fields of an entry in their order, and what is wrong with a value: empty if nothing is."""
_REQUIRED = frozenset(_FIELDS) - {each.name for each in fields(Peak) if each.default is None}
