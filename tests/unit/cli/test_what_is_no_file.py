"""Pipes, devices, sockets and folders in place of every file that a command reads: one line, and
nothing waits for what never comes or reads what never ends."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers import ort_artifacts
from helpers.graphs import parse
from helpers.running import Memplan
from memplan.errors import EXIT_MODEL, EXIT_USAGE

SECONDS = 60
ODD = "odd"  # stands for what is no file; a suffix follows
STEP = (
    "t (float[4] w, float lr, float[4] x) => (float loss, float[4] w_new) <float two = {2}>"
    "{ q = Mul(w, x) loss = ReduceSum<keepdims = 0>(q) g = Mul(x, two) u = Mul(g, lr)"
    "  w_new = Sub(w, u) }"
)


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(path.parent, os.O_RDONLY)  # the name of a socket is short
        try:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def a_folder(path: Path) -> None:
    path.mkdir()


CALLS = {
    "analyze": ("analyze", ODD),
    "rewrite": ("rewrite", ODD, "--budget", "90%", "--dry-run"),
    "costs": ("rewrite", "step.onnx", "--budget", "90%", "--dry-run", "--costs", ODD),
    "grad": ("grad", ODD, "--loss", "loss", "-o", "new.onnx"),
    "validate": ("validate", ODD, "step.onnx"),
    "validate, second": ("validate", "step.onnx", ODD),
    "inputs": ("validate", "step.onnx", "step.onnx", "--inputs", ODD),
    "profile": ("profile", ODD, "-o", "costs.json"),
    "inputs of profile": ("profile", "step.onnx", "-o", "costs.json", "--inputs", ODD),
    "sweep": ("sweep", ODD, "--budget", "90%", "--jobs", "1"),
    "update of a lock": ("check", "--update", ODD),
    "lock": ("check", "--lock", ODD),
    "lower": ("lower", ODD, "-o", "new.onnx"),
    "optimizer to lower": ("lower", "left.onnx", "--optimizer-model", ODD, "-o", "new.onnx"),
    "checkpoint to lower": ("lower", "left.onnx", "--checkpoint", ODD, "-o", "new.onnx"),
    "run": ("run", ODD),
    "data": ("run", "step.onnx", "--init", "random", "--lr", "1", "--data", ODD),
    "weights .npz": ("run", "step.onnx", "--lr", "1", "--weights-file", f"{ODD}.npz"),
    "weights .onnx": ("run", "step.onnx", "--lr", "1", "--weights-file", f"{ODD}.onnx"),
    "weights .safetensors": ("run", "step.onnx", "--weights-file", f"{ODD}.safetensors"),
    "checkpoint": ("run", "step.onnx", "--lr", "1", "--checkpoint", ODD, "--resume"),
    "capture": ("capture", f"{ODD}.py:make", "-o", "new.onnx"),
}


@contextmanager
def seconds_at_most(number: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError(f"it waits for more than {number} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(number)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def run(inside: Memplan, tmp_path: Path) -> Memplan:
    onnx.save(parse(STEP), tmp_path / "step.onnx")
    onnx.save(ort_artifacts.training_model(), tmp_path / "left.onnx")
    return inside


KINDS = (a_pipe, a_device, a_socket, a_folder)
# Each call in two ways, one after the other.
PAIRS = [(call, KINDS[(k + more) % 4]) for k, call in enumerate(CALLS) for more in (0, 1)]


@pytest.mark.parametrize(("call", "what"), PAIRS)
def test_it_is_refused_in_a_line(
    call: str, what: Callable[[Path], None], run: Memplan, tmp_path: Path
) -> None:
    if call == "capture":
        pytest.importorskip("torch")
        pytest.importorskip("onnxscript")
    given = next(part for part in CALLS[call] if part.startswith(ODD)).partition(":")[0]
    what(tmp_path / given)
    with seconds_at_most(SECONDS):
        done = run(*CALLS[call])
    assert done.returncode in (EXIT_USAGE, EXIT_MODEL), done.stderr
    assert given in done.stderr.splitlines()[0]


@pytest.mark.parametrize("what", [a_pipe, a_device, a_folder])
def test_a_pyproject_that_is_no_file_is_not_read(
    what: Callable[[Path], None], run: Memplan, tmp_path: Path
) -> None:
    what(tmp_path / "pyproject.toml")
    with seconds_at_most(SECONDS):
        assert run("analyze", "step.onnx", "-q").returncode == 0


def test_a_mistyped_inputs_file_is_said_so(run: Memplan, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones(4, np.float32))
    done = run("run", "step.onnx", "--init", "random", "--lr", "1", "--data", "y.npz")
    assert (done.returncode, "does not exist" in done.stderr) == (EXIT_USAGE, True)


def test_a_name_that_no_file_can_have_is_told_of_the_model(inside: Memplan) -> None:
    """And not as a bug of memplan."""
    name = f"{'x' * 300}.onnx"
    for more in ((), ("--update",)):
        done = inside("check", *more, name)
        assert done.returncode == EXIT_MODEL
        assert "bug" not in done.stderr
