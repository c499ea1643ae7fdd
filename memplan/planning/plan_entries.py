"""Entries of a JSON file that anybody may have edited: of the wanted kind, or an error that says
which entry is not."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from memplan.errors import PlanError
from memplan.units import printable

_MOST = 2**63 - 1
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of a plan ``file``; ``place`` is where it stands, empty for the whole.

    Every method that reads a key raises a ``PlanError`` where the key is missing or has a value of
    another kind.
    """

    value: object
    place: str
    file: str

    @property
    def is_none(self) -> bool:
        """Whether it is null."""
        return self.value is None

    def get(self, key: str) -> Entry:
        """What stands under a key."""
        where = f"{self.place}.{key}" if self.place else key
        if not isinstance(self.value, dict):
            raise self.wrong("", "expected an object")
        if key not in self.value:
            raise PlanError(f"{self.file} is not a plan: {printable(where)} is missing", _HINT)
        return Entry(self.value[key], where, self.file)

    def wrong(self, key: str, expected: str) -> PlanError:
        """The error for the value of a key; of none: for the value itself."""
        found = self.get(key) if key else self
        if isinstance(found.value, dict | list):
            shown = "an object" if isinstance(found.value, dict) else "a list"
        else:
            shown = printable(json.dumps(found.value))
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        where = f"{printable(found.place)}: " if found.place else ""
        return PlanError(f"{self.file} is not a plan: {where}{expected}, got {shown}", _HINT)

    def text(self, key: str) -> str:
        """A text."""
        found = self.get(key).value
        if not isinstance(found, str):
            raise self.wrong(key, "expected a text")
        return found

    def text_or_none(self, key: str) -> str | None:
        """A text; None where the key is missing or null."""
        return self.text(key) if self._has(key) else None

    def whole(self, key: str) -> int:
        """A whole number that is not negative."""
        found = self.get(key).value
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= _MOST:
            raise self.wrong(key, "expected a whole number from 0 on")
        return found

    def whole_or_none(self, key: str) -> int | None:
        """The same; None where the key is missing or null."""
        return self.whole(key) if self._has(key) else None

    def number(self, key: str, least: float = -math.inf) -> float:
        """A finite number, ``least`` or more."""
        found = self.get(key).value
        if isinstance(found, int) and not isinstance(found, bool) and abs(found) <= _MOST:
            found = float(found)
        if not isinstance(found, float) or not math.isfinite(found):
            raise self.wrong(key, "expected a finite number")
        if found < least:
            raise self.wrong(key, f"expected a number from {least:g} on")
        return found

    def one_of(self, key: str, known: Collection[str]) -> str:
        """One of the texts ``known``."""
        found = self.text(key)
        if found not in known:
            raise self.wrong(key, f"expected one of {', '.join(known)}")
        return found

    def flag(self, key: str) -> bool:
        """True or false."""
        found = self.get(key).value
        if not isinstance(found, bool):
            raise self.wrong(key, "expected true or false")
        return found

    def items(self, key: str) -> Iterator[Entry]:
        """The elements of a list."""
        found = self.get(key)
        if not isinstance(found.value, list):
            raise self.wrong(key, "expected a list")
        for number, value in enumerate(found.value):
            yield Entry(value, f"{found.place}[{number}]", self.file)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(str(each.value) for each in self._all(self.items(key), str, "expected a text"))

    def texts_of(self, key: str, known: Collection[str]) -> tuple[str, ...]:
        """A list of some of the texts ``known``."""
        texts = self.texts(key)
        for entry in self.items(key):
            if entry.value not in known:
                raise entry.wrong("", f"expected one of {', '.join(known)}")
        return texts

    def text_by_name(self, key: str) -> Mapping[str, str]:
        """An object of texts."""
        found, names = self._fields(key)
        return {name: found.text(name) for name in names}

    def whole_by_name(self, key: str) -> Mapping[str, int]:
        """An object of whole numbers."""
        found, names = self._fields(key)
        return {name: found.whole(name) for name in names}

    def _fields(self, key: str) -> tuple[Entry, Iterable[str]]:
        found = self.get(key)
        if not isinstance(found.value, dict):
            raise self.wrong(key, "expected an object")
        return found, found.value.keys()

    def _has(self, key: str) -> bool:
        if not isinstance(self.value, dict):
            raise self.wrong("", "expected an object")
        return self.value.get(key) is not None

    @staticmethod
    def _all(entries: Iterator[Entry], kind: type, expected: str) -> Iterator[Entry]:
        for each in entries:
            if not isinstance(each.value, kind):
                raise each.wrong("", expected)
            yield each


_HINT = "memplan rewrite MODEL --plan-out FILE writes one"
