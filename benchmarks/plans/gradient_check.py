"""What the check of gradients costs beside ``grad``: both by turns, on forward graphs.

    python -m benchmarks.plans.gradient_check --rounds 3 --json gradient_check.json

The graphs are those of the sample models, and GPT-2 small on one sequence of 128 tokens. Seconds
are medians: CPU seconds are of this process alone, all threads together. Needs ``.[torch]``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import onnx

import memplan
from benchmarks.record import write_record

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
NAMES = ("mlp_adamw", "cnn_bn", "unet", "gpt_dropout", "gpt_dynamic", "lstm")
GPT2 = "gpt2_small_bs1_seq128"


@dataclass(frozen=True, slots=True)
class Row:
    """One graph. ``cpu`` and ``wall``: seconds without and with the check; ``said``: its report."""

    name: str
    rounds: int
    cpu: tuple[float, float]
    wall: tuple[float, float]
    said: str


def forward_graphs(only: Sequence[str]) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The forward graphs whose names have one of ``only`` in them; all, where that is empty."""
    import torch

    from benchmarks.nets.catalogue import exported
    from benchmarks.nets.text import Gpt2

    sys.path.insert(0, str(SAMPLES))
    import nets

    for name in (*NAMES, GPT2):
        if only and not any(part in name for part in only):
            continue
        if name == GPT2:
            yield name, exported(Gpt2(), (torch.zeros(1, 128, dtype=torch.int64),))
        else:
            step: Any = getattr(nets, name)()
            yield name, exported(step.model, tuple(step.batch.values()))


def measure(name: str, forward: onnx.ModelProto, rounds: int) -> Row:
    """``grad`` without and with its check, by turns."""
    named = {item.key: item.value for item in forward.metadata_props}
    wrt = tuple(named["parameters"].splitlines())
    options = memplan.GradOptions(forward.graph.output[0].name, wrt=wrt)
    cpu: tuple[list[float], list[float]] = ([], [])
    wall: tuple[list[float], list[float]] = ([], [])
    said = ""
    for _ in range(rounds):
        for check in (False, True):
            began = time.process_time(), time.perf_counter()
            made = memplan.grad(forward, options, check=check)
            cpu[check].append(time.process_time() - began[0])
            wall[check].append(time.perf_counter() - began[1])
            said = made.check.lines[0] if made.check else said
    times = [(round(median(a), 2), round(median(b), 2)) for a, b in (cpu, wall)]
    return Row(name, rounds, times[0], times[1], said)


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line, measure, and write the record after every row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans.gradient_check")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], help="part of a name, repeatable")
    parser.add_argument("--json", type=Path, required=True, help="the record")
    options = parser.parse_args(argv)
    command = f"python -m benchmarks.plans.gradient_check --rounds {options.rounds}"
    command += "".join(f" --only {part}" for part in options.only)
    rows = []
    for name, forward in forward_graphs(options.only):
        rows.append(asdict(measure(name, forward, options.rounds)))
        write_record(options.json, command, rows)
        print(rows[-1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
