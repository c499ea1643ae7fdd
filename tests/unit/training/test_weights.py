"""Values from files of weights: what is wanted of them, and no more."""

import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from helpers.graphs import parse
from memplan.errors import UsageError
from memplan.training.checkpoint import Wanted
from memplan.training.initial import first_state, initial_state
from memplan.training.step_file import StepFile, read_step
from memplan.training.trained_weights import Weights

W = np.arange(8, dtype=np.float32)


def a_step() -> onnx.ModelProto:
    """A step that has a value for its parameter, for its learning rate, and a constant."""
    model = parse(
        "t (float[8] w, float lr, float[8] x) => (float loss, float[8] w_new) <float two = {2}>"
        "{ q = Mul(w, x) loss = ReduceSum<keepdims = 0>(q) g = Mul(x, two) u = Mul(g, lr)"
        "  w_new = Sub(w, u) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(W, "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "lr"))
    return model


@pytest.fixture
def step() -> StepFile:
    return read_step(a_step())


def first_values(step: StepFile, weights: Weights | None) -> dict[str, Any]:
    wanted = Wanted(step.fingerprint, {slot.name: slot for slot in step.state})
    given, _ = first_state([step], wanted, weights, None)
    return initial_state(step, given, None, 0)[0]


def test_of_a_training_step_as_weights_its_state_is_taken(step: StepFile, tmp_path: Path) -> None:
    other = a_step()
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(W * 3, "w"))
    onnx.save(other, tmp_path / "trained.onnx")
    found = first_values(step, tmp_path / "trained.onnx")
    assert (found["w"] == W * 3).all()


@pytest.mark.parametrize("name", ["w", "unrelated"])
def test_a_bomb_of_weights_is_told_by_its_header(name: str, step: StepFile, tmp_path: Path) -> None:
    """64 MiB in 64 KiB."""
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, **{name: np.zeros(1 << 24, np.float32)})
    assert path.stat().st_size < 1 << 17
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=r"the step wants|which is not state"):
            first_values(step, path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_an_array_that_its_packed_bytes_cannot_come_to(step: StepFile, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, w=W)
    path.write_bytes(path.read_bytes().replace(b"(8,)", b"(9,)"))
    with pytest.raises(UsageError, match=r"a\.npz cannot be read as weights"):
        first_values(step, path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive, archive.open("w.npy", "w") as to:
        np.lib.format.write_array(to, W)
    with pytest.raises(UsageError, match="packed by a method that numpy does not write"):
        first_values(step, path)


def linked(folder: Path) -> Path:
    """A step whose weights lie in a file that has a second name in another folder."""
    model = a_step()
    tensor = next(t for t in model.graph.initializer if t.name == "w")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "32")):
        tensor.external_data.add(key=key, value=value)
    (folder / "store").mkdir()
    (folder / "model").mkdir()
    (folder / "store" / "blob").write_bytes(W.tobytes())
    os.link(folder / "store" / "blob", folder / "model" / "w.bin")
    onnx.save(model, folder / "model" / "step.onnx")
    return folder / "model" / "step.onnx"


def test_hard_linked_weights_are_the_users_files(step: StepFile, tmp_path: Path) -> None:
    """As of ``cp -al``: rewrite and grad read them, so do run and --weights-file."""
    path = linked(tmp_path)
    assert (first_values(read_step(path), None)["w"] == W).all()
    assert (first_values(step, path)["w"] == W).all()
