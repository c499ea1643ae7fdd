"""Files that a training run reads, as mutants: each is refused, or read as the values it is of.

What is accepted must be what was written: other values are a defect, unless the mutant has other
bytes of values (safetensors have no digest), or its digest was made anew on purpose.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import damage
import numpy as np
import onnx

import memplan
from memplan.errors import EXIT_BUG
from memplan.runtime.archive import opened_arrays
from memplan.training.batches import Batches
from memplan.training.checkpoint import Progress, save_checkpoint
from memplan.training.initial import First, first_values
from memplan.training.step_file import StepFile, read_step

FILES = {"checkpoints": "run.npz", "safetensors": "run.safetensors"}
"""The commands of this kind, and the file that a mutant is of."""
BELIEVED = (EXIT_BUG, "believed", "it is read as other values than were written")
_SAMPLES = 64
_TEXT = """
<ir_version: 10, opset_import: ["" : 18]>
net (float[4,8] x, float[4,2] y, float[8,6] w1, float[6] b1, float[6,2] w2, float[2] b2)
  => (float loss)
{
  h = Gemm (x, w1, b1)
  a = Relu (h)
  z = Gemm (a, w2, b2)
  d = Sub (z, y)
  s = Mul (d, d)
  loss = ReduceMean <keepdims: int = 0> (s)
}
"""


@cache
def model() -> onnx.ModelProto:
    """A step that has no first values: what a file does not give is missing."""
    with tempfile.TemporaryDirectory(prefix="memplan-fuzz-") as folder:
        forward, step = Path(folder) / "forward.onnx", Path(folder) / "step.onnx"
        onnx.save(onnx.parser.parse_model(_TEXT), forward)
        memplan.grad(
            forward, memplan.GradOptions("loss", wrt=("w*", "b*"), optimizer="adamw"), step
        )
        return onnx.load(step)


@cache
def _step() -> StepFile:
    return read_step(model())


@cache
def data() -> dict[str, np.ndarray]:
    """Samples to train with."""
    r = np.random.default_rng(1)
    shapes = {"x": (_SAMPLES, 8), "y": (_SAMPLES, 2)}
    return {name: r.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@cache
def whole(command: str) -> bytes:
    """The file that mutants are of."""
    step = _step()
    first = first_values(step, None, "random", 3, None)
    r = np.random.default_rng(2)
    values = {
        name: (value + r.normal(size=value.shape)).astype(value.dtype)
        if value.dtype.kind == "f"
        else value
        for name, value in first.values.items()
    }
    if command == "safetensors":
        named = {slot.name for slot in step.state if slot.role.value == "parameter"}
        return _safetensors({name: v for name, v in values.items() if name in named})
    slots = [slot for slot in step.slots.values() if slot.role.value == "batch"]
    place = {**Batches(slots, data()).state(), "epoch": 1, "index": 5}
    about = Progress(step.fingerprint, 21, {"lr": 0.001}, place)
    with tempfile.TemporaryDirectory(prefix="memplan-fuzz-") as folder:
        path = Path(folder) / "run.npz"
        save_checkpoint(path, values, about, values)
        return path.read_bytes()


def _safetensors(values: Mapping[str, np.ndarray]) -> bytes:
    header, content = {}, b""
    for name, value in values.items():
        place = [len(content), len(content) + value.nbytes]
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": place}
        content += value.tobytes()
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return len(text).to_bytes(8, "little") + text + content


def prepare(command: str) -> None:
    """Make once what workers have in common."""
    _right(command)
    if command == "checkpoints":
        damage.bombs(whole(command))


def mutant(command: str, r: random.Random) -> bytes:
    """A mutant of the file."""
    if command == "safetensors":
        return damage.damaged_safetensors(whole(command), r)
    if r.random() < _SHARE_OF_SEALED:
        edited, told = damage.edited_checkpoint(whole(command), r)
        return _sealed(edited, told)
    return damage.damaged_checkpoint(whole(command), r)


_SHARE_OF_SEALED = 0.25


def _sealed(edited: bytes, told: dict[str, object]) -> bytes:
    """With a digest that is right, if the fields are those that a digest is made of."""
    with tempfile.TemporaryDirectory(prefix="memplan-fuzz-") as folder:
        path = Path(folder) / "run.npz"
        path.write_bytes(edited)
        with opened_arrays(path) as file:
            arrays = file.digest(damage.ABOUT)
    try:
        about = Progress(**told).sealed(arrays)  # type: ignore[arg-type]
    except TypeError:
        return edited
    return damage.with_text(edited, {**told, "contents": about.contents})


def read(command: str, path: Path) -> tuple[int, str, str] | None:
    """Read a mutant as a run does, and compare: a defect, or None. What is raised is the caller's.

    Raises:
        MemplanError: it is refused.
    """
    first = _values(command, path)
    right = _right(command)
    same = all(first.values[name].tobytes() == v.tobytes() for name, v in right.values.items())
    if same and (command != "checkpoints" or first.about == right.about):
        return None
    if command == "checkpoints":
        return None if same and _was_sealed(first) else BELIEVED
    content, was = path.read_bytes(), whole(command)
    return None if _behind(content) != _behind(was) else BELIEVED


def _was_sealed(first: First) -> bool:
    """Whether the digest is another, which is made anew on purpose only."""
    return first.about.contents != _right("checkpoints").about.contents


def _behind(content: bytes) -> bytes:
    return content[8 + int.from_bytes(content[:8], "little") :]


def _values(command: str, path: Path) -> First:
    if command == "checkpoints":
        return first_values(_step(), None, None, 0, path)
    return first_values(_step(), path, None, 0, None)


@cache
def _right(command: str) -> First:
    with tempfile.TemporaryDirectory(prefix="memplan-fuzz-") as folder:
        path = Path(folder) / FILES[command]
        path.write_bytes(whole(command))
        return _values(command, path)
