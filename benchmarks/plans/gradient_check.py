"""What the check of gradients costs beside ``grad``: both by turns, on forward graphs.

    python -m benchmarks.plans.gradient_check --rounds 3 --json gradient_check.json

The graphs are those of the sample models, and GPT-2 small on one sequence of 128 tokens. Seconds
are medians: CPU seconds are of this process alone, all threads together. Needs ``.[torch]``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import onnx

import memplan
from benchmarks.models import SAMPLES
from benchmarks.record import arguments, run

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


def forward_graph(name: str) -> onnx.ModelProto:
    """The forward graph of a sample model, or of GPT-2 small."""
    import torch

    from benchmarks.nets.catalogue import exported
    from benchmarks.nets.text import Gpt2

    if name == GPT2:
        return exported(Gpt2(), (torch.zeros(1, 128, dtype=torch.int64),))
    sys.path.insert(0, str(SAMPLES))
    import nets

    step: Any = getattr(nets, name)()
    return exported(step.model, tuple(step.batch.values()))


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


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """The graphs whose names have one of ``--only`` in them; all, where that is empty."""
    for name in (*NAMES, GPT2):
        if not options.only or any(part in name for part in options.only):
            yield measure(name, forward_graph(name), options.rounds)


if __name__ == "__main__":
    parser = arguments("plans.gradient_check", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], help="part of a name, repeatable")
    run(parser, rows)
