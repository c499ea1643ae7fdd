"""One network, one batch, one optimizer: PyTorch eager, with checkpoints, compiled, and memplan.

A GPT of 6 blocks of width 384 with AdamW, on the CPU. Every configuration runs in a process of its
own, which builds the network and its optimizer state, takes the resident set, runs some steps, and
tells how far the resident set grew at most and how long a step took (median). memplan runs the same
step, captured, at the budgets that PyTorch reached and at lower ones. Needs torch, onnxscript and,
for ``torch.compile``, a C++ compiler.

    python -m benchmarks.steps.pytorch [--steps 8] [--json results.json]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import write_record

BUDGETS = (0.7, 0.5, 0.35)
LENGTH, WIDTH, DEPTH, HEADS, WORDS, BATCH = 256, 384, 6, 6, 4096, 8
RATE, DECAY = 3e-4, 0.01
_SHARES = (1.0, 0.75, 0.5)  # of the least that PyTorch takes


def _network(checkpoints: bool) -> Any:
    """A GPT with learned places; its forward gives the loss."""
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            shape = (x.shape[0], LENGTH, HEADS, WIDTH // HEADS)
            q, k, v = (
                part.view(shape).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1)
            )
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.norm_2(x))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

        def forward(self, tokens: Any, labels: Any) -> Any:
            x = self.words(tokens) + self.places.weight
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if checkpoints else block(x)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    torch.manual_seed(0)
    return Gpt()


def _batch() -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    shape = (BATCH, LENGTH)
    return tuple(torch.randint(0, WORDS, shape, generator=generator) for _ in range(2))  # type: ignore[return-value]


def step() -> Any:
    """What is captured: the network gives the loss itself."""
    import torch

    model = _network(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    return model, None, _batch(), optimizer


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _measured(run: Callable[[], float], steps: int) -> dict[str, Any]:
    """Growth of the resident set over the steps, seconds of each but the first two, losses.

    What was freed before is given back first: it would hide as much growth.
    """
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    losses, seconds = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        losses.append(run())
        seconds.append(time.perf_counter() - begin)
    return {
        "growth_bytes": _resident("VmHWM") - before,
        "resident_before_bytes": before,
        "seconds_median": statistics.median(seconds[2:]),
        "seconds_first": seconds[0],
        "losses": losses,
    }


def _pytorch(kind: str, steps: int) -> dict[str, Any]:
    """``eager``, ``checkpoint``, or ``compile`` and a budget for activations."""
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    model, batch = _network(kind == "checkpoint"), _batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=DECAY)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # makes the moments; they are zero, and the rate is
    optimizer.zero_grad(set_to_none=True)
    for state in optimizer.state.values():
        state["step"].zero_()
    for group in optimizer.param_groups:
        group["lr"] = RATE
    loss_of: Any = model
    if kind.startswith("compile"):
        import torch._functorch.config

        torch._functorch.config.activation_memory_budget = float(kind.split()[1])
        loss_of = torch.compile(model)
        # Compiling takes memory of its own, which a training run has behind it.
        loss_of(*batch).backward()
        optimizer.zero_grad(set_to_none=True)

    def run() -> float:
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return _measured(run, steps)


def _memplan(path: str, steps: int) -> dict[str, Any]:
    """A captured step in the trainer."""
    import memplan

    tokens, labels = (each.numpy() for each in _batch())
    trainer = memplan.Trainer(path)
    return _measured(lambda: trainer.step(tokens=tokens, labels=labels), steps)


def _in_child(*arguments: str) -> dict[str, Any]:
    """Run one configuration in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.steps.pytorch", "--child", *arguments]
    # Each thread of glibc's malloc keeps what it is given back: one arena shows what is in use.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if found.returncode:
        reason = (found.stderr.strip().splitlines() or ["no reason"])[-1]
        return {"failed": reason}
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def _planned(folder: Path, original: Path, budget: int) -> tuple[Path, dict[str, Any]] | str:
    """The file for a budget, and what its plan says; or why there is none."""
    import memplan
    from memplan.errors import InfeasibleError

    path = folder / f"{budget}.onnx"
    options = memplan.RewriteOptions(
        budget=memplan.parse_size(str(budget)), state=("in-place",), time_limit=8.0
    )
    try:
        found = memplan.rewrite(original, options, path)
    except InfeasibleError as error:
        return error.message
    return path, {
        "budget_bytes": budget,
        "predicted_peak_bytes": found.timeline.peak_bytes,
        "predicted_dynamic_bytes": found.timeline.dynamic_peak_bytes,
        "resident_bytes": found.timeline.resident_bytes,
        "extra_time_estimated": found.plan.extra_cost_fraction,
    }


def _compare(steps: int) -> list[dict[str, Any]]:
    """All configurations, PyTorch's first."""
    import memplan

    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> dict[str, Any]:
        rows.append(row)
        print(json.dumps({k: v for k, v in row.items() if k != "losses"}), flush=True)
        return row

    for kind in ("eager", "checkpoint", *(f"compile {budget}" for budget in (1.0, *BUDGETS))):
        add({"who": f"PyTorch {kind}", **_in_child("pytorch", kind, str(steps))})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        original = folder / "step.onnx"
        memplan.capture(step(), original)
        add({"who": "memplan, as captured", **_in_child("memplan", str(original), str(steps))})
        resident = memplan.analyze(original, state="in-place").timeline.resident_bytes
        reached = [row["growth_bytes"] for row in rows[:-1] if "growth_bytes" in row]
        least = min(reached)
        for growth in sorted({*reached, *(int(share * least) for share in _SHARES)}, reverse=True):
            planned = _planned(folder, original, resident + growth)
            who = f"memplan at {growth / 1e6:.0f} MB"
            if isinstance(planned, str):
                add({"who": who, "failed": planned})
                continue
            path, said = planned
            add({"who": who, **said, **_in_child("memplan", str(path), str(steps))})
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print a row for each, and write a record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.pytorch")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, metavar=("WHO", "WHAT", "STEPS"))
    options = parser.parse_args(argv)
    if options.child:
        who, what, steps = options.child
        run = _pytorch if who == "pytorch" else _memplan
        print(json.dumps(run(what, int(steps))))
        return 0
    rows = _compare(options.steps)
    if options.json:
        write_record(options.json, "python -m benchmarks.steps.pytorch", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
