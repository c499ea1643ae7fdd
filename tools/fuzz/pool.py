"""Mutants through the program: in forked workers with limits of memory and time.

A mutant is known by the seed of the run and its number, so that a worker needs to be told nothing,
and one mutant can be made again alone. A worker that dies or takes too long has met a defect in the
mutant that it began last; another goes on behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import select
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

import click
import onnx
from google.protobuf.message import DecodeError
from mutate import mutated, mutated_text

from memplan.check.run import CheckRequest, run_update
from memplan.errors import EXIT_BUG, MemplanError
from memplan_cli.main import cli

COMMANDS = ("analyze", "rewrite", "grad", "check", "configuration")
_STRATEGIES = ("auto", "greedy", "none", "segments", "mirror", "speed", "memory")
_LOCKED = "step"  # the seed of which there is a lock
_CONFIGURATION = """[tool.memplan]
session = "tuned"
provider = "cpu"
format = "json"

[project]
name = "x"
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the program ended on mutant ``number``: the exit code (negative: a signal; None: no end
    in time), and where an exception came from that nobody expected."""

    number: int
    code: int | None
    place: str
    message: str

    @property
    def is_defect(self) -> bool:
        """Whether a user must not see this: our bug, a death, no end."""
        return self.code is None or self.code < 0 or self.code == EXIT_BUG


@dataclass(frozen=True, slots=True)
class Run:
    """What is run: a command of :data:`COMMANDS`, ``count`` mutants of ``seeds`` (bytes by name),
    each for at most ``seconds`` and ``memory_bytes``."""

    command: str
    seeds: Mapping[str, bytes]
    seed: int
    count: int
    seconds: float = 20.0
    memory_bytes: int = 4 << 30
    share_of_bytes: float = 0.1

    def mutant(self, number: int) -> tuple[dict[str, bytes], list[str]]:
        """The files of a mutant by name, and the arguments of the program."""
        r = random.Random(f"{self.seed}/{self.command}/{number}")
        data = self.seeds[r.choice(sorted(self.seeds))]
        if self.command == "check":
            lock = mutated_text(_lock(self.seeds[_LOCKED]), r).encode(errors="replace")
            return {"memplan.lock": lock, "model.onnx": self.seeds[_LOCKED]}, ["check"]
        if self.command == "configuration":
            text = mutated_text(_CONFIGURATION, r).encode(errors="replace")
            return {"pyproject.toml": text, "model.onnx": data}, ["analyze", "model.onnx"]
        changed = mutated(data, r, self.share_of_bytes)
        return {"model.onnx": changed}, _arguments(self.command, changed, r)


@cache
def _lock(data: bytes) -> str:
    """The lock of a model, as ``check --update`` writes it."""
    with tempfile.TemporaryDirectory(prefix="memplan-fuzz-") as folder:
        model, lock = Path(folder) / "model.onnx", Path(folder) / "memplan.lock"
        model.write_bytes(data)
        run_update(CheckRequest(lock, (model,)))
        return lock.read_text()


def _arguments(command: str, data: bytes, r: random.Random) -> list[str]:
    dims, outputs = _interface(data)
    bound = [part for name in dims for part in ("--dim", f"{name}={r.choice((2, 4, 8))}")]
    if command == "analyze":
        provider = r.choice(("cpu", "cpu", "cuda"))
        session = r.choice(("tuned", "default"))
        form = r.choice(("text", "json", "html"))
        options = ["--provider", provider, "--session", session, "--format", form]
        return ["analyze", "model.onnx", *options, *bound]
    if command == "rewrite":
        options = ["--budget", r.choice(("95%", "80%", "60%")), "--strategy", r.choice(_STRATEGIES)]
        return ["rewrite", "model.onnx", "--dry-run", "--time-limit", "0.1", *options, *bound]
    loss = r.choice(("mse", "mse", "cross-entropy"))
    options = ["--loss", loss, "--logits", r.choice(outputs or ["y"]), "-o", "step.onnx"]
    options += ["--wrt", "*"] if r.random() < 0.7 else []
    options += ["--optimizer", r.choice(("none", "sgd", "adamw"))]
    return ["grad", "model.onnx", "--force", *options]


def _interface(data: bytes) -> tuple[list[str], list[str]]:
    """Symbolic dimensions of the inputs, and names of the outputs."""
    try:
        graph = onnx.ModelProto.FromString(data).graph
    except DecodeError:
        return [], []
    given = {tensor.name for tensor in graph.initializer}
    dims = {
        dim.dim_param
        for value in graph.input
        for dim in value.type.tensor_type.shape.dim
        if value.name not in given and isinstance(dim.dim_param, str) and dim.dim_param
    }
    names = [value.name for value in graph.output if isinstance(value.name, str) and value.name]
    return sorted(dims), names


def outcomes(run: Run, workers: int = 1, only: int | None = None) -> Iterator[Outcome]:
    """The outcomes of all mutants of a run, in no order; of one if ``only`` is given."""
    numbers = [only] if only is not None else list(range(run.count))
    shares = [numbers[k::workers] for k in range(workers)]
    active = {(worker := _Worker(run, share)).reader: worker for share in shares if share}
    try:
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
            worker.kill()


class _Worker:
    """A child that runs some of the mutants, seen from the parent."""

    def __init__(self, run: Run, numbers: list[int]) -> None:
        self.run, self.left = run, numbers
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _work(run, numbers, writer)
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
                yield Outcome(*told)

    def overdue(self) -> Iterator[Outcome]:
        """Nothing; ends a child that takes too long."""
        if self.begun and not self.late and time.monotonic() - self.since > self.run.seconds:
            self.late = True
            self.kill()
        return iter(())

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> Iterator[Outcome]:
        """The outcome of the mutant of which the child died."""
        os.close(self.reader)
        status = os.waitpid(self.pid, 0)[1]
        if self.begun:
            number, *self.left = self.left
            code = None if self.late else -os.WTERMSIG(status) if os.WIFSIGNALED(status) else 70
            yield Outcome(number, code, "no end in time" if self.late else "died", "")


def _work(run: Run, numbers: list[int], writer: int) -> NoReturn:
    """In the child: run the mutants one by one, and tell the outcome of each."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (run.memory_bytes, run.memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(quiet, stream)
        with tempfile.TemporaryDirectory(prefix="memplan-fuzz-") as folder:
            os.chdir(folder)
            for number in numbers:
                os.write(writer, b"null\n")
                files, arguments = run.mutant(number)
                for name, data in files.items():
                    Path(name).write_bytes(data)
                outcome = _outcome(number, arguments)
                line = [number, outcome.code, outcome.place, outcome.message[:300]]
                os.write(writer, json.dumps(line).encode() + b"\n")
            os.chdir("/")
    finally:
        os._exit(0)


def _outcome(number: int, arguments: list[str]) -> Outcome:
    try:
        result = cli.main(arguments, prog_name="memplan", standalone_mode=False)
    except MemplanError as error:
        place = _place(error) if error.exit_code == EXIT_BUG else ""
        return Outcome(number, error.exit_code, place, error.message)
    except click.ClickException as error:
        return Outcome(number, error.exit_code, "", error.format_message())
    except BaseException as error:  # what nobody expected is what is looked for
        message = f"{type(error).__name__}: {error}"
        return Outcome(number, EXIT_BUG, _place(error), message)
    return Outcome(number, result if isinstance(result, int) else 0, "", "")


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/memplan" in frame.filename] or list(frames)
    file = own[-1].filename.rpartition("/memplan/")[2]
    return f"{type(error).__name__} {file}:{own[-1].lineno} {own[-1].name}"
