"""A training step by PyTorch and by memplan, by turns: seconds and growth of the resident set.

Five networks (``nets.py``), AdamW, CPU. PyTorch eager, with ``torch.utils.checkpoint`` around
every block, and compiled at four values of ``activation_memory_budget``; memplan as captured, and
rewritten for each growth that PyTorch reached, and for 40% of eager's. Every configuration is a
process of its own (``worker.py``). In each round every one takes some steps, one after the other,
while the others wait, so what slows the machine down slows all alike. Its time is the median over
rounds of a round's median.

memplan is asked for a budget at which its process, not the prediction, should take what PyTorch's
took: the growth, less the bytes that the captured step grew beyond its prediction.

    python -m benchmarks.steps.pytorch --json benchmarks/results/pytorch_steps.json
    python -m benchmarks.steps.pytorch --models lstm --rounds 2 --compile 0.5    # a trial

Needs torch and, for ``torch.compile``, a C++ compiler. In a record that is there, models that are
not asked for keep their rows.
"""

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from benchmarks.record import Row, arguments, run

COMPILED = (1.0, 0.7, 0.5, 0.35)
SHARE = 0.4  # of eager's growth
_SAME = 0.03  # growths so close are one budget
_PAUSE = 0.05  # until threads of the one before have stopped waiting for work


class Worker:
    """A configuration in its process, and what it has told so far."""

    def __init__(self, who: str, *arguments: str, **facts: Any) -> None:
        self.row: Row = {"who": who, **facts}
        command = [sys.executable, "-m", "benchmarks.steps.worker", *arguments]
        # Each thread of glibc's malloc keeps what it is given back: one arena shows what is in use.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the worker)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        self._rounds: list[float] = []
        self._losses: list[float] = []
        self.row |= self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let it end."""
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        self._errors.close()

    @property
    def works(self) -> bool:
        """Whether it has not failed."""
        return "failed" not in self.row

    def steps(self, count: int, *, counts: bool = True) -> None:
        """Let it take steps, which are a round if they count."""
        if not self.works:
            return
        assert self._process.stdin is not None
        time.sleep(_PAUSE)
        print(count, file=self._process.stdin, flush=True)
        found = self._answer()
        self._losses += found.pop("losses", [])
        seconds = found.pop("seconds", [])
        self.row |= found
        if counts and seconds:
            self._rounds.append(statistics.median(seconds))

    def finish(self) -> Row:
        """The row: growth of the resident set, seconds, losses of the first steps."""
        if self.works and self._process.stdin is not None:
            self._process.stdin.close()
            self.row |= self._answer()
        if self._rounds:
            self.row["seconds_median"] = statistics.median(self._rounds)
            self.row["seconds_by_round"] = self._rounds
        self.row["losses"] = self._losses[:6]
        return self.row

    def growth(self) -> int:
        """How far it has grown up to now, without ending it."""
        status = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
        return peak - int(self.row["resident_before_bytes"])

    def _answer(self) -> Row:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            found: Row = json.loads(line)
            return found
        self._process.wait()
        self._errors.seek(0)
        reason = (self._errors.read().strip().splitlines() or ["no reason"])[-1]
        return {"failed": reason[:300]}


def compared(name: str, options: argparse.Namespace, folder: Path) -> list[Row]:
    """The rows of one network."""
    kinds = ["eager", "checkpoint", *(f"compile {budget:g}" for budget in options.compile)]
    with ExitStack() as stack:

        def started(who: str, *arguments: str, **facts: Any) -> Self:
            worker = stack.enter_context(Worker(who, *arguments, model=name, **facts))
            worker.steps(3, counts=False)
            told = worker.row.get("failed") or f"{worker.growth() / 1e6:.0f} MB"
            print(f"  {who}: {told}", file=sys.stderr, flush=True)
            return worker

        workers = [started(f"PyTorch {kind}", "pytorch", name, kind) for kind in kinds]
        reached = [worker.growth() for worker in workers if worker.works]
        step, batch, facts = captured(name, folder)
        whole = started("memplan, as captured", "memplan", str(step), str(batch), **facts)
        workers.append(whole)
        beyond = max(whole.growth() - facts["predicted_dynamic_bytes"], 0)
        failed: list[Row] = []
        for growth in budgets(reached):
            who = f"memplan at {growth / 1e6:.0f} MB"
            budget = facts["resident_bytes"] + max(growth - beyond, 0)
            found = planned(step, folder, budget)
            if isinstance(found, str):
                failed.append({"who": who, "model": name, "failed": found})
                continue
            path, told = found
            told["asked_growth_bytes"] = growth
            workers.append(started(who, "memplan", str(path), str(batch), **told))
        for number in range(options.rounds):
            for worker in workers:
                worker.steps(options.steps)
            print(f"  round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        return [*(worker.finish() for worker in workers), *failed]


def budgets(reached: Sequence[int]) -> list[int]:
    """The growths to plan for, eager's first, and of two that are close the smaller one."""
    found: list[int] = []
    for growth in sorted({*reached, int(SHARE * reached[0])}):
        if not found or growth > (1 + _SAME) * found[-1]:
            found.append(growth)
    return found[::-1]


def captured(name: str, folder: Path) -> tuple[Path, Path, Row]:
    """The step and the batch as files, and what is predicted of the step."""
    import numpy as np

    import memplan
    from benchmarks.nets import make
    from benchmarks.steps.worker import adamw

    model, tensors = make(name)
    asked = (model, None, tensors, adamw(model))
    memplan.capture(asked, folder / f"{name}.onnx")
    batch = folder / f"{name}.npz"
    names = inspect.signature(model.forward).parameters
    np.savez(batch, **dict(zip(names, (each.numpy() for each in tensors), strict=True)))
    found = memplan.analyze(folder / f"{name}.onnx", state="in-place").timeline
    facts = {
        "predicted_dynamic_bytes": found.dynamic_peak_bytes,
        "resident_bytes": found.resident_bytes,
    }
    return folder / f"{name}.onnx", batch, facts


def planned(step: Path, folder: Path, budget: int) -> tuple[Path, Row] | str:
    """The file for a budget, and what its plan says; or why there is none."""
    import memplan
    from memplan.errors import InfeasibleError

    path = folder / f"{step.stem}.{budget}.onnx"
    size = memplan.parse_size(str(budget))
    options = memplan.RewriteOptions(size, state=("in-place",), chunk="auto", time_limit=20.0)
    try:
        found = memplan.rewrite(step, options, path)
    except InfeasibleError as error:
        return error.message
    return path, {
        "budget_bytes": budget,
        "predicted_dynamic_bytes": found.timeline.dynamic_peak_bytes,
        "resident_bytes": found.timeline.resident_bytes,
        "extra_time_estimated": found.extra_cost_fraction,
        "planning_seconds": found.plan.planning_seconds,
    }


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """The configurations of every network."""
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            yield from compared(name, options, Path(folder))


if __name__ == "__main__":
    networks = ("gpt", "vit", "unet", "resnet", "lstm")
    parser = arguments("steps.pytorch", __doc__)
    parser.add_argument("--models", nargs="+", choices=networks, default=networks)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4, help="of each in a round")
    parser.add_argument("--compile", nargs="*", type=float, default=COMPILED, metavar="BUDGET")
    run(parser, rows, of=("model",))
