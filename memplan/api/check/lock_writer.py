"""Writes a lock: TOML by hand, sorted, the same bytes for the same entries on every machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from memplan.api.check.lock import LOCK_VERSION, LockEntry
from memplan.proto.write import write_atomically

_HEADER = f"""\
# Peak memory of one training step of each model, written by: memplan check --update
# The one field to edit by hand is a model's tolerance ("1%", "2MiB"); --update keeps it.
version = {LOCK_VERSION}
"""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def write_lock(path: Path, entries: Iterable[LockEntry]) -> None:
    """Replace the lock at ``path`` atomically.

    Raises:
        UsageError: the file cannot be written.
    """
    write_atomically(path, lock_text(entries).encode(), force=True)


def lock_text(entries: Iterable[LockEntry]) -> str:
    """The text of a lock with these entries, sorted by path."""
    blocks = [_block(entry) for entry in sorted(entries, key=lambda entry: entry.path)]
    return "\n".join([_HEADER, *blocks])


def toml_string(text: str) -> str:
    """``text`` as a basic TOML string.

    Characters that no editor shows (controls, directional marks) are escaped, so that a reviewer
    sees what is there.
    """
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def _key(text: str) -> str:
    return text if _BARE_KEY.fullmatch(text) else toml_string(text)


def _inline(pairs: Mapping[str, Any]) -> str:
    if not pairs:
        return "{}"
    return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in pairs.items()) + " }"


def _value(value: int | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else toml_string(value)


def _block(entry: LockEntry) -> str:
    fields: list[tuple[str, int | str | None]] = [
        ("fingerprint", entry.fingerprint),
        ("accounting", entry.accounting),
        ("session", entry.session),
        ("provider", entry.provider),
        ("state", entry.state),
        ("runtime", entry.runtime),
        ("as_loaded", entry.as_loaded),
    ]
    peaks: list[tuple[str, int | str | None]] = [
        ("peak_bytes", entry.peak_bytes),
        ("peak_with_workspace_bytes", entry.peak_with_workspace_bytes),
        ("peak_node", entry.peak_node),
    ]
    lines = [f"[models.{toml_string(entry.path)}]", *_assignments(fields)]
    lines.append(f"dims = {_inline(dict(sorted(entry.dims.items())))}")
    lines += _assignments(peaks)
    lines.append(f"classes = {_inline(entry.classes)}")
    lines += _top(entry)
    lines += _traits(entry)
    lines += _assignments([("tolerance", entry.tolerance)])
    return "\n".join(lines) + "\n"


def _assignments(fields: Iterable[tuple[str, int | str | None]]) -> list[str]:
    return [f"{name} = {_value(value)}" for name, value in fields if value is not None]


def _traits(entry: LockEntry) -> list[str]:
    traits = entry.traits
    if traits is None:
        return []
    tables = (("operators", traits.operators), ("types", traits.types), ("inputs", traits.inputs))
    return [
        f"structure = {toml_string(traits.structure)}",
        *(f"{name} = {_inline(table)}" for name, table in tables),
    ]


def _top(entry: LockEntry) -> list[str]:
    if not entry.top:
        return ["top = []"]
    rows = [
        _inline({"name": t.name, "class": t.tensor_class, "count": t.count, "nbytes": t.nbytes})
        for t in entry.top
    ]
    return ["top = [", *(f"    {row}," for row in rows), "]"]
