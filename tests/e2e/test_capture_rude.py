"""``memplan capture`` of functions that are rude: what they do to their process stays in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import HANG_SECONDS, as_from_a_terminal, eventually, runs
from helpers.refusals import assert_refused
from helpers.running import Memplan
from memplan.errors import EXIT_ENVIRONMENT, EXIT_USAGE

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

pytestmark = [pytest.mark.e2e, pytest.mark.ort]

SOURCE = """
import atexit, json, multiprocessing, os, resource, signal, subprocess, sys, threading, time

import torch
from torch.nn import functional

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

    def go_on():
        while True:
            print("a thread")
            sys.stdout.buffer.write(b"a thread")
            time.sleep(0.001)

    threading.Thread(target=go_on, daemon=True).start()
    return plain()


def endless():
    threading.Thread(target=time.sleep, args=(10_000,)).start()
    return plain()


def exits():
    os._exit(0)


def exits_later():
    def loss(model, x):
        sys.exit(0)

    return plain(loss)


def crashes():
    os.abort()


def reads():
    return input()


def moves():
    os.mkdir("other")
    os.chdir("other")
    os.umask(0o777)
    sys.stdout.close()
    sys.stderr = None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    step = plain()
    torch.set_default_device("meta")
    return step


def leaves():
    children = [multiprocessing.Process(target=time.sleep, args=(10_000,), daemon=True)]
    children[0].start()
    children.append(subprocess.Popen(["sleep", "10000"], start_new_session=True))
    with open("children", "w") as file:
        print(*(child.pid for child in children), file=file)
    multiprocessing.process._children.clear()  # or Python would end the first
    return plain()


def forbids():
    def refused(*arguments, **options):
        raise PermissionError(1, "replaced")

    os.replace = os.link = os.open = json.dumps = refused
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    return plain()


def waits():
    print("waiting", flush=True)
    time.sleep(10_000)
"""


@pytest.fixture(autouse=True)
def source(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        ("exits", EXIT_USAGE, "your code ended its process (exit code 0)"),
        ("exits_later", EXIT_USAGE, "raises SystemExit: 0"),
        ("crashes", EXIT_ENVIRONMENT, "was ended by SIGABRT"),
        ("reads", EXIT_USAGE, "reads() in train.py raises EOFError"),
    ],
)
def test_a_function_that_ends_the_process_is_told_and_writes_nothing(
    memplan: Memplan, tmp_path: Path, function: str, code: int, words: str
) -> None:
    done = memplan("capture", f"train.py:{function}", "-o", "step.onnx")
    assert_refused(done, code, words)
    assert not (tmp_path / "step.onnx").exists()


def test_json_is_json_whatever_the_function_prints_and_however(
    memplan: Memplan, tmp_path: Path
) -> None:
    done = memplan("capture", "train.py:loud", "-o", "step.onnx", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] == "step.onnx"
    for words in ("a print", "below Python", "its own stdout", "another process", "at the end"):
        assert words in done.stderr


def test_a_thread_that_never_ends_is_stopped_with_a_word(memplan: Memplan, tmp_path: Path) -> None:
    done = memplan("capture", "train.py:endless", "-o", "step.onnx", "-q")
    assert (done.returncode, done.stdout) == (0, "step.onnx\n")
    assert "was still running" in done.stderr
    assert (tmp_path / "step.onnx").exists()


def test_processes_that_go_on_are_stopped_with_a_word(memplan: Memplan, tmp_path: Path) -> None:
    done = memplan("capture", "train.py:leaves", "-o", "step.onnx", "--no-check")
    assert done.returncode == 0, done.stderr
    assert "note: stopped what your code left running (2 processes)" in done.stderr
    left = [int(number) for number in (tmp_path / "children").read_text().split()]
    assert not any(map(runs, left))


def test_what_the_function_forbids_its_process_is_not_forbidden_to_us(
    memplan: Memplan, tmp_path: Path
) -> None:
    done = memplan("capture", "train.py:forbids", "-o", "step.onnx", "--no-check")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert (tmp_path / "step.onnx").stat().st_size


def test_another_folder_mask_device_and_stdout_do_not_move_the_file(
    memplan: Memplan, tmp_path: Path
) -> None:
    done = memplan("capture", "train.py:moves", "-o", "step.onnx")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("wrote step.onnx\n")
    assert os.access(tmp_path / "step.onnx", os.R_OK)
    assert not list((tmp_path / "other").iterdir())
    memplan("capture", "train.py:plain", "-o", "plain.onnx")
    assert (tmp_path / "plain.onnx").read_bytes() == (tmp_path / "step.onnx").read_bytes()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_function_and_its_process(tmp_path: Path, number: int, code: int) -> None:
    program = "import sys; from memplan_cli.main import run; run()"
    command = [sys.executable, "-c", program, "capture", "train.py:waits", "-o", "step.onnx"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=as_from_a_terminal
    ) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "waiting\n"
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        child = int(children.read_text()) if children.exists() else 0
        running.send_signal(number)
        assert running.wait(HANG_SECONDS) == code
        assert running.stderr.read().startswith("error: ")
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".pyc") == ["train.py"]
    if child:
        assert eventually(lambda: not Path(f"/proc/{child}").exists())
