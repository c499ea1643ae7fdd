"""Files that are no models: what is refused, and in which words."""

import os
from pathlib import Path

import onnx
import pytest

from helpers import odd_models as odd
from helpers.models import SAMPLES
from helpers.odd_models import saved
from helpers.reading import refusal
from memplan.api.analysis import analyze
from memplan.errors import ModelError
from memplan.proto.read import parse_file

MLP = SAMPLES / "mlp_adamw.onnx"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no ONNX graph"),
        (b"hello, this is text\n", "not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01", "not an ONNX model"),
        (b"\x00" * 64, "not an ONNX model"),
        (b"PK\x03\x04" + b"\x00" * 40, "not an ONNX model"),
        (onnx.TensorProto(name="weight", data_type=1).SerializeToString(), "ONNX"),
    ],
    ids=["empty", "text", "png", "zeros", "zip", "tensor"],
)
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert message in refusal(path).message


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.onnx").message
    assert "not a file" in refusal(tmp_path).message


def test_a_name_that_no_system_takes(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / ("a" * 300)).message


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(odd.training(), tmp_path)

    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)  # root may read everything
    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
        analyze(path)


def test_a_file_beyond_the_limit_of_protobuf(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as stream:
        os.truncate(stream.fileno(), 2**31)  # sparse: no disk is used
    with pytest.raises(ModelError, match="at most 2 GiB") as caught:
        parse_file(path)
    assert "external data" in caught.value.hint


@pytest.mark.parametrize("kept", [k / 23 for k in range(1, 23)])
def test_a_truncated_model(tmp_path: Path, kept: float) -> None:
    data = MLP.read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(len(data) * kept)])
    assert refusal(path).message


def test_a_model_cut_within_its_last_bytes(tmp_path: Path) -> None:
    data = MLP.read_bytes()
    path = tmp_path / "cut.onnx"
    for missing in (1, 2, 5, 10):
        path.write_bytes(data[:-missing])
        assert refusal(path).message
