"""Weights in .safetensors, of which all that the format forbids is refused."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memplan.errors import UsageError
from memplan.training.trained_weights import read_weights

VALUES = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float32)}
W = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
B = {"dtype": "F32", "shape": [3], "data_offsets": [24, 36]}
CONTENT = b"".join(value.tobytes() for value in VALUES.values())


def written(path: Path, header: object, content: bytes = CONTENT) -> Path:
    """A file with a header, as text or to be put into JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)
    return path


def test_a_file_that_keeps_to_the_format(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "b": B, "w": W}
    text = json.dumps(header).encode() + b"   "  # padding is allowed
    found = read_weights(written(tmp_path / "a.safetensors", text))
    assert {k: v.tobytes() for k, v in found.items()} == {k: v.tobytes() for k, v in VALUES.items()}
    assert found["w"].shape == (2, 3)


def other(**fields: Any) -> dict[str, Any]:
    return {"w": {**W, **fields}, "b": B}


FORBIDDEN: dict[str, tuple[object, str]] = {
    "two at one place": ({"w": W, "b": {**B, "data_offsets": [0, 12]}}, "overlaps the tensor"),
    "two that overlap": ({"w": W, "b": {**B, "data_offsets": [20, 32]}}, "overlaps the tensor"),
    "a hole": ({"w": W, "b": {**B, "data_offsets": [28, 40]}}, "leaves a hole"),
    "a hole at the begin": ({"b": B}, "leaves a hole"),
    "bytes behind the last": ({"w": W}, "24 bytes, and 36 follow the header"),
    "a name twice": (
        f'{{"w": {json.dumps(W)}, "b": {json.dumps(B)}, "w": {json.dumps(W)}}}'.encode(),
        "'w' stands in its header twice",
    ),
    "a shape below 0": (other(shape=[-2, -3]), r"has the shape \[-2, -3\]"),
    "a shape of texts": (other(shape=["2", 3]), "has the shape"),
    "a shape of fractions": (other(shape=[2.9, 3]), "has the shape"),
    "a shape of truths": (other(shape=[True, 6]), "has the shape"),
    "a shape without end": (other(shape=[2**70]), "has the shape"),
    "no shape": (other(shape=None), "has the shape None"),
    "another shape than its bytes": (other(shape=[3, 3]), "has 24 bytes, and its type and shape"),
    "another type than its bytes": (other(dtype="F64"), "has 24 bytes, and its type and shape"),
    "no such type": (other(dtype="F99"), "is of type 'F99'"),
    "a type that is a list": (other(dtype=["F32"]), "is of type"),
    "a place of texts": (other(data_offsets=["0", "24"]), "has the place"),
    "a place of fractions": (other(data_offsets=[0, 24.9]), "has the place"),
    "a place that ends before it begins": (other(data_offsets=[24, 0]), "has -24 bytes"),
    "a place of three": (other(data_offsets=[0, 24, 36]), "has the place"),
    "a field more": (other(extra=1), "fields dtype, shape and data_offsets"),
    "an entry that is a number": ({"w": 5}, "fields dtype, shape and data_offsets"),
    "a list": ([], "not a JSON object"),
    "a space before it": (b" " + json.dumps({"w": W, "b": B}).encode(), "not a JSON object"),
    "notes that are numbers": ({"__metadata__": {"a": 1}, "w": W, "b": B}, "mapping of texts"),
    "nested too deep": (b"[" * 200_000, "nested too deep"),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_the_format_forbids_is_refused(what: str, tmp_path: Path) -> None:
    header, words = FORBIDDEN[what]
    with pytest.raises(UsageError, match=words):
        read_weights(written(tmp_path / "a.safetensors", header))


@pytest.mark.parametrize("length", [2**64 - 1, 2**62, 10**8 + 1])
def test_a_header_that_says_it_is_longer_than_all(length: int, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    os.truncate(path, 3 * 10**8)  # takes no place
    with pytest.raises(UsageError, match=r"its header (is cut off|has 100,000,001 bytes)"):
        read_weights(path)


def test_a_large_file_of_nothing_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors", {})
    os.truncate(path, 6 << 30)  # takes no place
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="0 bytes, and 6,442,450,934 follow"):
            read_weights(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
