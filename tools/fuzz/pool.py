"""Mutants through the program: in forked workers with limits of memory and time.

A worker that dies or takes too long has met a defect in the mutant that it began last; another goes
on behind it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import resource
import select
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

import click
import proofs
import values
from cases import SESSIONS, Mutant, Run
from measure import measured
from plans import Ended, rewritten_at_ten_budgets

from memplan.errors import EXIT_BUG, MemplanError
from memplan_cli.main import cli

_MOST_PATIENT = 5  # times the limit, where a machine has so many other things to do


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the program ended on mutant ``number``: the exit code (negative: a signal; None: no end
    in time), and where an exception came from that nobody expected. What it took: wall clock, and
    the largest resident memory of one process. ``counts``: how its calls ended, if many."""

    number: int
    code: int | None
    place: str = ""
    message: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_defect(self) -> bool:
        """Whether a user must not see this: our bug, a death, no end."""
        return self.code is None or self.code < 0 or self.code == EXIT_BUG


def outcomes(run: Run, workers: int = 1, only: int | None = None) -> Iterator[Outcome]:
    """The outcomes of all mutants of a run, in no order; of one if ``only`` is given."""
    numbers = [only] if only is not None else list(range(run.count))
    ends = [len(numbers) * k // workers for k in range(workers + 1)]
    shares = [numbers[begin:end] for begin, end in itertools.pairwise(ends)]
    active: dict[int, _Worker] = {}
    try:
        for share in shares:
            if share:
                worker = _Worker(run, share)
                active[worker.reader] = worker
        while active:
            ready = select.select(list(active), [], [], 0.2)[0]
            for reader in list(active):
                worker = active[reader]
                yield from worker.news() if reader in ready else worker.overdue()
                if worker.ended:
                    del active[reader]
                    yield from worker.close()
                    if worker.left:
                        successor = _Worker(run, worker.left)
                        active[successor.reader] = successor
    finally:
        for worker in active.values():
            worker.end()


def patience() -> float:
    """By how much seconds are longer where the processors are also others'."""
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), _MOST_PATIENT)


class _Worker:
    """A child that runs some of the mutants, seen from the parent."""

    def __init__(self, run: Run, numbers: list[int]) -> None:
        self.run, self.left = run, numbers
        self.folder = tempfile.mkdtemp(prefix="memplan-fuzz-")
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _work(run, numbers, writer, self.folder)
        os.close(writer)
        self.since, self.begun, self.late, self.ended = time.monotonic(), False, False, False
        self.text = b""

    def news(self) -> Iterator[Outcome]:
        """What the child has told since."""
        piece = os.read(self.reader, 1 << 16)
        self.ended = not piece
        *lines, self.text = (self.text + piece).split(b"\n")
        for line in lines:
            told = json.loads(line)
            self.since, self.begun = time.monotonic(), told is None
            if told is not None:
                self.left = self.left[1:]
                yield Outcome(**told)

    def overdue(self) -> Iterator[Outcome]:
        """Nothing; ends a child that takes too long."""
        if self.begun and not self.late and self._takes_too_long():
            self.late = True
            self.kill()
        return iter(())

    def _takes_too_long(self) -> bool:
        return time.monotonic() - self.since > self.run.seconds * patience()

    def end(self) -> None:
        """Kill it in the middle."""
        self.kill()
        os.close(self.reader)
        os.waitpid(self.pid, 0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> Iterator[Outcome]:
        """The outcome of the mutant of which the child died."""
        os.close(self.reader)
        status = os.waitpid(self.pid, 0)[1]
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.begun:
            number, *self.left = self.left
            code = None if self.late else -os.WTERMSIG(status) if os.WIFSIGNALED(status) else 70
            yield Outcome(number, code, "no end in time" if self.late else "died", "")


def _work(run: Run, numbers: list[int], writer: int, folder: str) -> NoReturn:
    """In the child: run the mutants one by one in ``folder``, which the parent removes, and tell
    the outcome of each."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # What is killed leaves its own temporary folders behind.
        os.environ["TMPDIR"] = tempfile.tempdir = os.path.join(folder, "tmp")
        os.mkdir(tempfile.tempdir)
        os.mkdir(os.path.join(folder, "work"))
        resource.setrlimit(resource.RLIMIT_AS, (run.memory_bytes, run.memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(quiet, stream)
        os.chdir(os.path.join(folder, "work"))
        for number in numbers:
            os.write(writer, b"null\n")
            mutant = run.mutant(number)
            for name, data in mutant.files.items():
                Path(name).write_bytes(data)
            with measured() as spent:
                (code, place, message), counts = _ended(run, number, mutant)
            outcome = Outcome(number, code, place, message[:300], counts=counts, **asdict(spent))
            os.write(writer, json.dumps(asdict(outcome)).encode() + b"\n")
    finally:
        os._exit(0)


def _ended(run: Run, number: int, mutant: Mutant) -> tuple[Ended, Mapping[str, int]]:
    """How the first call ended that did not with exit code 0, or the last; for many, counts."""
    if run.command == proofs.COMMAND:
        try:
            return proofs.examined(run.seed, number, proofs.Edited.of(mutant.files))
        except Exception as error:  # of the proof, which never raises
            return (EXIT_BUG, _place(error), f"{type(error).__name__}: {error}"), {}
    if run.command == values.COMMAND:
        return values.examined(run.seed, number)
    if run.command in SESSIONS:
        r = random.Random(f"{run.seed}/{run.command}/{number}")
        return rewritten_at_ten_budgets(_called, SESSIONS[run.command], r)
    ended = (0, "", "")
    for arguments in mutant.calls:
        ended = _called(arguments)
        if ended[0]:
            break
    return ended, {}


def _called(arguments: Sequence[str]) -> Ended:
    """How a call of the program ended: with an exit code, or by an exception."""
    try:
        result = cli.main(list(arguments), prog_name="memplan", standalone_mode=False)
    except MemplanError as error:
        place = _place(error) if error.exit_code == EXIT_BUG else ""
        return error.exit_code, place, f"{error.message} | {error.hint}"
    except click.ClickException as error:
        return error.exit_code, "", error.format_message()
    except BaseException as error:  # what nobody expected is what is looked for
        return EXIT_BUG, _place(error), f"{type(error).__name__}: {error}"
    return result if isinstance(result, int) else 0, "", ""


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/memplan" in frame.filename] or list(frames)
    file = own[-1].filename.rpartition("/memplan/")[2]
    return f"{type(error).__name__} {file}:{own[-1].lineno} {own[-1].name}"
