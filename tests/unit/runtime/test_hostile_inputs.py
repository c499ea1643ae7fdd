"""Archives of inputs that are hostile or damaged, and names that no archive takes as they are."""

import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from helpers.graphs import graph_of
from memplan.errors import UsageError
from memplan.runtime.archive import load_arrays, save_arrays
from memplan.runtime.inputs import load_inputs

MODEL = "g (float[4] x) => (float[4] y) { y = Exp(x) }"
MIB = 1 << 20


def _with_members(path: Path, members: dict[str, bytes]) -> Path:
    """An archive of x as the model wants it, and of ``members``, which may replace it."""
    np.savez(path.with_suffix(".x.npz"), x=np.ones(4, np.float32))
    with zipfile.ZipFile(path.with_suffix(".x.npz")) as good:
        found = {"x.npy": good.read("x.npy"), **members}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in found.items():
            archive.writestr(name, content)
    return path


def _npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize("name", ["x", "z"])
def test_a_bomb_of_zeros_is_told_by_its_header_and_never_unpacked(
    tmp_path: Path, name: str
) -> None:
    """64 MiB in 64 KiB, as an input of the model and as one that it does not have."""
    count = 16 * MIB
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},)}}"
    path = _with_members(tmp_path / "bomb.npz", {f"{name}.npy": _npy(header, bytes(4 * count))})
    assert path.stat().st_size < MIB // 8
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=r"the model wants|not a graph input"):
            load_inputs(path, graph_of(MODEL))
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


DAMAGED = {
    "a member that is not an array": {"x.npy": b"hello"},
    "a header of 4 TiB": {
        "x.npy": _npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({1 << 40},)}}")
    },
    "a header that is nested too deep": {"x.npy": _npy("(" * 5000)},
    "a header that does not end": {"x.npy": _npy("{'descr': '''")},
    "a negative shape": {
        "x.npy": _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}", bytes(16))
    },
    "too few values": {
        "x.npy": _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", bytes(4))
    },
    "another file beside the arrays": {"readme.txt": b"hello"},
    "a header of version 3": {"x.npy": b"\x93NUMPY\x03\x00\x00\x00\x00\x00"},
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_archive_is_one_error_of_usage(tmp_path: Path, what: str) -> None:
    path = _with_members(tmp_path / "bad.npz", DAMAGED[what])
    with pytest.raises(UsageError, match=r"bad\.npz"):
        load_inputs(path, graph_of(MODEL))


@pytest.mark.parametrize(
    ("offset", "value"), [(6, 1), (8, 99)], ids=["encrypted", "unknown compression"]
)
def test_an_archive_that_cannot_be_unpacked(tmp_path: Path, offset: int, value: int) -> None:
    path = _with_members(tmp_path / "bad.npz", {})
    content = bytearray(path.read_bytes())
    content[offset] = value  # of the member's own header, and two bytes further in the directory's
    content[content.index(b"PK\x01\x02") + offset + 2] = value
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"cannot be read as \.npz"):
        load_inputs(path, graph_of(MODEL))


@pytest.mark.parametrize(
    "name",
    ["file", "allow_pickle", "a\0b", "n" * 60_000, "../up", "\n::error", "#names.json", "#0"],
    ids=["file", "allow_pickle", "NUL", "long", "path", "newline", "names", "number"],
)
def test_an_input_may_have_any_name(tmp_path: Path, name: str) -> None:
    """Runs in other processes take inputs from archives."""
    sent = {"x": np.ones(3, np.float32), name: np.arange(2)}
    save_arrays(tmp_path / "inputs.npz", sent)
    found = load_arrays(tmp_path / "inputs.npz")
    assert list(found) == list(sent)
    assert all(np.array_equal(found[key], value) for key, value in sent.items())
