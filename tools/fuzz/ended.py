"""How an item of a run ended, and how a call of the program does."""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from memplan.errors import EXIT_BUG, MemplanError
from memplan.processes import child
from memplan_cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))  # for helpers


@dataclass(frozen=True, slots=True)
class Ended:
    """``place``: what is wrong, nothing where all is well; ``message``: the first that is said of
    it. ``counts``: how its parts ended. ``files``: what it was made of, to be kept of a find. What
    it took: ``seconds`` of the processor, and resident memory at its highest."""

    counts: Mapping[str, int]
    place: str = ""
    message: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    peak_bytes: int = 0


def called(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Exit code of a call of the program in this process, place of an exception that nobody
    expected, and message with hint."""
    try:
        result = cli.main(list(arguments), prog_name="memplan", standalone_mode=False)
    except MemplanError as error:
        place = place_of(error) if error.exit_code == EXIT_BUG else ""
        return error.exit_code, place, f"{error.message} | {error.hint}"
    except click.ClickException as error:
        return error.exit_code, "", error.format_message()
    except BaseException as error:  # what nobody expected is what is looked for
        return EXIT_BUG, place_of(error), f"{type(error).__name__}: {error}"
    return result if isinstance(result, int) else 0, "", ""


def place_of(error: BaseException) -> str:
    """Where in memplan an exception came from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/memplan" in frame.filename] or list(frames)
    file = own[-1].filename.rpartition("/memplan/")[2]
    return f"{type(error).__name__} {file}:{own[-1].lineno} {own[-1].name}"


def forked(work: Callable[[], object], seconds: float | None) -> tuple[int, Any, bool]:
    """The exit code of a fork of this process that does some work, what it used, with its children,
    as :func:`os.wait4` says it, and whether it was killed because it was not over in time."""
    pid, late, begun = os.fork(), False, time.monotonic()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    try:
        while not (found := os.wait4(pid, os.WNOHANG))[0]:
            late = late or (seconds is not None and time.monotonic() - begun > seconds)
            if late:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return os.waitstatus_to_exitcode(found[1]), found[2], late


def forked_child(
    folder: Path, variables: Mapping[str, str], seconds: float | None
) -> tuple[int, str]:
    """What ``processes.child`` starts, as a fork that has imported all already, which halves the
    time of a small file."""
    reader, writer = os.pipe()

    def work() -> None:
        os.close(writer)
        os.dup2(reader, 0)
        os.environ.update(variables)
        child.main("[]", str(folder))

    try:
        code, _, late = forked(work, seconds)
    finally:
        os.close(reader)
        os.close(writer)
    if late:
        raise subprocess.TimeoutExpired("child", seconds or 0)
    return code, ""
