"""Disks that are full, files that are closed, folders that are gone, signals: never "a bug"."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import odd_models as odd
from helpers.odd_models import saved
from helpers.processes import HANG_SECONDS, as_from_a_terminal
from helpers.refusals import assert_refused
from helpers.running import Memplan
from memplan.errors import EXIT_ENVIRONMENT

MODEL = "model.onnx"


def shell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in ``folder``, where ``memplan`` is the installed program."""
    script = shutil.which("memplan", path=str(Path(sys.executable).parent))
    assert script is not None
    saved(odd.training(), folder)
    line = f'memplan() {{ "{script}" "$@"; }}\n{line}'
    command = ["bash", "-c", line]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS)


full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


@full_disk
@pytest.mark.parametrize("command", ["analyze model.onnx", "--version"])
def test_stdout_on_a_full_disk(tmp_path: Path, command: str) -> None:
    words = ("No space left on device",)
    assert_refused(shell(tmp_path, f"memplan {command} > /dev/full"), EXIT_ENVIRONMENT, *words)


@pytest.mark.parametrize(
    ("command", "unbuffered"), [("analyze model.onnx --format json", "1"), ("rewrite -h", "")]
)
def test_stdout_that_takes_a_part(tmp_path: Path, command: str, unbuffered: str) -> None:
    """As a disk that fills up midway: unbuffered Python takes no notice of how much was written."""
    line = f"export PYTHONUNBUFFERED={unbuffered}; ulimit -f 1; memplan {command} > out.txt"
    done = shell(tmp_path, line)
    assert_refused(done, EXIT_ENVIRONMENT, "File too large")
    assert (tmp_path / "out.txt").stat().st_size == 1024


def test_stdout_that_is_closed(tmp_path: Path) -> None:
    done = shell(tmp_path, "memplan analyze model.onnx >&-")
    assert_refused(done, EXIT_ENVIRONMENT, "output is closed")
    # Who does not write to stdout does not need one; nor stdin, nor stderr.
    assert shell(tmp_path, "memplan analyze model.onnx -o out.txt >&- <&- 2>&-").returncode == 0
    assert "peak" in (tmp_path / "out.txt").read_text()


@full_disk
@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
def test_an_error_that_cannot_be_told_keeps_its_exit_code(tmp_path: Path, stderr: str) -> None:
    done = shell(tmp_path, f"memplan analyze nothing.onnx {stderr}")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def test_a_current_folder_that_was_deleted(tmp_path: Path) -> None:
    gone = 'mkdir gone; cd gone; rmdir "$PWD"; '
    done = shell(tmp_path, f'here="$PWD"; {gone} memplan analyze "$here/model.onnx" -q')
    assert done.returncode == 0, done.stderr
    done = shell(tmp_path, f"{gone} memplan check")
    assert done.returncode in (3, EXIT_ENVIRONMENT), done.stderr
    done = shell(tmp_path, f"{gone} memplan analyze ../model.onnx")
    assert_refused(done, EXIT_ENVIRONMENT, "the current folder no longer exists")


def test_a_temporary_folder_that_is_not_there(program: Memplan, tmp_path: Path) -> None:
    """What cannot be made elsewhere is told in one line; analyze needs none."""
    saved(odd.training(), tmp_path)
    (tmp_path / "file").write_bytes(b"")
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv.pop(1);"
        "from memplan_cli.main import run; run()"
    )
    for arguments, expected in (
        (("analyze", MODEL), 0),
        (("validate", MODEL, MODEL, "--runs", "1"), EXIT_ENVIRONMENT),
        (("profile", MODEL, "-o", "costs.json"), EXIT_ENVIRONMENT),
    ):
        command = [sys.executable, "-c", code, str(tmp_path / "file"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == expected, done.stderr
        if expected:
            assert "temporary files cannot be written" in done.stderr
            assert "TMPDIR" in done.stderr


def test_an_interrupt_inside_compiled_code_is_an_interrupt(
    inside: Memplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numba hands a Ctrl-C on as the cause of a SystemError."""
    saved(odd.training(), tmp_path)

    def interrupted(*arguments: object, **options: object) -> None:
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()

    monkeypatch.setattr("memplan.api.analysis.analyze", interrupted)
    assert inside("analyze", MODEL).returncode == 128 + signal.SIGINT

    def failed(*arguments: object, **options: object) -> None:
        raise SystemError("something else")

    monkeypatch.setattr("memplan.api.analysis.analyze", failed)
    assert inside("analyze", MODEL).returncode == 70


def test_what_the_machine_refuses_is_not_told_of_the_model(tmp_path: Path) -> None:
    line = "NUMBA_NUM_THREADS=-1 memplan rewrite model.onnx --budget 80% --dry-run"
    words = ("numba does not start: Number of threads", "NUMBA_")
    assert_refused(shell(tmp_path, line), EXIT_ENVIRONMENT, *words)


def test_where_a_process_may_open_few_files_onnx_works_in_this_one(tmp_path: Path) -> None:
    few, usual = (
        shell(tmp_path, f"{limit}memplan analyze model.onnx") for limit in ("ulimit -n 8; ", "")
    )
    assert few.returncode == 0, few.stderr
    assert few.stdout == usual.stdout


BROKEN_OFF = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
import memplan.api.analysis as module
from memplan.errors import RuntimeUnavailableError
def analyze(*arguments, **options):
    try:
        os.kill(os.getpid(), NUMBER)
    except KeyboardInterrupt:
        pass
    raise ERROR
module.analyze = analyze
from memplan_cli.main import run
run()
"""


INTERRUPT = (signal.SIGINT, 130, "interrupted")
TERMINATE = (signal.SIGTERM, 143, "terminated")
HANG_UP = (signal.SIGHUP, 129, "hung up")


@pytest.mark.parametrize(
    ("error", "number", "code", "word"),
    [
        ("RuntimeError(\"no compiled object yet for <Library 'improve'>\")", *INTERRUPT),
        ("SystemError('unknown opcode')", *TERMINATE),
        ("OSError(9, 'Bad file descriptor')", *INTERRUPT),
        ("RuntimeUnavailableError('a child was ended by SIGTERM')", *TERMINATE),
    ],
)
def test_what_a_signal_broke_off_is_no_bug_whatever_is_raised(
    tmp_path: Path, error: str, number: signal.Signals, code: int, word: str
) -> None:
    """numba's compiler, interrupted, fails in words of its own later."""
    saved(odd.training(), tmp_path)
    source = BROKEN_OFF.replace("NUMBER", str(int(number))).replace("ERROR", error)
    command = [sys.executable, "-c", source, "analyze", MODEL]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert_refused(done, code, f"error: {word}", "nothing was written")


WAITING = """
import ctypes, os, sys, time
import memplan.api.analysis as module
def kill():
    os.kill(os.getpid(), int(sys.argv.pop()))
def analyze(*arguments, **options):
    WHERE
    while True:
        time.sleep(0.1)
module.analyze = analyze
from memplan_cli.main import run
run()
"""


@pytest.mark.parametrize(
    ("number", "code", "word", "where"),
    [
        (*INTERRUPT, "kill()"),
        (*HANG_UP, "kill()"),
        (*INTERRUPT, "ctypes.CFUNCTYPE(None)(kill)()"),
        (*TERMINATE, "ctypes.CFUNCTYPE(None)(kill)()"),
    ],
)
def test_a_signal_ends_a_command_in_good_order(
    tmp_path: Path, number: signal.Signals, code: int, word: str, where: str
) -> None:
    """Also where Python drops it: in what compiled code calls back."""
    saved(odd.training(), tmp_path)
    source = WAITING.replace("sys.argv.pop()", str(int(number))).replace("WHERE", where)
    command = [sys.executable, "-c", source, "analyze", MODEL]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        preexec_fn=as_from_a_terminal,
    )
    done.stderr = done.stderr.lstrip("\n")  # click ends the line in which ^C stands
    assert_refused(done, code, word, "nothing was written")


NOHUP = """
import os, signal, sys
import memplan.api.analysis as module
real = module.analyze
def analyze(*arguments, **options):
    os.kill(os.getpid(), signal.SIGHUP)
    return real(*arguments, **options)
module.analyze = analyze
from memplan_cli.main import run
run()
"""


def test_a_hang_up_that_is_ignored_stays_so(tmp_path: Path) -> None:
    """As ``nohup`` wants it."""
    saved(odd.training(), tmp_path)
    done = shell(tmp_path, f"trap '' HUP; exec {sys.executable} -c '{NOHUP}' analyze {MODEL} -q")
    assert (done.returncode, done.stderr) == (0, "")
    assert "peak" in done.stdout
