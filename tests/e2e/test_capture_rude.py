"""``memplan capture`` of functions that print, exit or move: what it says, and what it writes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import HANG_SECONDS, as_from_a_terminal
from helpers.refusals import assert_refused
from helpers.running import Memplan
from memplan.errors import EXIT_USAGE

pytest.importorskip("torch")
pytest.importorskip("onnxscript")


SOURCE = """
import atexit, os, subprocess, sys, time

import torch

import memplan


def plain(loss=lambda model, x: model(x).square().mean()):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    return memplan.TorchStep(model, loss, {"x": torch.randn(6, 4)})


def loud():
    print("a print")
    os.write(1, b"below Python")
    sys.__stdout__.write("its own stdout")
    subprocess.run(["echo", "another process"])
    atexit.register(lambda: os.write(1, b"at the end"))
    return plain()


def exits():
    def loss(model, x):
        sys.exit(0)

    return plain(loss)


def ends():
    os._exit(0)


def reads():
    return input()


def moves():
    os.mkdir("other")
    os.chdir("other")
    step = plain()
    torch.set_default_device("meta")
    return step


def waits():
    print("waiting", flush=True)
    time.sleep(10_000)
"""


@pytest.fixture(autouse=True)
def source(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("exits", "raises SystemExit: 0"),
        ("ends", "raises SystemExit: 0"),
        ("reads", "reads() in train.py raises EOFError"),
    ],
)
def test_a_function_that_exits_or_raises_is_told_and_writes_nothing(
    memplan: Memplan, tmp_path: Path, function: str, words: str
) -> None:
    done = memplan("capture", f"train.py:{function}", "-o", "step.onnx")
    assert_refused(done, EXIT_USAGE, words)
    assert not (tmp_path / "step.onnx").exists()


def test_json_is_json_whatever_the_function_prints_and_however(
    memplan: Memplan, tmp_path: Path
) -> None:
    done = memplan("capture", "train.py:loud", "-o", "step.onnx", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] == "step.onnx"
    for words in ("a print", "below Python", "its own stdout", "another process", "at the end"):
        assert words in done.stderr


def test_another_folder_and_device_do_not_move_the_file(memplan: Memplan, tmp_path: Path) -> None:
    done = memplan("capture", "train.py:moves", "-o", "step.onnx")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("wrote step.onnx\n")
    assert not list((tmp_path / "other").iterdir())
    memplan("capture", "train.py:plain", "-o", "plain.onnx")
    assert (tmp_path / "plain.onnx").read_bytes() == (tmp_path / "step.onnx").read_bytes()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_and_writes_nothing(
    tmp_path: Path, number: int, code: int
) -> None:
    program = "import sys; from memplan_cli.main import run; run()"
    command = [sys.executable, "-c", program, "capture", "train.py:waits", "-o", "step.onnx"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=as_from_a_terminal
    ) as running:
        assert running.stderr.readline() == "waiting\n"
        running.send_signal(number)
        assert running.wait(HANG_SECONDS) == code
        assert "\nerror: " in f"\n{running.stderr.read()}"
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".pyc") == ["train.py"]
