"""What one process has for as long as it runs, and others are refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import eventually
from memplan.errors import UsageError
from memplan.processes.locks import kept, require_free
from memplan.proto.write import write_atomically

KEEPER = """
import sys, time
from pathlib import Path
from memplan.processes.locks import kept
with kept(Path(sys.argv[1])):
    print("kept", flush=True)
    time.sleep(600)
"""


def test_a_file_is_kept_while_it_is_replaced_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    with kept(path):
        for data in (b"1", b"2"):
            write_atomically(path, data, force=True)
            with pytest.raises(UsageError, match=r"run\.npz is in use by another run"), kept(path):
                pass
        require_free(path)  # for those who keep it
        with kept(tmp_path / "other.npz"):
            pass
    assert os.listdir(tmp_path) == ["run.npz"]
    with kept(path):
        pass


def test_a_process_that_is_killed_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    command = [sys.executable, "-c", KEEPER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout.readline() == "kept\n"
        with pytest.raises(UsageError, match="in use by another run"):
            require_free(path)
        os.kill(keeper.pid, signal.SIGKILL)
    with kept(path):
        pass
    assert not os.listdir(tmp_path)


def test_a_fork_that_lives_on_keeps_nothing(tmp_path: Path) -> None:
    path, (reader, writer) = tmp_path / "run.npz", os.pipe()
    with kept(path):
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    try:
        with kept(path):
            pass
    finally:
        os.close(reader)
        os.close(writer)
        os.waitpid(child, 0)


def test_what_a_killed_process_leaves_is_removed_by_the_next_output(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    command = [sys.executable, "-c", KEEPER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as keeper:
        keeper.stdout.readline()
        os.kill(keeper.pid, signal.SIGKILL)
    assert eventually(lambda: len(os.listdir(tmp_path)) == 1)
    write_atomically(tmp_path / "model.onnx", b"1")
    assert os.listdir(tmp_path) == ["model.onnx"]
