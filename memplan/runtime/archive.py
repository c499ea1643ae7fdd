"""Arrays by name in one file, as processes exchange them.

An ``.npz``. Names come from models: what a member of an archive cannot be called is numbered, and
``#names.json`` lists the names then.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from memplan.errors import MemplanError, UsageError
from memplan.proto.paths import file_problem, opened_file

Array = npt.NDArray[np.generic]

_NAMES = "#names.json"
_SUFFIX = ".npy"
_SIMPLE = re.compile(r"[\w./:-]{1,200}")
_CHUNK = 1 << 16
_MOST_NAMES = 1 << 28  # bytes of the list of names
_MOST_UNPACKED = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
"""How many bytes one packed byte can come to (https://zlib.net/zlib_tech.html), of the methods that
numpy writes."""
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
_AS_WRITTEN = (np.dtype("V2"), np.dtype([("bfloat16", np.uint16)]))
"""bfloat16 in files: as NumPy writes the types of other libraries, and as memplan did before."""


def restored(values: Array) -> Array:
    """Values of bfloat16, however a file has them, in that type; all others as they are."""
    return values.view(BFLOAT16) if values.dtype in _AS_WRITTEN else values


def save_arrays(
    path: Path | IO[bytes], arrays: Mapping[str, Any], seal: Seal | None = None
) -> None:
    """Write arrays by name; strings, and what is no tensor (a sequence of them), as text.

    ``seal`` makes one array more of the :meth:`ArrayFile.digest` of the others: its name and value.
    """
    keys = [_key(name, index) for index, name in enumerate(arrays)]
    with zipfile.ZipFile(path, "w") as archive:
        for key, value in zip(keys, arrays.values(), strict=True):
            _write(archive, key, value)
        infos = [archive.getinfo(f"{key}{_SUFFIX}") for key in keys]
        if seal is not None:
            key, value = seal(_digest(zip(arrays, infos, strict=True)))
            _write(archive, key, value)
            arrays, keys = {**arrays, key: value}, [*keys, key]
        if keys != list(arrays):
            archive.writestr(_NAMES, json.dumps(list(arrays)))


def _write(archive: zipfile.ZipFile, key: str, value: Any) -> None:
    with archive.open(f"{key}{_SUFFIX}", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, _plain(value), allow_pickle=False)


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of an array before it is read. ``rows``: the last axis is the one whose
    elements lie side by side, as memplan writes it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def words(self) -> str:
        """Type and shape, as ``float32[32, 8]``."""
        return f"{self.dtype}{list(self.shape)}"


Chosen = Callable[[Mapping[str, Header]], Iterable[str]]
"""Is given the headers of all arrays of a file; the names of those that are to be read. It raises
where they are not what is wanted, before anything is read."""
Seal = Callable[[str], tuple[str, Any]]


def load_arrays(path: Path, choose: Chosen = tuple) -> dict[str, Array]:
    """The arrays in such a file that ``choose`` chooses by their headers; all of them by default.

    Raises:
        ValueError, OSError, zipfile.BadZipFile: it is damaged, or no such file.
    """
    with opened_arrays(path) as file:
        return {name: file.read(name) for name in choose(file.headers)}


@contextmanager
def opened_arrays(path: Path) -> Iterator[ArrayFile]:
    """The arrays in an ``.npz``, of which the headers are read.

    Raises:
        ValueError, OSError, zipfile.BadZipFile: it is damaged, or no such file.
    """
    with opened_file(path) as stream, zipfile.ZipFile(stream) as archive:
        yield ArrayFile(archive)


class ArrayFile:
    """Arrays of an archive by name. A few kB can say that they hold GB: nothing is unpacked but the
    headers until it is asked for, and nothing that its packed bytes cannot come to."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        """Read the headers.

        Raises:
            ValueError: a name stands twice, or a member is not an array of numbers or text.
        """
        self._archive = archive
        infos = {info.filename: info for info in archive.infolist()}
        if len(infos) < len(archive.infolist()):
            twice = Counter(info.filename for info in archive.infolist()).most_common(1)[0][0]
            raise ValueError(f"'{twice}' is in it twice")
        self._infos = _by_name(archive, infos)
        self.headers = {name: self._header(name) for name in self._infos}

    def _header(self, name: str) -> Header:
        info = self._infos[name]
        try:
            with self._archive.open(info) as file:
                header = read_header(file)
                said = file.tell() + header.nbytes
        except (ValueError, OSError):
            raise
        except Exception as error:  # a header is Python text, which is nested too deep, ...
            raise ValueError(f"the header of '{name}' is damaged ({error})") from None
        if info.file_size != said:
            raise ValueError(f"'{name}' has {info.file_size:,} bytes, and its header says {said:,}")
        if info.compress_type not in _MOST_UNPACKED:
            raise ValueError(f"'{name}' is packed by a method that numpy does not write")
        if info.file_size > _MOST_UNPACKED[info.compress_type] * info.compress_size + _CHUNK:
            raise ValueError(f"'{name}' cannot have {said:,} bytes, packed into so few")
        return header

    def read(self, name: str) -> Array:
        """An array, all of which is as it was written.

        Raises:
            ValueError, OSError, zipfile.BadZipFile: it is damaged.
        """
        with self._archive.open(self._infos[name]) as file:
            value: Array = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):  # at the end, its checksum is compared
                raise ValueError(f"'{name}' has more bytes than its header says")
        return restored(value)

    def digest(self, *without: str) -> str:
        """A digest of names and checksums of all arrays but some: that of the same arrays, in
        whatever order they are packed."""
        return _digest((n, info) for n, info in self._infos.items() if n not in without)


def _digest(infos: Iterable[tuple[str, zipfile.ZipInfo]]) -> str:
    rows = sorted((name, info.CRC, info.file_size) for name, info in infos)
    return hashlib.blake2b(json.dumps(rows).encode(), digest_size=16).hexdigest()


def _by_name(
    archive: zipfile.ZipFile, infos: Mapping[str, zipfile.ZipInfo]
) -> dict[str, zipfile.ZipInfo]:
    """The members of an archive by the names of their arrays.

    Raises:
        ValueError: there are others, or names without an array.
    """
    members = [name for name in infos if name != _NAMES]
    other = next((name for name in members if not name.endswith(_SUFFIX)), None)
    if other is not None:
        raise ValueError(f"'{other}' in it is not an array")
    if _NAMES not in infos:
        return {name.removesuffix(_SUFFIX): infos[name] for name in members}
    if infos[_NAMES].file_size > _MOST_NAMES:
        raise ValueError("its names are too long")
    names = json.loads(archive.read(_NAMES))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("its names are not texts")
    keys = [f"{_key(name, index)}{_SUFFIX}" for index, name in enumerate(names)]
    if len(set(names)) < len(names) or sorted(keys) != sorted(members):
        raise ValueError("its names are not those of its arrays")
    return {name: infos[key] for name, key in zip(names, keys, strict=True)}


def array_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays in such a file, which are not read."""
    with opened_arrays(path) as file:
        return {name: header.shape for name, header in file.headers.items()}


def read_header(file: IO[bytes]) -> Header:
    """What stands before an array.

    Raises:
        ValueError: it is not an array of numbers or text.
    """
    form = np.lib.format
    version = form.read_magic(file)
    read = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of .npy is not an array of numbers")
    shape, by_columns, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read")
    if any(isinstance(size, bool) or size < 0 for size in shape):
        raise ValueError(f"a shape of {list(shape)}")
    kind = BFLOAT16 if dtype in _AS_WRITTEN else dtype
    return Header(tuple(shape), kind, not by_columns or len(shape) < 2)


@contextmanager
def readable(path: Path, what: str, hint: str = "") -> Iterator[None]:
    """Any failure to read ``path`` as one line; only that of memory is another's.

    Raises:
        UsageError: it cannot be read as ``what``.
    """
    try:
        yield
    except (MemplanError, MemoryError):
        raise
    except Exception as error:  # a damaged archive fails in any way
        why = file_problem(error) if isinstance(error, OSError) else str(error)
        line = (why.splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path} cannot be read as {what}: {line}", hint) from None


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
