"""One configuration in a process of its own, which takes steps when it is told to.

    python -m benchmarks.steps.worker pytorch NETWORK "compile 0.5"
    python -m benchmarks.steps.worker memplan STEP.onnx BATCH.npz

A line with a number on standard input asks for as many steps, and one with JSON answers: seconds
and losses; the first line of all tells what it took to get ready. At the end of the input comes how
far the resident set grew over all steps.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from memplan.runtime.resident_set import reset_peak_rss, resident_bytes

Step = Callable[[], float]
RATE = 3e-4


def main() -> int:
    """Get ready, step when asked, tell."""
    who, what, how = sys.argv[1:]
    before, began = resident_bytes(), time.perf_counter()
    step = _memplan(what, how) if who == "memplan" else _pytorch(what, how)
    seconds_ready, ready = time.perf_counter() - began, resident_bytes() - before
    # What was freed is given back first: it would hide as much growth.
    highest = resident_bytes("VmHWM")
    ctypes.CDLL(None).malloc_trim(0)
    start = reset_peak_rss()
    _tell(
        ready_seconds=seconds_ready,
        ready_growth_bytes=ready,
        ready_highest_bytes=highest - before,
        resident_before_bytes=start,
    )
    for line in sys.stdin:
        seconds, losses = [], []
        for _ in range(int(line)):
            begin = time.perf_counter()
            losses.append(step())
            seconds.append(time.perf_counter() - begin)
        _tell(seconds=seconds, losses=losses)
    peak = resident_bytes("VmHWM")
    _tell(growth_bytes=peak - start, peak_bytes=peak)
    return 0


def _tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def _memplan(path: str, batch: str) -> Step:
    """A captured step in the trainer. PyTorch is not imported."""
    import numpy as np

    import memplan

    trainer = memplan.Trainer(path, threads=os.cpu_count() or 1)
    arrays = dict(np.load(batch))
    return lambda: trainer.step(arrays)


def adamw(model: Any, rate: float = RATE) -> Any:
    """The optimizer of all steps."""
    import torch

    return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)


def _pytorch(name: str, kind: str) -> Step:
    """``eager``, ``checkpoint``, or ``compile`` and a budget for activations."""
    import torch

    from benchmarks.nets import make

    torch.set_num_threads(os.cpu_count() or 1)
    model, batch = make(name, kind == "checkpoint")
    optimizer = adamw(model, 0.0)
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
        statistics = {name: value.clone() for name, value in model.named_buffers()}
        loss_of(*batch).backward()
        optimizer.zero_grad(set_to_none=True)
        for name, value in model.named_buffers():
            value.copy_(statistics[name])

    def step() -> float:
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


if __name__ == "__main__":
    sys.exit(main())
