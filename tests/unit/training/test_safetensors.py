"""Weights in .safetensors, of files that nobody has checked: each is read, or refused in a line."""

import json
import os
import resource
import struct
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from memplan.errors import RuntimeUnavailableError, UsageError
from memplan.training.trained_weights import read_weights

pytest.importorskip("safetensors")

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


TYPES = {
    "F64": "f8",
    "F32": "f4",
    "F16": "f2",
    "BF16": ml_dtypes.bfloat16,
    "BOOL": "?",
    **{f"{kind}{8 * size}": f"{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)},
}


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_read_bit_by_bit(dtype: str, tmp_path: Path) -> None:
    values = np.array([[0, 1, 1]], TYPES[dtype])
    place = {"dtype": dtype, "shape": [1, 3], "data_offsets": [0, values.nbytes]}
    path = written(tmp_path / "a.safetensors", {"w": place}, values.tobytes())
    found = read_weights(path)["w"]
    assert (found.dtype, found.shape) == (values.dtype, (1, 3))
    assert found.tobytes() == values.tobytes()


def other(**fields: Any) -> dict[str, Any]:
    return {"w": {**W, **fields}, "b": B}


# What the package refuses comes in one line, whatever the file says of itself.
FORBIDDEN: dict[str, object] = {
    "two that overlap": {"w": W, "b": {**B, "data_offsets": [20, 32]}},
    "bytes behind the last": {"w": W},
    "more axes than NumPy has": other(shape=[2, 3] + [1] * 70),
    "another type than its bytes": other(dtype="F64"),
    "no such type": other(dtype="F99\n\x1b[2J" * 10_000),
    "a type that no step takes": {"w": {**W, "dtype": "F8_E4M3", "shape": [24]}, "b": B},
    "a list": [],
    "nested too deep": b"[" * 200_000,
    "no text": b"\xff" * 64,
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_the_format_forbids_is_refused(what: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.safetensors cannot be read as weights: .") as caught:
        read_weights(written(tmp_path / "a.safetensors", FORBIDDEN[what]))
    assert len(caught.value.message.splitlines()) == 1
    assert len(caught.value.message) < len(str(tmp_path)) + 300


@pytest.mark.parametrize("length", [2**64 - 1, 2**62, 10**8 + 1])
def test_a_header_that_says_it_is_longer_than_all(length: int, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    os.truncate(path, 3 * 10**8)  # takes no place
    with pytest.raises(UsageError, match="header too large"):
        read_weights(path)


def test_a_large_file_of_nothing_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors", {})
    os.truncate(path, 6 << 30)  # takes no place
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match="file not fully covered"):
        read_weights(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 17  # KiB, of 6 GiB


def test_without_the_package_a_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(RuntimeUnavailableError, match="package safetensors") as caught:
        read_weights(written(tmp_path / "a.safetensors", {"w": W, "b": B}))
    assert caught.value.hint == "pip install 'memplan[weights]'"
