"""Arrays by name in one file, as processes exchange them.

An ``.npz``. Names come from models: what a member of an archive cannot be called is numbered, and
``#names.json`` lists the names then.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

_NAMES = "#names.json"
_SIMPLE = re.compile(r"[\w./:-]{1,200}")

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""The bits of bfloat16, a type that NumPy does not have, in one that it can write and read."""


def bfloat16_bits(values: npt.NDArray[np.float32]) -> Array:
    """float32 as bfloat16, cut: the upper half of the bits."""
    upper: Array = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return upper.view(BFLOAT16)


def bfloat16_values(bits: Array) -> npt.NDArray[np.float32]:
    """bfloat16 as float32, exactly."""
    wide = bits.view(np.uint16).astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)


def save_arrays(path: Path | IO[bytes], arrays: Mapping[str, Any]) -> None:
    """Write arrays by name; strings, and what is no tensor (a sequence of them), as text."""
    keys = [_key(name, index) for index, name in enumerate(arrays)]
    with zipfile.ZipFile(path, "w") as archive:
        for key, value in zip(keys, arrays.values(), strict=True):
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, _plain(value), allow_pickle=False)
        if keys != list(arrays):
            archive.writestr(_NAMES, json.dumps(list(arrays)))


def load_arrays(path: Path) -> dict[str, Array]:
    """All arrays in such a file."""
    with np.load(path) as archive:
        if _NAMES not in archive:
            return dict(archive.items())
        names: list[str] = json.loads(archive[_NAMES])
        return {name: archive[_key(name, index)] for index, name in enumerate(names)}


def array_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays in such a file, by key, which are not read."""
    with zipfile.ZipFile(path) as archive:
        keys = [name for name in archive.namelist() if name.endswith(".npy")]
        return {key.removesuffix(".npy"): array_header(archive, key)[0] for key in keys}


def array_header(archive: zipfile.ZipFile, member: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and element type of an array in an archive, which is not read.

    Raises:
        ValueError: it is not an array of numbers.
    """
    form = np.lib.format
    with archive.open(member) as file:
        version = form.read_magic(file)
        read = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"version {version} of .npy is not an array of numbers")
        shape, _, dtype = read(file)
    return shape, dtype


def _key(name: str, index: int) -> str:
    """``name`` where a member of an archive may be called so, else its number."""
    return name if _SIMPLE.fullmatch(name) else f"#{index}"


def digests(outputs: Iterable[Any]) -> tuple[str, ...]:
    """One digest per output: element type, shape and bits."""
    found = []
    for output in outputs:
        value = _plain(output)
        digest = hashlib.blake2b(f"{value.dtype}{value.shape}".encode(), digest_size=16)
        digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        found.append(digest.hexdigest())
    return tuple(found)


def _plain(value: Any) -> Array:
    """A value as NumPy can write it without pickling."""
    if not isinstance(value, np.ndarray):
        return np.asarray(value if isinstance(value, np.generic) else repr(value))
    if value.dtype.kind == "O":
        return np.asarray([str(v) for v in value.reshape(-1)], dtype=str).reshape(value.shape)
    return value
