"""Files of ONNX Runtime's own formats, which are FlatBuffers, of which nobody has checked them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from flatbuffers import number_types
from flatbuffers.table import Table as _Table

from memplan.errors import ModelError

BOOL, INT32, UINT32 = number_types.BoolFlags, number_types.Int32Flags, number_types.Uint32Flags
FLOAT32 = number_types.Float32Flags
_OFFSET_BYTES = number_types.UOffsetTFlags.bytewidth


class Table:
    """A table at a place in a file; fields are known by their number in the schema, and what is
    absent is empty, 0 or None.

    What lies outside of the file, or is no text, raises whatever :func:`damage_told` tells.
    """

    def __init__(self, data: memoryview, place: int) -> None:
        self._table = _Table(data, place)

    def text(self, field: int) -> str:
        """A string field."""
        return bytes(self.blob(field)).decode()

    def texts(self, field: int) -> tuple[str, ...]:
        """A vector of strings."""
        return tuple(bytes(self._content(place)).decode() for place in self._places(field))

    def blob(self, field: int) -> memoryview:
        """A vector of bytes."""
        return self._vector(field, 1)

    def number(self, field: int, kind: type) -> float:
        """A number of a kind of this module."""
        found: float = self._table.GetSlot(_slot(field), 0, kind)
        return found

    def integers(self, field: int) -> tuple[int, ...]:
        """A vector of int64."""
        content = self._vector(field, 8)
        return struct.unpack(f"<{len(content) // 8}q", content)

    def table(self, field: int) -> Table | None:
        """A table."""
        offset = self._table.Offset(_slot(field))
        if not offset:
            return None
        return Table(self._table.Bytes, self._table.Indirect(self._table.Pos + offset))

    def tables(self, field: int) -> Iterator[Table]:
        """A vector of tables."""
        return (Table(self._table.Bytes, place) for place in self._places(field))

    def _places(self, field: int) -> Iterator[int]:
        """Where the elements of a vector of tables or strings begin."""
        offset = self._table.Offset(_slot(field))
        if offset:
            first = self._table.Vector(offset)
            for k in range(self._table.VectorLen(offset)):
                yield self._table.Indirect(first + _OFFSET_BYTES * k)

    def _vector(self, field: int, size: int) -> memoryview:
        """A vector of elements of ``size`` bytes."""
        offset = self._table.Offset(_slot(field))
        if not offset:
            return memoryview(b"")
        return self._content(self._table.Indirect(self._table.Pos + offset), size)

    def _content(self, place: int, size: int = 1) -> memoryview:
        """What stands behind the number of elements at ``place``, all of it: the library's own
        strings end where the file does."""
        count = size * self._table.Get(number_types.UOffsetTFlags, place)
        found: memoryview = self._table.Bytes[place + _OFFSET_BYTES :][:count]
        if len(found) < count:
            raise IndexError(f"{count} bytes at {place}")
        return found


def _slot(field: int) -> int:
    """Where the offset of a field stands in a vtable, behind two sizes."""
    return 4 + 2 * field


def root_table(data: bytes, letters: bytes, shown: str) -> Table:
    """The root of a file that must begin with the format's four ``letters``.

    Raises:
        ModelError: it does not; ``shown`` names the file.
    """
    view = memoryview(data)
    if bytes(view[4:8]) != letters:
        raise ModelError(
            f"{shown} is not a file of the format {letters.decode()}",
            "checkpoints of onnxruntime-training 1.16 and newer are",
        )
    return Table(view, struct.unpack_from("<I", view, 0)[0])


@contextmanager
def damage_told(shown: str) -> Iterator[None]:
    """Tell what a block finds wrong in the file that it reads.

    Raises:
        ModelError: it is damaged or truncated; ``shown`` names the file.
    """
    try:
        yield
    except (struct.error, IndexError, TypeError, ValueError):
        raise ModelError(f"{shown} is damaged or truncated", "copy or save it again") from None
