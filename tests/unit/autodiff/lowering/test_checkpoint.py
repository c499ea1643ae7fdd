"""Checkpoints of onnxruntime-training: values of parameters, and files that are none."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import onnx
import pytest

from helpers import ort_artifacts as made
from helpers.gradients import runtime
from helpers.lowering import lowered
from helpers.refusals import assert_harmless
from helpers.running import Memplan, runner
from memplan.autodiff.lowering.ort_checkpoint import parse_checkpoint, read_checkpoint
from memplan.errors import EXIT_MODEL, ModelError
from memplan.ir.roles import Role

Array = Any


def vector(build: Any, offsets: list[int]) -> int:
    build.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        build.PrependUOffsetTRelative(offset)
    found: int = build.EndVector()
    return found


def tensor(build: Any, name: str, value: Array, dims: list[int] | None = None) -> int:
    text = build.CreateString(name)  # first, so that the file ends with a name
    content = build.CreateByteVector(value.tobytes())
    sizes = list(value.shape) if dims is None else dims
    build.StartVector(8, len(sizes), 8)
    for size in reversed(sizes):
        build.PrependInt64(size)
    shape = build.EndVector()
    build.StartObject(7)
    build.PrependUOffsetTRelativeSlot(0, text, 0)
    build.PrependUOffsetTRelativeSlot(2, shape, 0)
    kind = int(onnx.helper.np_dtype_to_tensor_dtype(value.dtype))
    build.PrependInt32Slot(3, kind, 0)
    build.PrependUOffsetTRelativeSlot(4, content, 0)
    found: int = build.EndObject()
    return found


def checkpoint(
    trained: Mapping[str, Array],
    frozen: Mapping[str, Array],
    *,
    nominal: bool = False,
    external: bool = False,
    dims: list[int] | None = None,
    rate: float = 0.05,
) -> bytes:
    """The bytes of a checkpoint, as FlatBuffers' own library writes them."""
    build = flatbuffers.Builder(1024)
    parts = [
        vector(build, [tensor(build, n, v, dims) for n, v in side.items()])
        for side in (trained, frozen)
    ]
    build.StartObject(4)
    build.PrependUOffsetTRelativeSlot(0, parts[0], 0)
    build.PrependUOffsetTRelativeSlot(1, parts[1], 0)
    build.PrependBoolSlot(2, nominal, False)
    build.PrependBoolSlot(3, external, False)
    state = build.EndObject()
    name = build.CreateString("group0")
    build.StartObject(4)
    build.PrependUOffsetTRelativeSlot(0, name, 0)
    build.PrependInt64Slot(1, 7, 0)
    build.PrependFloat32Slot(2, rate, 0.0)
    groups = vector(build, [build.EndObject()])
    build.StartObject(4)
    build.PrependInt32Slot(0, 3, 0)
    build.PrependUOffsetTRelativeSlot(1, state, 0)
    build.PrependUOffsetTRelativeSlot(2, groups, 0)
    build.Finish(build.EndObject(), b"ODTC")
    return bytes(build.Output())


def values() -> tuple[dict[str, Array], dict[str, Array]]:
    """Of the trained parameters, and of the frozen one."""
    feeds = made.feeds()
    trained = {name: feeds[name] for name in made.TRAINED}
    return trained, {"fc1.gate": feeds["fc1.gate"]}


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Memplan:
    onnx.save(made.training_model(), tmp_path / "training_model.onnx")
    onnx.save(made.optimizer_model(), tmp_path / "optimizer_model.onnx")
    (tmp_path / "checkpoint").write_bytes(checkpoint(*values()))
    return runner(tmp_path, monkeypatch, capfd)


def test_values_are_defaults(run: Memplan, tmp_path: Path) -> None:
    command = ("lower", "training_model.onnx", "--checkpoint", "checkpoint", "-o", "step.onnx")
    done = run(*command)
    assert done.returncode == 0, done.stderr
    feeds = made.feeds()
    batch = {name: feeds[name] for name in ("x", "labels")}
    found = runtime(onnx.load(tmp_path / "step.onnx"), batch)
    wanted = runtime(lowered(made.training_model()).model, feeds)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


def test_the_learning_rate_is_the_default(run: Memplan, tmp_path: Path) -> None:
    command = ("lower", "training_model.onnx", "--checkpoint", "checkpoint", "-o", "step.onnx")
    done = run(*command, "--optimizer-model", "optimizer_model.onnx")
    assert "adamw{lr=0.05}" in done.stdout
    graph = onnx.load(tmp_path / "step.onnx").graph
    defaults = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    assert defaults["lr"] == np.float32(0.05)


def test_what_it_names_are_the_parameters(tmp_path: Path) -> None:
    """Not what stands behind the first of them."""
    file = tmp_path / "checkpoint"
    file.write_bytes(checkpoint(*values()))
    model = made.training_model()
    model.graph.input.append(onnx.helper.make_tensor_value_info("mixing", 1, [2]))
    plain = lowered(model).contract
    told = lowered(model, checkpoint=read_checkpoint(file)).contract
    assert plain.roles["mixing"] is Role.PARAMETER
    assert told.roles["mixing"] is Role.BATCH
    assert told.roles["fc1.gate"] is Role.PARAMETER


@pytest.mark.parametrize(
    ("word", "content"),
    [
        ("not a file of the format ODTC", b"\x08\x00\x00\x00ORTM" + b"\x00" * 64),
        ("not a file of the format ODTC", b""),
        ("damaged or truncated", b"\xff\xff\xff\x7fODTC"),
        ("no values of parameters", checkpoint(*values(), nominal=True)),
        ("no values of parameters", checkpoint(*values(), external=True)),
        ("another size than its type", checkpoint(*values(), dims=[2, 2])),
        ("another size than its type", checkpoint(*values(), dims=[-1])),
        ("another size than its type", checkpoint(*values(), dims=[2**62, 8])),
        ("two values for one parameter", checkpoint({"a": np.ones(2)}, {"a": np.ones(2)})),
        ("no value for any input", checkpoint({"a": np.ones(2)}, {})),
        ("another type or shape", checkpoint({"fc1.bias": np.ones(6)}, {})),
        ("another type or shape", checkpoint({"fc1.bias": np.ones(7, np.float32)}, {})),
    ],
)
def test_refusals(run: Memplan, tmp_path: Path, word: str, content: bytes) -> None:
    (tmp_path / "odd").write_bytes(content)
    command = ("lower", "training_model.onnx", "--checkpoint", "odd", "-o", "step.onnx")
    assert_harmless(run, tmp_path, EXIT_MODEL, (word,), *command)


def test_any_damage_is_an_error_of_the_model() -> None:
    """Every byte changed to the worst, and every length cut off."""
    data = checkpoint(*values())
    for k in range(len(data)):
        changed = (data[:k] + bytes([byte]) + data[k + 1 :] for byte in (0x00, 0x7F, 0xFF))
        for damaged in changed:
            with suppress(ModelError):
                parse_checkpoint(damaged, "checkpoint")
        with suppress(ModelError):  # no name and no value is cut: padding may be
            assert parse_checkpoint(data[:k], "checkpoint") == parse_checkpoint(data, "checkpoint")
