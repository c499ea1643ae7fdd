"""Outputs: written as a whole or not at all, and never over anything by accident."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memplan.errors import UsageError
from memplan.proto.write import check_output, check_target, keep_apart, write_atomically


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_write_that_fails_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, step: str
) -> None:
    path = tmp_path / "out.onnx"
    path.write_bytes(b"old")

    def fail(*arguments: object) -> None:
        raise failure

    monkeypatch.setattr(os, step, fail)
    expected = UsageError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        write_atomically(path, b"new", force=True)
    assert "No space left" in str(caught.value) or expected is KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.onnx"]


def test_a_write_without_force_never_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.onnx"
    write_atomically(path, b"first")
    with pytest.raises(UsageError, match="exists"):
        write_atomically(path, b"second")
    assert path.read_bytes() == b"first"
    # Even when another program makes the file between the check and the write.
    late = tmp_path / "late.onnx"
    monkeypatch.setattr("memplan.proto.write.check_output", lambda *_: late.write_bytes(b"theirs"))
    with pytest.raises(UsageError, match="exists"):
        write_atomically(late, b"ours")
    assert late.read_bytes() == b"theirs"
    assert sorted(os.listdir(tmp_path)) == ["late.onnx", "out.onnx"]


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*arguments: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", unsupported)
    write_atomically(tmp_path / "out.onnx", b"data")
    assert (tmp_path / "out.onnx").read_bytes() == b"data"
    assert os.listdir(tmp_path) == ["out.onnx"]


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_outputs_that_cannot_be_written_are_refused_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    cases = {
        tmp_path: "is a folder",
        tmp_path / "file": "exists",
        tmp_path / "link": "exists",
        tmp_path / "none/out": "does not exist",
        tmp_path / "file/out": "does not exist",
        tmp_path / ("a" * 300): "name too long",
        Path(os.devnull): "not a regular file",
    }
    for path, message in cases.items():
        with pytest.raises(UsageError, match=message):
            check_output(path, force=False)
    with pytest.raises(UsageError, match="not a regular file"):
        check_output(Path(os.devnull), force=True)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="not writable"):
        check_output(tmp_path / "out", force=False)


def test_an_input_is_never_a_target_by_any_name(tmp_path: Path) -> None:
    source, link = tmp_path / "in.onnx", tmp_path / "link.onnx"
    source.write_bytes(b"mine")
    link.symlink_to(source)
    for path in (source, link):
        for force in (False, True):
            with pytest.raises(UsageError, match="inputs are never overwritten"):
                check_target(path, force, None, tmp_path / "absent.onnx", source)
    check_target(tmp_path / "out.onnx", False, source)
    assert source.read_bytes() == b"mine"


def test_no_two_outputs_are_one_file(tmp_path: Path) -> None:
    one, link, hard = tmp_path / "one", tmp_path / "link", tmp_path / "hard"
    one.write_bytes(b"mine")
    link.symlink_to(one)
    os.link(one, hard)
    (tmp_path / "folder").symlink_to(tmp_path)
    same = [
        (one, one),
        (one, link),
        (hard, one),
        (tmp_path / "new", tmp_path / "folder" / "new"),
        (tmp_path / "new", tmp_path / "x" / ".." / "new"),
        (tmp_path / "new", tmp_path / "NEW"),
    ]
    for first, second in same:
        with pytest.raises(UsageError, match="another output of this command"):
            keep_apart((first, None, second))
    keep_apart((one, tmp_path / "other", tmp_path / "third"), None)
    assert one.read_bytes() == b"mine"


DYING = """
import os, signal, sys
from pathlib import Path
from memplan.proto.write import written_atomically
with written_atomically(Path(sys.argv[1]), force=True) as stream:
    stream.write(b"half")
    stream.flush()
    if sys.argv[2] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    mine = tmp_path / ".memplan-tmp-settings"
    mine.mkdir(mode=0o700)
    (mine / "kept").write_bytes(b"mine")
    mine.chmod(0o755)
    command = [sys.executable, "-c", DYING, str(path)]
    dead = subprocess.run([*command, "dies"], check=False)
    assert dead.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    with subprocess.Popen(
        [*command, "lives"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as living:
        assert living.stdout.readline() == b"writing\n"
        monkeypatch.setattr("memplan.processes.scratch._swept", set())
        write_atomically(tmp_path / "ours", b"new")
        files = [each for each in tmp_path.glob(".memplan-tmp-*") if each.is_file()]
        assert len(files) == 1  # that of the living
        living.communicate(b"")
    assert path.read_bytes() == b"half"
    assert sorted(p.name for p in tmp_path.iterdir()) == [mine.name, "ours", "out"]
    assert (mine / "kept").read_bytes() == b"mine"
