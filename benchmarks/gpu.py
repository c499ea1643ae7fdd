"""Training graphs on a GPU: original and rewritten, and PyTorch as peer.

    python -m benchmarks.gpu --graphs GRAPHS --json gpu.json

ResNet-50, U-Net, GPT-2 small and BERT-base, each at the largest batch of which the original takes
at most ``--memory``. Graphs are captured into ``--graphs`` where they are not there yet, which
needs ``.[torch]`` and no GPU. No row is begun after ``--seconds``; called again with the same
``--json``, it goes on where it stopped. Without a GPU it runs on the CPU, and nothing is counted.

- ``session``: original, and rewritten to shares of its dynamic peak, in both kinds of session.
- ``peer``: the same networks in PyTorch: eager, with checkpoints around blocks, compiled with
  budgets. On CUDA the peak is the allocator's (parameters, batch and gradients included), on the
  CPU the growth of the resident set during a step, beside parameters and batch.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import memplan
from benchmarks.record import Row, arguments, in_process, run
from memplan.api.analysis import analyze_open, analyze_session
from memplan.errors import MemplanError
from memplan.runtime.compare_outputs import compare_outputs
from memplan.runtime.cuda_device import describe_device
from memplan.runtime.inputs import synthesize
from memplan.runtime.measure import measure
from memplan.runtime.messages import Measurement, RunRequest
from memplan.runtime.resident_set import reset_peak_rss, resident_bytes
from memplan.simulate.opened import on_devices, open_model
from memplan.simulate.session import session_kind

FAMILIES = ("resnet50", "unet", "gpt2", "bert")
PARTS = ("session", "peer")
SESSIONS = ("tuned", "default")
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
MODES = (("eager", 1.0), ("checkpoint", 1.0), ("compile", 0.7), ("compile", 0.5), ("compile", 0.35))
KEY = ("kind", "net", "batch", "session", "share", "mode", "activation_memory_budget")
_TIMEOUT = 300
# On the CPU: give memory back at once, or the resident set shows no peak.
_TRIM = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
Wanted = Iterator[tuple[Row, Callable[[], Row]]]
"""What rows are of, and how they are made."""


class Bench:
    """What all rows share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.began = options, time.perf_counter()
        self.device = describe_device()
        cuda = self.device.started("cuda")
        self.provider = options.provider or ("cuda" if cuda else "cpu")
        free = self.device.cpu_available_bytes
        if self.provider == "cuda" and cuda is not None:
            gpu = self.device.gpu
            free = cuda.free_bytes or (0 if isinstance(gpu, str) else gpu.total_bytes)
        self.memory = memplan.parse_size(options.memory).resolve(free)

    def graph(self, net: str, batch: int) -> Path:
        """The captured step of a network."""
        path: Path = self.options.graphs / f"{net}_{self.options.size}_bs{batch}.onnx"
        if not path.exists():
            from benchmarks.graphs import captured
            from benchmarks.nets import net as known

            path.parent.mkdir(parents=True, exist_ok=True)
            captured(known(net, self.options.size), batch, path)
        return path

    def batch(self, net: str) -> int:
        """That of all rows of a network: the largest of which the original is predicted to fit,
        workspace included."""
        found = BATCHES[0]
        for batch in BATCHES:
            made = memplan.analyze(self.graph(net, batch), provider=self.provider)
            if made.timeline.peak_with_workspace_bytes > self.memory:
                break
            found = batch
        return found

    def measured(self, path: Path, session: str, folder: Path, name: str) -> Measurement:
        """Measure one file on inputs that are the same for every file of equal inputs."""
        inputs = folder / "inputs.npz"
        np.savez(inputs, **synthesize(open_model(path).graph))  # type: ignore[arg-type]
        request = RunRequest(session, self.provider, {}, self.options.runs)
        return measure(path, request, inputs, folder / f"{name}.npz")

    def figures(self, path: Path, session: str, measured: Measurement, *, ours: bool) -> Row:
        """What was measured of a file, and what memplan predicts; ``ours``: of what memplan made,
        the runtime finds nothing left to fuse."""
        kind, model = session_kind(session, self.provider), open_model(path)
        if session == "default" and not ours:
            found = analyze_session(model, kind)
        else:
            found = analyze_open(on_devices(model, kind), kind)
        timeline, cuda = found.timeline, measured.cuda
        return {
            "predicted_peak_bytes": timeline.peak_bytes,
            "predicted_with_workspace_bytes": timeline.peak_with_workspace_bytes,
            "measured_peak_bytes": timeline.resident_bytes + measured.dynamic_bytes,
            "resident_bytes": timeline.resident_bytes,
            "dynamic_bytes": measured.dynamic_bytes,
            "later_dynamic_bytes": measured.second_run_dynamic_bytes,
            "counted_peak_bytes": cuda.counted_peak_bytes if cuda else None,
            "arena_bytes": measured.arena_bytes,
            "tight_arena_bytes": cuda.tight_arena_bytes if cuda else None,
            "device_taken_bytes": cuda.device_taken_bytes if cuda else None,
            "step_seconds": measured.seconds_median,
            "nodes_on_cpu": sum(n.provider == "CPUExecutionProvider" for n in measured.nodes),
        }

    def rewritten(self, path: Path, budget: int, session: str, target: Path) -> memplan.Rewrite:
        """Rewrite for a budget in bytes."""
        options = memplan.RewriteOptions(
            memplan.parse_size(str(budget)),
            session=session,
            provider=self.provider,
            time_limit=self.options.plan_seconds,
        )
        return memplan.rewrite(path, options, target, force=True)


# --- Sessions -----------------------------------------------------------------------------------


def sessions(bench: Bench, net: str, folder: Path) -> Wanted:
    """The original, then every share, in every kind of session."""
    batch = bench.batch(net)
    path = bench.graph(net, batch)
    for session in bench.options.session or SESSIONS:
        kept: list[tuple[Measurement, Row]] = []

        def original(session: str = session, kept: list[Any] = kept) -> Row:
            measured = bench.measured(path, session, folder, f"original_{session}")
            kept[:] = [(measured, bench.figures(path, session, measured, ours=False))]
            return {"graph": path.name, **kept[0][1]}

        def at(share: str, session: str = session, kept: list[Any] = kept) -> Row:
            """Rewrite to a share of the original's measured dynamic peak in this session."""
            if not kept:
                original(session, kept)
            before, figures = kept[0]
            part = float(share.rstrip("%")) / 100
            budget = figures["resident_bytes"] + int(part * figures["dynamic_bytes"])
            target, begun = folder / "rewritten.onnx", time.perf_counter()
            result = bench.rewritten(path, budget, session, target)
            planned = time.perf_counter() - begun
            after = bench.measured(target, session, folder, "rewritten")
            archives = folder / f"original_{session}.npz", folder / "rewritten.npz"
            equal = compare_outputs(*archives, after.output_names)
            found = bench.figures(target, session, after, ours=True)
            far = f"relative difference {equal.max_rel_diff:.1e}"
            return {
                **found,
                "budget_bytes": budget,
                "within_budget": found["measured_peak_bytes"] <= budget,
                "recomputed_nodes": result.plan.clones,
                "extra_cost_percent": 100 * result.plan.extra_cost_fraction,
                "time_ratio": after.seconds_median / before.seconds_median,
                "equal": "bitwise" if equal.bitwise else far,
                "plan_seconds": round(planned, 2),
            }

        key = {"kind": "session", "net": net, "batch": batch, "session": session}
        yield {**key, "share": "original"}, original
        for share in bench.options.share or ("70%", "50%", "35%"):
            yield {**key, "share": share}, lambda share=share, at=at: at(share)


# --- PyTorch ------------------------------------------------------------------------------------


def peers(bench: Bench, net: str, _: Path) -> Wanted:
    """The network in every mode, each in a process of its own."""
    batch = bench.batch(net)
    for mode, budget in MODES:
        asked = [net, bench.options.size, batch, mode, budget, bench.provider, bench.options.runs]
        key = {"kind": "peer", "net": net, "batch": batch, "mode": mode}
        key |= {"activation_memory_budget": budget} if mode == "compile" else {}
        yield (
            key,
            lambda asked=asked: in_process("gpu.in_pytorch", *asked, seconds=_TIMEOUT, **_TRIM),
        )


def in_pytorch(
    name: str, size: str, batch: str, mode: str, budget: str, device: str, count: str
) -> Row:
    """Peak bytes and median seconds of a step: forward, loss and backward."""
    import torch
    import torch._functorch.config as functorch

    from benchmarks.nets import net

    torch.manual_seed(0)
    # ONNX Runtime multiplies in TF32 by default; so does this, or times would not compare.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    chosen, on_gpu = net(name, size), device == "cuda"
    model = chosen.make().to(device)
    given = [value.to(device) for value in chosen.of(int(batch))]
    model.checkpoints = mode == "checkpoint"
    functorch.activation_memory_budget = float(budget)
    runner: Any = torch.compile(model) if mode == "compile" else model

    def step() -> float:
        model.zero_grad(set_to_none=True)
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        runner(*given).backward()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    first = step()
    step()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = torch.cuda.max_memory_allocated()
    else:
        before = reset_peak_rss()
        step()
        peak = max(resident_bytes("VmHWM") - before, 0)
    return {
        "peak_bytes": peak,
        "peak_is": "allocator" if on_gpu else "resident set growth",
        "step_seconds": statistics.median(step() for _ in range(int(count))),
        "first_step_seconds": first,
    }


# --- Command line -------------------------------------------------------------------------------


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """The device, and every row that is not there yet."""
    bench = Bench(options)
    device = {"kind": "device", "provider": bench.provider, "memory_bytes": bench.memory}
    yield {**device, "device": bench.device.as_json()}
    known: list[Row] = []
    if options.json and options.json.exists():
        known = json.loads(options.json.read_text())["results"]
    kinds = dict(zip(PARTS, (sessions, peers), strict=True))
    for part in options.part or PARTS:
        for net in options.net or FAMILIES:
            with TemporaryDirectory() as folder:
                for key, make in kinds[part](bench, net, Path(folder)):
                    if any(key.items() <= row.items() for row in known):
                        continue
                    if time.perf_counter() - bench.began > options.seconds:
                        print(f"left out: {key}", file=sys.stderr)
                        continue
                    begun = time.perf_counter()
                    try:
                        found = make()
                    except MemplanError as error:
                        found = {"error": error.message}
                    yield {**key, **found, "took_seconds": round(time.perf_counter() - begun, 2)}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the command line."""
    parser = arguments("gpu", __doc__)
    parser.add_argument("--graphs", type=Path, required=True, help="a folder of captured steps")
    parser.add_argument("--net", action="append", choices=FAMILIES)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--share", action="append", help="budgets, of the dynamic peak")
    parser.add_argument("--session", action="append", choices=SESSIONS)
    parser.add_argument("--provider", choices=["cpu", "cuda"], help="cuda where there is one")
    parser.add_argument("--memory", default="10%", help="of what is free: what an original takes")
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--runs", type=int, default=5, help="timed steps")
    parser.add_argument("--plan-seconds", type=float, default=8.0)
    parser.add_argument("--seconds", type=float, default=540.0, help="begin no row after this")
    return run(parser, rows, argv, of=KEY)


if __name__ == "__main__":
    main()
