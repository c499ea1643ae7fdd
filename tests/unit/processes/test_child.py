"""Children end with their parent, and scratch folders with their owner, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.processes import eventually, runs
from memplan.processes.child import started

SLEEPER = """
import time
def main(*arguments):
    print("started", flush=True)
    time.sleep(600)
"""
PARENT = """
import sys
from memplan.processes.child import started
from memplan.processes.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "large").write_bytes(bytes(1000))
    if "child" in sys.argv:
        with started("sleeper") as child:
            child.stdout.readline()
            print(child.pid, folder, flush=True)
            child.wait()
    print(0, folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program with a scratch folder in ``tmp_path/tmp``, with or without a child."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PARENT, *arguments]
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str]) -> tuple[int, Path]:
    """The child's process id, and the folder."""
    assert process.stdout is not None
    pid, folder = process.stdout.readline().split()
    return int(pid), Path(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_program_leaves_no_child_and_no_folder(
    parent: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = parent("child")
    pid, folder = told(process)
    assert runs(pid)
    assert folder.is_dir()
    process.send_signal(number)
    assert eventually(lambda: not runs(pid))
    assert eventually(lambda: not folder.exists())


def test_what_a_killed_program_left_goes_with_the_next_one(
    parent: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    killed, alive = parent(), parent()
    left, used = told(killed)[1], told(alive)[1]
    someones = tmp_path / "tmp" / "memplan-results"
    someones.mkdir()
    killed.kill()
    killed.wait()
    assert left.is_dir()
    told(parent())
    assert not left.exists()
    assert used.is_dir()
    assert someones.is_dir()


def test_a_child_is_killed_when_its_parent_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), started("sleeper") as child:
        raise KeyboardInterrupt
    assert child.returncode == -signal.SIGKILL
