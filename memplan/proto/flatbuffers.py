"""Reads FlatBuffers, of files that nobody has checked.

The format (https://flatbuffers.dev/internals): a file begins with the offset of its root table and
four letters that name the format. A table begins with the distance back to its vtable, which holds,
behind two sizes, where in the table each field stands (0: it is absent). Strings, vectors and
tables are reached by unsigned offsets, and the former two begin with their length. All numbers are
little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from memplan.errors import ModelError


@dataclass(frozen=True, slots=True)
class Table:
    """A table at a place in a file; fields are known by their number in the schema.

    Whatever is asked for raises a ModelError where it lies outside of the file.
    """

    data: memoryview
    place: int
    shown: str

    def text(self, field: int) -> str:
        """A string field, which must be UTF-8; empty if it is absent."""
        try:
            return bytes(self.blob(field)).decode()
        except UnicodeDecodeError:
            raise self._damaged() from None

    def texts(self, field: int) -> tuple[str, ...]:
        """A vector of strings, which must be UTF-8."""
        return tuple(each._own_text() for each in self.tables(field))

    def blob(self, field: int) -> memoryview:
        """A vector of bytes; empty if it is absent."""
        first, count = self._vector(field, 1)
        return self.data[first : first + count]

    def integer(self, field: int, form: str) -> int:
        """A number, of a form that :mod:`struct` knows; 0 if it is absent."""
        place = self._field(field)
        return 0 if place is None else int(self._number(form, place))

    def real(self, field: int) -> float:
        """A float32; 0 if it is absent."""
        place = self._field(field)
        return 0.0 if place is None else float(self._number("<f", place))

    def integers(self, field: int) -> tuple[int, ...]:
        """A vector of int64; empty if it is absent."""
        first, count = self._vector(field, 8)
        return struct.unpack_from(f"<{count}q", self.data, first)

    def table(self, field: int) -> Table | None:
        """A table; None if it is absent."""
        place = self._field(field)
        return None if place is None else self._followed(place)

    def tables(self, field: int) -> Iterator[Table]:
        """A vector of tables."""
        first, count = self._vector(field, 4)
        for k in range(count):
            yield self._followed(first + 4 * k)

    def _own_text(self) -> str:
        """What stands here, if it is no table but a string."""
        count = self._number("<I", self.place)
        self._require(self.place + 4, count)
        try:
            return bytes(self.data[self.place + 4 : self.place + 4 + count]).decode()
        except UnicodeDecodeError:
            raise self._damaged() from None

    def _field(self, field: int) -> int | None:
        table = self.place - self._number("<i", self.place)
        self._require(table, 4)
        slot = 4 + 2 * field
        if slot + 2 > self._number("<H", table):
            return None
        offset = self._number("<H", table + slot)
        return self.place + offset if offset else None

    def _vector(self, field: int, size: int) -> tuple[int, int]:
        """Where the first element of ``size`` bytes lies, and how many there are; none if it is
        absent."""
        place = self._field(field)
        if place is None:
            return 0, 0
        place += self._number("<I", place)
        count = self._number("<I", place)
        self._require(place + 4, size * count)
        return place + 4, count

    def _followed(self, place: int) -> Table:
        return Table(self.data, place + self._number("<I", place), self.shown)

    def _number(self, form: str, place: int) -> int:
        self._require(place, struct.calcsize(form))
        found: int = struct.unpack_from(form, self.data, place)[0]
        return found

    def _require(self, place: int, count: int) -> None:
        if place < 0 or place + count > len(self.data):
            raise self._damaged()

    def _damaged(self) -> ModelError:
        return ModelError(f"{self.shown} is damaged or truncated", "copy or save it again")


def root_table(data: bytes, letters: bytes, shown: str) -> Table:
    """The root of a file that must begin with the format's four ``letters``.

    Raises:
        ModelError: it does not, or is truncated; ``shown`` names the file.
    """
    view = memoryview(data)
    if bytes(view[4:8]) != letters:
        raise ModelError(
            f"{shown} is not a file of the format {letters.decode()}",
            "checkpoints of onnxruntime-training 1.16 and newer are",
        )
    return Table(view, struct.unpack_from("<I", view, 0)[0], shown)
