"""A command that runs code of its user does so in a process of its own.

Whatever that code does to its process (ends it, closes files, prints below Python, leaves threads
behind) stays there. What memplan itself says goes through a file to this process, which tells it
and has the exit code; all that is printed there otherwise goes to stderr.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from memplan.errors import MemplanError, RuntimeUnavailableError, UsageError
from memplan.processes.child import started
from memplan.processes.scratch import scratch_folder
from memplan.units import counted
from memplan_cli.signals import TERMINATING
from memplan_cli.standard_files import (
    STDERR,
    reserve_standard_files,
    whole_stream,
    write_whole,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_FOREIGN = ("capture",)
_HELP = {"-h", "--help"}
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 20.0
"""For what is still running when the answer is there."""
_MUTE = 113
"""The exit code of a process that cannot write its answer."""
_MARK = "MEMPLAN_RUNS_APART"
"""A variable by which the processes are known that the user's code starts."""
_MOMENT_SECONDS = 1.0
"""For what ends by itself when the process has ended that it was started by."""
_inside: list[int] = []


@dataclass(frozen=True, slots=True)
class Answer:
    """What the other process had to say: on stdout, on stderr, and its exit code."""

    code: int
    out: str
    err: str


def runs_apart(arguments: Sequence[str]) -> bool:
    """Whether a command line runs code of its user, and this is not yet the process for it."""
    foreign = bool(arguments) and arguments[0] in _FOREIGN
    return foreign and not _inside and not _HELP & set(arguments)


def run_apart(arguments: Sequence[str]) -> Answer:
    """Run a command line in another process.

    Raises:
        RuntimeUnavailableError: no process can be started, or it crashed.
        UsageError: the code ended the process.
    """
    with scratch_folder() as folder:
        path = folder / "answer.json"
        given = [str(path), "terminal" if sys.stdout.isatty() else "file", *arguments]
        try:
            with (
                _ends_what_it_starts() as mark,
                started(
                    __name__, *given, output=2, foreign=True, environment={_MARK: mark}
                ) as child,
            ):
                _await(child, path)
        except OSError as error:
            raise RuntimeUnavailableError(f"no process can be started: {error}") from None
        if not path.exists():
            raise _ended(child.returncode)
        return Answer(**json.loads(path.read_text()))


def _await(child: subprocess.Popen[str], path: Path) -> None:
    """Wait for an answer, and a little longer for the end of what gave it."""
    try:
        while child.poll() is None and not path.exists():
            with suppress(subprocess.TimeoutExpired):
                child.wait(_POLL_SECONDS)
        child.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        sys.stderr.write(
            "note: something your code started (a thread, an atexit handler) was still running "
            f"{_GRACE_SECONDS:g} s after the answer, and was stopped\n"
        )
    except KeyboardInterrupt:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_SECONDS / 4)
        raise


@contextmanager
def _ends_what_it_starts() -> Iterator[str]:
    """Yields the value of a variable; processes that have it end with the block. What the user's
    code starts has its environment, and may outlive the process in which it ran."""
    mark = secrets.token_hex(8)
    try:
        yield mark
    finally:
        patience = _MOMENT_SECONDS
        while (left := _processes_with(mark)) and patience > 0:  # some see that it is gone
            time.sleep(_POLL_SECONDS)
            patience -= _POLL_SECONDS
        for number in left:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        if left:
            count = counted(len(left), "process", "processes")
            sys.stderr.write(f"note: stopped what your code left running ({count})\n")


def _processes_with(mark: str) -> list[int]:
    """The numbers of processes that were started with the variable, where the system tells."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # gone, or another user's
            if f"{_MARK}={mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def _ended(code: int) -> MemplanError:
    """Why there is no answer."""
    if code == _MUTE:
        return RuntimeUnavailableError(
            "the process that ran your code may write no more files; nothing was told",
            "look for resource.setrlimit, and for a full disk",
        )
    if code >= 0:
        return UsageError(
            f"your code ended its process (exit code {code}); nothing was written",
            "look for os._exit, and for a fork whose child goes on",
        )
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "out of memory? a smaller example batch would do" if name == "SIGKILL" else ""
    return RuntimeUnavailableError(
        f"the process that ran your code was ended by {name}; nothing was written",
        hint or "a library crashed, or your code sent it; python -X faulthandler may show where",
    )


class _OfThisThread(io.BytesIO):
    """What the main thread writes; what others do, which the user's code left behind, goes to
    stderr."""

    def write(self, data: Buffer) -> int:
        """See the class."""
        if threading.current_thread() is threading.main_thread():
            return super().write(data)
        return write_whole(STDERR, data)


class _Kept(io.TextIOWrapper):
    """Text that goes into the answer; says that it is a terminal where the answer goes to one."""

    def __init__(self, terminal: bool = False) -> None:
        super().__init__(
            _OfThisThread(), encoding="utf-8", errors="surrogateescape", write_through=True
        )
        self._terminal = terminal

    def isatty(self) -> bool:
        """See the class."""
        return self._terminal

    def text(self) -> str:
        """What was written."""
        self.seek(0)
        return self.read()


def _leave(code: int) -> NoReturn:
    """End as an interpreter does, but for taking all modules apart: a second, where PyTorch is one
    of them."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError, OSError):  # none, closed, or full
            stream.flush()
    os._exit(code)


def main(path: str, out: str, *arguments: str) -> NoReturn:
    """Run a command line, as the other process does, and write the answer to ``path``."""
    from memplan_cli import main as program

    _inside.append(os.getpid())
    for number in (signal.SIGINT, *TERMINATING):
        signal.signal(number, _interrupted)
    sys.stdout, sys.stderr = kept = _Kept(out == "terminal"), _Kept()
    code = program.main(list(arguments))
    if os.getpid() not in _inside:  # a fork of the user's code, which came back
        os._exit(0)
    _put_standard_files_back()
    answer = {"code": code, "out": kept[0].text(), "err": kept[1].text()}
    try:
        Path(f"{path}.new").write_text(json.dumps(answer))
        os.replace(f"{path}.new", path)
    except FileNotFoundError:  # the parent is gone
        pass
    except OSError:
        _leave(_MUTE)
    _leave(code)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """The first signal is an interrupt; a terminal sends one beside that of the parent."""
    for each in (signal.SIGINT, *TERMINATING):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def users_streams() -> Iterator[None]:
    """Inside, what is printed goes to stderr, which the code may also close or replace."""
    if not _inside:
        yield
        return
    before = sys.stdout, sys.stderr
    _put_standard_files_back()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _put_standard_files_back() -> None:
    reserve_standard_files()
    sys.stdout = sys.stderr = whole_stream(STDERR, errors="backslashreplace")
