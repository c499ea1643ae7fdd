"""A call in another process: its answer, and that children end with their parent, and scratch
folders with their owner, however that ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.processes import eventually, runs
from memplan.errors import RuntimeUnavailableError
from memplan.processes.child import ChildError, call
from memplan.processes.scratch import scratch_folder

FUNCTIONS = """
import os, sys, time
from pathlib import Path
def tell(*values):
    print("noise", file=sys.stderr)
    return os.getpid(), os.environ.get("MINE"), values
def fail(text):
    raise ValueError(text)
def end():
    os._exit(3)
def sleep(parent=0):
    Path(os.environ["PID"]).write_text(f"{os.getpid()}\\n")
    if parent:
        os.kill(parent, 2)
    time.sleep(600)
"""
PARENT = """
import sys
from memplan.processes.child import call
from memplan.processes.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "large").write_bytes(bytes(1000))
    print(folder, flush=True)
    if "child" in sys.argv:
        call("functions:sleep")
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that children find, which tell their process id in ``tmp_path/pid``."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PID", str(tmp_path / "pid"))


@pytest.fixture
def parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program with a scratch folder in ``tmp_path/tmp``, with or without a child."""
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


def folder_of(process: subprocess.Popen[str]) -> Path:
    """The program's scratch folder."""
    return Path(process.stdout.readline().rstrip("\n"))


def child_of(place: Path) -> int:
    """The process id that a child has told."""
    file = place / "pid"
    assert eventually(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())


def test_a_call_gives_what_the_function_gives() -> None:
    pid, variable, values = call("functions:tell", 1, Path("ä"), environment={"MINE": "yes"})
    assert pid != os.getpid()
    assert (variable, values) == ("yes", (1, Path("ä")))


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        ("functions:fail", ("no\nkernel",), "^no\nkernel$"),
        ("functions:end", (), "^exit code 3$"),
        ("nowhere:f", (), "^ModuleNotFoundError: No module named 'nowhere'$"),
    ],
)
def test_a_call_that_fails_says_why(function: str, arguments: tuple[str, ...], why: str) -> None:
    with pytest.raises(ChildError, match=why):
        call(function, *arguments)


def test_a_child_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        call("functions:sleep", time_limit=1)
    # On a machine that is busy it may have ended before it could tell.
    assert not (tmp_path / "pid").exists() or not runs(child_of(tmp_path))


def test_a_child_is_killed_when_its_parent_is_interrupted(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        call("functions:sleep", os.getpid())
    pid = child_of(tmp_path)
    assert eventually(lambda: not runs(pid))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_program_leaves_no_child_and_no_folder(
    parent: Callable[..., subprocess.Popen[str]], number: signal.Signals, tmp_path: Path
) -> None:
    process = parent("child")
    folder, pid = folder_of(process), child_of(tmp_path)
    assert runs(pid)
    assert folder.is_dir()
    process.send_signal(number)
    assert eventually(lambda: not runs(pid))
    assert eventually(lambda: not any((tmp_path / "tmp").iterdir()))


def test_what_a_killed_program_left_goes_with_the_next_one(
    parent: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    killed, alive = parent(), parent()
    left, used = folder_of(killed), folder_of(alive)
    someones = tmp_path / "tmp" / "memplan-results"
    someones.mkdir()
    killed.kill()
    killed.wait()
    assert left.is_dir()
    folder_of(parent())
    assert not left.exists()
    assert used.is_dir()
    assert someones.is_dir()


def test_a_full_temporary_folder_is_one_line() -> None:
    full = pytest.raises(RuntimeUnavailableError, match="No space left on device")
    with full as found, scratch_folder():
        raise OSError(28, os.strerror(28))
    assert "TMPDIR" in found.value.hint
