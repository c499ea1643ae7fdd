"""The networks in PyTorch: peak and step time, each in a process of its own.

    python -m benchmarks.gpu.peers --net gpt2 --batch 8 --mode eager --device cuda

Modes: ``eager``; ``checkpoint`` (``torch.utils.checkpoint`` around every block); ``compile`` with
``--budget`` as ``torch._functorch.config.activation_memory_budget``. A step is forward, loss and
backward; gradients are dropped between steps. The last line printed is a JSON object. On CUDA the
peak is the allocator's (parameters, batch and gradients included), on the CPU the growth of the
resident set during a step, beside parameters and batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.gpu.bench import Bench


Rows = Iterator[tuple[dict[str, Any], Callable[[], Mapping[str, Any]]]]
_MODES = (
    ("eager", None),
    ("checkpoint", None),
    ("compile", 0.7),
    ("compile", 0.5),
    ("compile", 0.35),
)
_TIMEOUT = 300
# On the CPU: give memory back at once, or the resident set shows no peak.
_TRIM = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def peer_rows(bench: Bench, batches: Mapping[str, int]) -> Rows:
    """Every network that has a batch, in every mode; nothing but a note without torch."""
    if find_spec("torch") is None:
        bench.record["notes"].append("torch is not installed: no peers")
        return
    # Compiling takes long: what needs none comes first.
    for mode, budget in _MODES:
        for net in bench.options.net:
            if net in batches:
                key = {"kind": "peer", "net": net, "batch": batches[net], "mode": mode}
                key |= {"activation_memory_budget": budget} if budget else {}
                yield key, lambda n=net, m=mode, b=budget: _run(bench, n, batches[n], m, b)


def _run(bench: Bench, net: str, batch: int, mode: str, budget: float | None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gpu.peers", "--net", net, "--mode", mode]
    command += ["--batch", str(batch), "--size", bench.options.size]
    command += ["--device", bench.provider, "--steps", str(bench.options.runs)]
    command += ["--budget", str(budget or 1.0)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            env={**os.environ, **_TRIM},
            cwd=Path(__file__).resolve().parents[2],
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {_TIMEOUT} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": reason[:300]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


# --- In the process of its own -------------------------------------------------------------------


def main() -> int:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.gpu.peers")
    parser.add_argument("--net", required=True)
    parser.add_argument("--size", default="full")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--mode", choices=["eager", "checkpoint", "compile"], required=True)
    parser.add_argument("--budget", type=float, default=1.0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    print(json.dumps(measure(options)))
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Peak bytes and median seconds per step, or why there are none."""
    import torch

    from benchmarks.nets.catalogue import net

    torch.manual_seed(0)
    # ONNX Runtime multiplies in TF32 by default; so does this, or times would not compare.
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    chosen = net(options.net, options.size)
    model = chosen.make().to(options.device)
    batch = [value.to(options.device) for value in chosen.of(options.batch)]
    if options.mode == "checkpoint":
        _checkpoint(model, chosen.blocks)
    runner: Any = model
    if options.mode == "compile":
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = options.budget
        runner = torch.compile(model)

    def step() -> float:
        model.zero_grad(set_to_none=True)
        _synchronize(options.device)
        start = time.perf_counter()
        runner(*batch).backward()
        _synchronize(options.device)
        return time.perf_counter() - start

    started = time.perf_counter()
    try:
        first = step()
        step()
        peak = _peak(options.device, step)
        seconds = [step() for _ in range(options.steps)]
    except torch.OutOfMemoryError as error:
        return {"error": " ".join(str(error).split())[:300]}
    return {
        "peak_bytes": peak,
        "peak_is": "allocator" if options.device == "cuda" else "resident set growth",
        "step_seconds": statistics.median(seconds),
        "first_step_seconds": first,
        "seconds": time.perf_counter() - started,
        "torch": torch.__version__,
    }


def _checkpoint(model: Any, blocks: Sequence[str]) -> None:
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args: Any) -> Any:
            return checkpoint(self.inner, *args, use_reentrant=False)

    for name in blocks:
        part = getattr(model, name)
        if isinstance(part, nn.ModuleList):
            for place, inner in enumerate(part):
                part[place] = Checkpointed(inner)
        else:
            setattr(model, name, Checkpointed(part))


def _synchronize(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def _peak(device: str, step: Any) -> int:
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
        step()
        return int(torch.cuda.max_memory_allocated())
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    step()
    return max(_status("VmHWM") - before, 0)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    sys.exit(main())
