"""What a mutant is, for each command: files, and calls of the program in their folder.

A mutant is known by the seed of the run and its number, so that a worker needs to be told nothing,
and one mutant can be made again alone.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx
import proofs
import values
from google.protobuf.message import DecodeError
from graphs import random_step
from mutate import mutated, mutated_text

from memplan.api.check.checking import CheckRequest, run_update

MUTATED = ("analyze", "rewrite", "grad", "validate", "check")
SESSIONS = {"plans": "tuned", "plain-plans": "default"}
"""Commands that take random training graphs instead of seeds: the kind of session they plan for."""
COMMANDS = (*MUTATED, *SESSIONS, proofs.COMMAND, values.COMMAND)
PLANNED = {"rewrite", "validate", *SESSIONS, proofs.COMMAND}
_STRATEGIES = ("auto", "greedy", "none", "segments", "mirror", "speed", "memory")
_LOCKED = "step"  # the seed of which there is a lock
# Where the runtime is asked, in a process of its own, which takes ten times as long as the rest:
_SHARE_OF_PLAIN = 0.02  # sessions with default options
_SHARE_OF_FUSIONS = 0.2  # rewrites with ONNX Runtime's optimizer
_SHARE_OF_STEPS = 0.7  # training graphs: of others nothing can be recomputed


@dataclass(frozen=True, slots=True)
class Mutant:
    """The files of a mutant by name, and the calls of the program that are made of them, one after
    the other, until one does not end with exit code 0; none if :mod:`plans` makes them."""

    files: Mapping[str, bytes]
    calls: tuple[tuple[str, ...], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(map(len, self.files.values()))


@dataclass(frozen=True, slots=True)
class Run:
    """What is run: a command of :data:`COMMANDS`, ``count`` mutants of ``seeds`` (bytes by name),
    each for at most ``seconds`` and ``memory_bytes``.

    ``unchanged``: mutant number N is the Nth of the seeds, in the order of their names, as it is.
    """

    command: str
    seeds: Mapping[str, bytes]
    seed: int
    count: int
    seconds: float = 20.0
    memory_bytes: int = 4 << 30
    share_of_bytes: float = 0.1
    unchanged: bool = False

    def mutant(self, number: int) -> Mutant:
        """The mutant ``number``."""
        r = random.Random(f"{self.seed}/{self.command}/{number}")
        if self.command in SESSIONS:
            r = random.Random(f"{self.seed}/{number}")  # the same graphs for both sessions
            return Mutant({"model.onnx": random_step(r).SerializeToString()}, ())
        if self.command == proofs.COMMAND:
            edit = proofs.mutant(self.seed, number)
            return Mutant(edit.files(), ())
        if self.command == values.COMMAND:
            return Mutant({}, ())
        names = sorted(self.seeds)
        if self.command == "rewrite" and not self.unchanged and r.random() < _SHARE_OF_STEPS:
            names = [name for name in names if "step" in name] or names
        data = self.seeds[names[number] if self.unchanged else r.choice(names)]
        if self.command == "check":
            lock = mutated_text(_lock(self.seeds[_LOCKED]), r).encode(errors="replace")
            files = {"memplan.lock": lock, "model.onnx": self.seeds[_LOCKED]}
            return Mutant(files, (r.choice(_CHECKS),))
        if not self.unchanged:
            data = mutated(data, r, self.share_of_bytes)
        return Mutant({"model.onnx": data}, _calls(self.command, data, r))


_CHECKS = (("check",), ("check",), ("check", "--update"), ("check", "--format", "json"))


@cache
def _lock(data: bytes) -> str:
    """The lock of a model, as ``check --update`` writes it."""
    with tempfile.TemporaryDirectory(prefix="memplan-fuzz-") as folder:
        model, lock = Path(folder) / "model.onnx", Path(folder) / "memplan.lock"
        model.write_bytes(data)
        run_update(CheckRequest(lock, (model,)))
        return lock.read_text()


def _calls(command: str, data: bytes, r: random.Random) -> tuple[tuple[str, ...], ...]:
    dims, outputs = _interface(data)
    bound = [part for name in dims for part in ("--dim", f"{name}={r.choice((2, 4, 8))}")]
    if command == "analyze":
        provider = r.choice(("cpu", "cpu", "cuda"))
        session = "default" if r.random() < _SHARE_OF_PLAIN else "tuned"
        form = r.choice(("text", "json", "html"))
        options = ["--provider", provider, "--session", session, "--format", form]
        return (("analyze", "model.onnx", *options, *bound),)
    if command == "rewrite":
        options = ["--budget", r.choice(("99%", "95%", "90%", "80%", "60%"))]
        options += ["--strategy", r.choice(_STRATEGIES)]
        options += ["--optimize", "extended" if r.random() < _SHARE_OF_FUSIONS else "none"]
        return (("rewrite", "model.onnx", "--dry-run", "--time-limit", "0.1", *options, *bound),)
    if command == "validate":
        options = ["--budget", "100%", "--strategy", "greedy", "-o", "new.onnx", "--force"]
        runs = ["--runs", "1", "--time-limit", "60"]
        return (
            ("rewrite", "model.onnx", *options, *bound),
            ("validate", "model.onnx", "new.onnx", *runs, *bound),
        )
    loss = r.choice(("mse", "mse", "cross-entropy"))
    options = ["--loss", loss, "--logits", r.choice(outputs or ["y"]), "-o", "step.onnx"]
    options += ["--wrt", "*"] if r.random() < 0.7 else []
    options += ["--optimizer", r.choice(("none", "sgd", "adamw"))]
    return (("grad", "model.onnx", "--force", *options),)


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
