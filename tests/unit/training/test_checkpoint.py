"""Checkpoints that are damaged, edited or another's: one line each, and nothing of them is used."""

import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.graphs import parse
from memplan.errors import UsageError
from memplan.training.checkpoint import Progress, Wanted, load_checkpoint, save_checkpoint
from memplan.training.step_file import StepFile, read_step

PLACE = {"epoch": 1, "index": 2, "seed": 0, "shuffle": True, "size": 4, "count": 16}
ABOUT = "memplan.checkpoint.npy"
STATE = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "m": np.full((2, 3), 0.5, np.float32),
}


def a_step() -> onnx.ModelProto:
    """A parameter with a moment and a learning rate."""
    return parse(
        "t (float[2, 3] w, float[2, 3] m, float lr, float[2, 3] x)"
        " => (float loss, float[2, 3] w_new, float[2, 3] m_new)"
        "{ q = Mul(w, x) loss = ReduceSum<keepdims = 0>(q) m_new = Add(m, x)"
        "  u = Mul(m_new, lr) w_new = Sub(w, u) }"
    )


@pytest.fixture
def step() -> StepFile:
    return read_step(a_step())


@pytest.fixture
def good(step: StepFile, tmp_path: Path) -> Path:
    path = tmp_path / "run.npz"
    save_checkpoint(path, STATE, Progress(step.fingerprint, 18, {"lr": 0.5}, PLACE), STATE)
    return path


def wanted_of(step: StepFile) -> Wanted:
    return Wanted(step.fingerprint, {slot.name: slot for slot in step.state}, step.knobs)


def told_in(path: Path) -> dict[str, Any]:
    with np.load(path) as archive:
        told: dict[str, Any] = json.loads(str(archive["memplan.checkpoint"]))
    return told


def rewritten(path: Path, edit: Callable[[dict[str, bytes]], object]) -> None:
    """Let the members of an archive be others, with the checksums that they then have."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    edit(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def npy(value: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value)
    return stream.getvalue()


def test_a_checkpoint_is_read_as_it_was_written(good: Path, step: StepFile) -> None:
    state, about = load_checkpoint(good, wanted_of(step))
    assert {name: value.tobytes() for name, value in state.items()} == {
        name: value.tobytes() for name, value in STATE.items()
    }
    assert (about.steps, about.hyperparameters, about.data) == (18, {"lr": 0.5}, PLACE)


def changed(**fields: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda told: {**told, **fields}


FIELDS = {
    "steps that are a text": (changed(steps="x"), "changed since it was written"),
    "another number of steps": (changed(steps=17), "changed since it was written"),
    "another place": (changed(data={**PLACE, "index": 3}), "changed since it was written"),
    "another rate": (changed(hyperparameters={"lr": 0.25}), "changed since it was written"),
    "a field that nobody writes": (changed(extra=1), "changed since it was written"),
    "no digest": (lambda told: told.pop("contents") and told, "changed since it was written"),
    "another format": (changed(format="memplan.checkpoint/0"), "its format is not"),
}


@pytest.mark.parametrize("what", FIELDS)
def test_no_field_of_a_checkpoint_is_believed(what: str, good: Path, step: StepFile) -> None:
    edit, words = FIELDS[what]
    text = json.dumps(edit(told_in(good)))
    rewritten(good, lambda members: members.update({ABOUT: npy(np.asarray(text))}))
    with pytest.raises(UsageError, match=words):
        load_checkpoint(good, wanted_of(step))


@pytest.mark.parametrize(
    ("numbers", "data", "words"),
    [
        ({"zz": 1.0}, None, "not a hyperparameter"),
        ({}, {"steps": {"d": 18}}, "not of the same steps"),
    ],
)
def test_a_checkpoint_of_another_training(
    numbers: dict[str, float], data: Any, words: str, step: StepFile, tmp_path: Path
) -> None:
    path = tmp_path / "other.npz"
    save_checkpoint(path, STATE, Progress(step.fingerprint, 18, numbers, data), STATE)
    with pytest.raises(UsageError, match=words):
        load_checkpoint(path, wanted_of(step))


@pytest.mark.parametrize("text", ["{", "[]", "null", "1", "[" * 100_000, '{"steps":' + "9" * 9999])
def test_what_a_checkpoint_says_of_itself_may_be_anything(
    text: str, good: Path, step: StepFile
) -> None:
    rewritten(good, lambda members: members.update({ABOUT: npy(np.asarray(text))}))
    with pytest.raises(UsageError, match=r"run\.npz cannot be read as a checkpoint"):
        load_checkpoint(good, wanted_of(step))


ARRAYS: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "a parameter is missing": (lambda m: m.pop("w.npy"), "it has no 'w'"),
    "nothing is said": (lambda m: m.pop(ABOUT), "has no text"),
    "a float64": (lambda m: m.update({"w.npy": npy(STATE["w"].astype("f8"))}), "'w' is float64"),
    "big-endian": (lambda m: m.update({"w.npy": npy(STATE["w"].astype(">f4"))}), "'w' is >f4"),
    "fewer rows": (lambda m: m.update({"w.npy": npy(STATE["w"][:1])}), r"'w' is float32\[1, 3\]"),
    "columns first": (lambda m: m.update({"w.npy": npy(np.asfortranarray(STATE["w"]))}), "'w' is"),
    "another value": (lambda m: m.update({"w.npy": npy(STATE["w"] * 2)}), "changed since"),
    "two exchanged": (
        lambda m: m.update({"w.npy": m["m.npy"], "m.npy": m["w.npy"]}),
        "changed since",
    ),
    "one too many": (lambda m: m.update({"v.npy": npy(STATE["w"])}), "it has 'v', which is not"),
    "a path": (lambda m: m.update({"../../up.npy": npy(1)}), "up', which is not state"),
    "bytes behind an array": (lambda m: m.update({"w.npy": m["w.npy"] + b"12"}), "its header says"),
    "objects": (lambda m: m.update({"w.npy": npy(np.array([{}, 1]))}), "Python objects"),
    "names of others": (lambda m: m.update({"#names.json": b'["a", "b", "c"]'}), "its names are"),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_the_arrays_of_a_checkpoint_are_those_of_the_state(
    what: str, good: Path, step: StepFile
) -> None:
    edit, words = ARRAYS[what]
    rewritten(good, edit)
    with pytest.raises(UsageError, match=words):
        load_checkpoint(good, wanted_of(step))


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_a_checkpoint_that_is_cut_or_another_archive(
    share: float, good: Path, step: StepFile
) -> None:
    content = good.read_bytes()
    good.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UsageError, match="cannot be read as a checkpoint"):
        load_checkpoint(good, wanted_of(step))
    np.savez(good, a=np.zeros(3))
    with pytest.raises(UsageError, match="cannot be read as a checkpoint"):
        load_checkpoint(good, wanted_of(step))


def test_an_array_that_stands_twice_in_a_checkpoint(good: Path, step: StepFile) -> None:
    with zipfile.ZipFile(good, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("w.npy", npy(STATE["w"] * 100))
    with pytest.raises(UsageError, match=r"'w\.npy' is in it twice"):
        load_checkpoint(good, wanted_of(step))


def test_no_byte_of_a_value_changes_unseen(good: Path, step: StepFile) -> None:
    content = bytearray(good.read_bytes())
    content[content.index(STATE["w"].tobytes()) + 5] ^= 1
    good.write_bytes(content)
    with pytest.raises(UsageError, match="Bad CRC-32"):
        load_checkpoint(good, wanted_of(step))


def test_a_parameter_that_holds_nan_is_no_state_to_go_on_with(
    step: StepFile, tmp_path: Path
) -> None:
    path = tmp_path / "run.npz"
    state = {**STATE, "w": np.full((2, 3), np.nan, np.float32)}
    save_checkpoint(path, state, Progress(step.fingerprint, 3), state)
    with pytest.raises(UsageError, match="'w' holds nan; go on from an earlier checkpoint"):
        load_checkpoint(path, wanted_of(step))


@pytest.mark.parametrize("name", ["w", "unrelated", "memplan.checkpoint"])
def test_a_bomb_in_a_checkpoint_is_told_by_its_header(
    name: str, good: Path, step: StepFile
) -> None:
    """64 MiB in 64 KiB."""
    with zipfile.ZipFile(good) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    members[f"{name}.npy"] = npy(np.zeros(1 << 24, np.float32))
    with zipfile.ZipFile(good, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    del members
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="cannot be read as a checkpoint"):
            load_checkpoint(good, wanted_of(step))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
