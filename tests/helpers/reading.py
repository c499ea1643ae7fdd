"""Models that are refused, and the words of the refusal."""

import hashlib
import os
from pathlib import Path

import onnx
import pytest

from helpers.odd_models import saved
from memplan.api.analysis import analyze
from memplan.errors import EXIT_MODEL, ModelError


def refusal(path: Path, **dims: int) -> ModelError:
    """The error with which the model at ``path`` is refused."""
    before = hashlib.sha256(path.read_bytes()).digest() if os.path.isfile(path) else b""
    with pytest.raises(ModelError) as caught:
        analyze(path, dims)
    assert caught.value.exit_code == EXIT_MODEL
    if before:
        assert hashlib.sha256(path.read_bytes()).digest() == before
    return caught.value


def refused(model: onnx.ModelProto, folder: Path) -> str:
    """The message with which ``model`` is refused; it has a hint too."""
    error = refusal(saved(model, folder))
    assert error.hint
    return error.message
