"""Reads safetensors, of files that nobody has checked: the header first, then what is wanted of it.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the length of the
header, at most 100 MB; the header, a JSON object of every tensor's type, shape and place; and their
bytes. What it forbids is refused: a name twice, places that overlap or leave holes, bytes behind
the last one, a size other than that of type and shape.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.proto.paths import opened_file
from memplan.runtime.archive import BFLOAT16, Chosen, Header

Array = npt.NDArray[Any]

_MOST_HEADER = 100_000_000
_MOST_DIMS = 64  # of an array of NumPy
_LENGTH = 8
_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}
_KINDS: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}


def load_safetensors(path: Path, choose: Chosen = tuple) -> dict[str, Array]:
    """The arrays in a file that ``choose`` chooses by their headers; all of them by default.

    Raises:
        ValueError, OSError: it is damaged, against the format, or no such file.
    """
    with opened_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        length = int.from_bytes(stream.read(_LENGTH), "little")
        if size < _LENGTH or length > size - _LENGTH:
            raise ValueError("its header is cut off")
        if length > _MOST_HEADER:
            raise ValueError(f"its header has {length:,} bytes, of at most {_MOST_HEADER:,}")
        headers, places = _parsed(stream.read(length), size - _LENGTH - length)
        start = _LENGTH + length
        return {n: _read(stream, start + places[n], headers[n]) for n in choose(headers)}


def _read(stream: BufferedReader, place: int, header: Header) -> Array:
    values = np.empty(header.shape, header.dtype)
    stream.seek(place)
    if stream.readinto(values.reshape(-1).view(np.uint8).data) != header.nbytes:
        raise ValueError("it became shorter while it was read")
    return values


def _parsed(text: bytes, room: int) -> tuple[dict[str, Header], dict[str, int]]:
    """Headers and places of all tensors; together they are all that follows, ``room`` bytes.

    Raises:
        ValueError: it is not so.
    """
    try:
        entries = json.loads(text.decode(), object_pairs_hook=_without_repetition)
    except RecursionError:
        raise ValueError("its header is nested too deep") from None
    if not isinstance(entries, dict) or not text.startswith(b"{"):
        raise ValueError("its header is not a JSON object")
    notes = entries.pop(_METADATA, {})
    if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
        raise ValueError(f"its '{_METADATA}' is not a mapping of texts")
    headers: dict[str, Header] = {}
    ranges: dict[str, tuple[int, int]] = {}
    for name, entry in entries.items():
        headers[name], ranges[name] = _entry(name, entry)
    end = 0
    for name, (begin, after) in sorted(ranges.items(), key=lambda item: item[1]):
        if begin != end:
            what = "overlaps the tensor before it" if begin < end else "leaves a hole before it"
            raise ValueError(f"'{name}' {what}")
        end = after
    if end != room:
        raise ValueError(f"its tensors have {end:,} bytes, and {room:,} follow the header")
    return headers, {name: begin for name, (begin, _) in ranges.items()}


def _entry(name: str, entry: object) -> tuple[Header, tuple[int, int]]:
    """The header of a tensor, and where it begins and ends."""
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        raise ValueError(f"'{name}' does not have the fields dtype, shape and data_offsets alone")
    dtype, shape, place = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _KINDS:
        raise ValueError(f"'{name}' is of type {dtype!r:.40}")
    if not _are_sizes(shape) or len(shape) > _MOST_DIMS:
        raise ValueError(f"'{name}' has the shape {shape!r:.80}")
    if not _are_sizes(place) or len(place) != 2:
        raise ValueError(f"'{name}' has the place {place!r:.80}")
    header = Header(tuple(shape), _KINDS[dtype])
    nbytes = math.prod(shape) * header.dtype.itemsize
    if place[1] - place[0] != nbytes:
        raise ValueError(
            f"'{name}' has {place[1] - place[0]:,} bytes, and its type and shape {nbytes:,}"
        )
    return header, (place[0], place[1])


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"'{twice}' stands in its header twice")
    return found
