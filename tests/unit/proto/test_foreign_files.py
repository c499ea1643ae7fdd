"""Files of other kinds are named for what they are."""

import bz2
import gzip
import io
import lzma
import pickle
import zipfile
from pathlib import Path

import pytest

from memplan.errors import ModelError
from memplan.proto.read import read_model


def _archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    return stream.getvalue()


FILES = [
    (_archive(), "PyTorch file"),
    (pickle.dumps({"w": 1}, protocol=2), "pickle"),
    (lzma.compress(b"model"), "packed with xz"),
    (gzip.compress(b"model", mtime=0), "packed with gzip"),
    (bz2.compress(b"model"), "packed with bzip2"),
    (b"\xff\xff\xff no model", "or it is truncated"),
]


@pytest.mark.parametrize(("data", "what"), FILES, ids=[what for _, what in FILES])
def test_the_error_names_the_kind(tmp_path: Path, data: bytes, what: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=what):
        read_model(path)
