"""External data: where it may lie, and what may be wrong with it."""

import os
from pathlib import Path

import onnx
import pytest

from helpers import odd_models as odd
from helpers.reading import refusal
from memplan.api.analysis import analyze
from memplan.errors import UsageError
from memplan.proto.external import (
    check_external_data,
    external_tensors,
    repoint_external_data,
)
from memplan.proto.read import read_model
from memplan.proto.weights import external_content


def _located(path: Path, location: str) -> None:
    model = onnx.load(path, load_external_data=False)
    for item in model.graph.initializer[0].external_data:
        if item.key == "location":
            item.value = location
    path.write_bytes(model.SerializeToString())


def test_external_weights_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = odd.external(tmp_path)
    read: list[Path] = []
    real = os.open

    def spied(name: str, *how: int, **more: int) -> int:
        if Path(name).is_relative_to(tmp_path):
            read.append(Path(name))
        return real(name, *how, **more)

    monkeypatch.setattr(os, "open", spied)
    monkeypatch.setattr(onnx, "load_external_data_for_model", None)
    assert analyze(path).timeline.peak_bytes == 6824
    assert read == [path]


def test_external_data_that_is_missing_or_cut(tmp_path: Path) -> None:
    path = odd.external(tmp_path)
    data = tmp_path / "weights.bin"
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    assert "has only" in refusal(path).message
    data.unlink()
    assert "'weights.bin' of tensor" in refusal(path).message
    data.mkdir()
    assert "is missing" in refusal(path).message


def test_data_that_becomes_shorter_while_it_is_read_is_told(tmp_path: Path) -> None:
    (tensor, *_) = external_tensors(read_model(odd.external(tmp_path)))
    (tmp_path / "weights.bin").write_bytes(b"few")
    with pytest.raises(UsageError, match=r"weights\.bin became shorter while it was read"):
        external_content(tensor, tmp_path)


@pytest.mark.parametrize(
    "location",
    [
        "/etc/passwd",
        "../weights.bin",
        "sub/../../weights.bin",
        "..\\weights.bin",
        "C:\\weights.bin",
        "\\\\server\\share\\weights.bin",
    ],
)
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    path = odd.external(tmp_path / "inner")
    (tmp_path / "weights.bin").write_bytes((tmp_path / "inner/weights.bin").read_bytes())
    _located(path, location)
    message = refusal(path).message
    assert "outside the model's folder" in message
    assert location in message


def test_external_data_outside_through_a_link(tmp_path: Path) -> None:
    path = odd.external(tmp_path / "inner")
    (tmp_path / "inner/weights.bin").rename(tmp_path / "weights.bin")
    (tmp_path / "inner/weights.bin").symlink_to(tmp_path / "weights.bin")
    assert "through a link" in refusal(path).message


def test_a_store_of_links_as_model_hubs_make_it(tmp_path: Path) -> None:
    # ONNX Runtime loads it: both links lead into one folder.
    stored = odd.external(tmp_path / "blobs", "abc", "def")
    (tmp_path / "snapshot").mkdir()
    link = tmp_path / "snapshot/model.onnx"
    link.symlink_to(stored)
    (tmp_path / "snapshot/def").symlink_to(tmp_path / "blobs/def")
    assert analyze(link).timeline.peak_bytes == 6824
    with pytest.raises(UsageError, match="cannot be referenced"):
        repoint_external_data(read_model(link), link, tmp_path / "snapshot/out.onnx")
    moved = read_model(link)
    repoint_external_data(moved, link, tmp_path / "blobs/out.onnx")
    check_external_data(moved, tmp_path / "blobs/out.onnx")


@pytest.mark.parametrize("location", ["a" * 300, "with\0zero", ""])
def test_external_data_under_an_impossible_name(tmp_path: Path, location: str) -> None:
    path = odd.external(tmp_path)
    _located(path, location)
    assert refusal(path).message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("offset", "-4"),
        ("offset", "abc"),
        ("length", "3"),
        ("length", "-1"),
        ("length", "1e9"),
        ("offset", "99999999999999999999"),
    ],
)
def test_external_data_with_a_wrong_range(tmp_path: Path, key: str, value: str) -> None:
    path = odd.external(tmp_path)
    model = onnx.load(path, load_external_data=False)
    for item in model.graph.initializer[0].external_data:
        if item.key == key:
            item.value = value
    path.write_bytes(model.SerializeToString())
    assert "'w1'" in refusal(path).message


@pytest.mark.parametrize("beyond", [-4, 4])
def test_a_range_that_is_not_as_long_as_its_tensor(tmp_path: Path, beyond: int) -> None:
    """Too long a range lies within the file, too; its tensor would be another."""
    path = odd.external(tmp_path)
    model = onnx.load(path, load_external_data=False)
    tensor = next(t for t in model.graph.initializer if t.external_data)
    entries = {item.key: item for item in tensor.external_data}
    entries["length"].value = str(int(entries["length"].value) + beyond)
    path.write_bytes(model.SerializeToString())
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes() + bytes(64))
    assert "but shape" in refusal(path).message
