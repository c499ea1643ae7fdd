"""What ``memplan capture`` makes of networks, by either road, and whether it is right.

    python -m benchmarks.capture.roads families --json benchmarks/results/capture.json
    python -m benchmarks.capture.roads libraries full training \\
        --json benchmarks/results/capture.json

``families``: the networks of ``benchmarks/nets/captured.py`` in float64; loss and every gradient
against PyTorch's. ``libraries``: networks of torchvision, timm and transformers, as far as they are
installed, as well. ``full``: three networks at their published sizes: seconds and memory.
``steps``: the CPU time of a step of ``families`` by both roads, with SGD, measured in turn.
``training``: 200 steps of a GPT and a CNN, captured and rewritten at 50%, beside PyTorch. Rows of
earlier runs stay in the record unless they are made anew.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

import memplan
from benchmarks.nets.captured import NETS
from benchmarks.record import write_record

ROADS = ("grad", "joint")
NOISE = 1e-9
"""Of the largest gradient of all: what is zero but for rounding is compared with that."""
FULL = ("resnet50_bs32_224", "gpt2_small_bs8_seq1024", "bert_base_bs16_seq512")
Row = dict[str, object]


def prepared(name: str) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    """A small network whose parameters are all of some size, and a batch."""
    torch.manual_seed(0)
    module, batch = NETS[name].make(), NETS[name].batch()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module, batch


def in_float64(
    module: torch.nn.Module, batch: tuple[Tensor, ...]
) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    """The same in float64."""
    return module.double(), tuple(t.double() if t.is_floating_point() else t for t in batch)


def run(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """All outputs by ONNX Runtime, or by ONNX's evaluator where that has no float64 kernel."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    names = [value.name for value in model.graph.output]
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        values = session.run(names, dict(feeds))
    except Exception:
        from onnx.reference import ReferenceEvaluator

        sys.path.append(str(Path(__file__).parents[2] / "tests"))
        from helpers.float64_ops import OPS

        values = ReferenceEvaluator(model, new_ops=OPS).run(names, dict(feeds))
    return dict(zip(names, values, strict=True))


def compared(capture: memplan.Capture, loss: Callable[[], Tensor], module: Any, feeds: Any) -> Row:
    """The largest errors of loss and gradients, relative to the largest entry of each tensor."""
    found = run(capture.model, feeds)
    value = loss()
    value.backward()
    named = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    largest = max(float(grad.abs().max()) for grad in named.values())
    errors = {}
    for name, grad in named.items():
        apart = float(np.abs(found[f"{name}_grad"] - grad.numpy()).max())
        errors[name] = apart / max(float(grad.abs().max()), NOISE * largest)
    worst = max(errors, key=lambda name: errors[name])
    wanted = float(value.detach())
    return {
        "gradients": len(errors),
        "loss_error": abs(float(found["loss"]) - wanted) / abs(wanted),
        "gradient_error": errors[worst],
        "worst": worst,
    }


def sizes(model: onnx.ModelProto) -> Row:
    """Nodes, stash and peak, as simulated for a tuned session on the CPU."""
    analysis = memplan.analyze(model)
    return {
        "nodes": len(model.graph.node),
        "stash_bytes": sum(item.nbytes for item in analysis.stashes),
        "peak_bytes": analysis.timeline.peak_bytes,
    }


def attempt(step: memplan.TorchStep, road: str) -> tuple[memplan.Capture | None, Row]:
    """A capture and its seconds, or why there is none."""
    begin = time.perf_counter()
    try:
        capture = memplan.capture(step, via=road, weights="embed")
    except memplan.MemplanError as error:
        return None, {"failure": error.message}
    return capture, {"seconds": round(time.perf_counter() - begin, 2)}


def family_rows(only: Sequence[str]) -> Iterator[Row]:
    """Every small network by both roads, in float64; sizes in float32."""
    for name in NETS:
        if only and name not in only:
            continue
        for road in ROADS:
            row: Row = {"part": "families", "name": name, "road": road}
            module, batch = in_float64(*prepared(name))
            capture, told = attempt(memplan.TorchStep(module, None, batch), road)
            row |= told
            if capture is not None:
                feeds = {n: t.numpy() for n, t in zip(capture.batch, batch, strict=True)}

                def loss(module: Any = module, batch: Any = batch) -> Tensor:
                    return module(*batch)

                row |= compared(capture, loss, module, feeds)
                narrow, inputs = prepared(name)
                capture, told = attempt(memplan.TorchStep(narrow, None, inputs), road)
                row |= told
                if capture is not None:
                    row |= sizes(capture.model)
            yield row


def library_rows(only: Sequence[str]) -> Iterator[Row]:
    """Networks of torchvision, timm and transformers by both roads, in float64."""
    from benchmarks.nets.libraries import LIBRARY_NETS

    for name, make in LIBRARY_NETS.items():
        if only and name not in only:
            continue
        for road in ROADS:
            row: Row = {"part": "libraries", "name": name, "road": road}
            torch.manual_seed(0)
            try:
                step = make()
            except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
                yield {**row, "failure": f"cannot be imported: {str(error).splitlines()[0]}"}
                break
            yield row | library_row(step, road)


def library_row(given: memplan.TorchStep, road: str) -> Row:
    """One network by one road."""
    model = given.model.double()
    batch = {n: t.double() if t.is_floating_point() else t for n, t in given.batch.items()}
    capture, told = attempt(memplan.TorchStep(model, given.loss, batch), road)
    if capture is None:
        return told
    feeds = {name: batch[name].numpy() for name in capture.batch}

    def loss() -> Tensor:
        found: Tensor = model(**batch).loss if given.loss is None else given.loss(model, **batch)
        return found

    return told | compared(capture, loss, model, feeds) | sizes(capture.model)


def step_rows(only: Sequence[str]) -> Iterator[Row]:
    """The graphs of both roads of every small network, run in turn."""
    from benchmarks.capture.steps import times

    for name in NETS:
        if only and name not in only:
            continue
        row: Row = {"part": "steps", "name": name, "road": "both"}
        captures = {}
        for road in ROADS:
            module, batch = prepared(name)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
            capture, told = attempt(memplan.TorchStep(module, None, batch, optimizer), road)
            if capture is None:
                row |= told
                break
            captures[road] = capture
        if len(captures) == len(ROADS):
            names = captures["grad"].batch
            row |= times(captures, {n: t.numpy() for n, t in zip(names, batch, strict=True)})
        yield row


def full_rows(only: Sequence[str]) -> Iterator[Row]:
    """Each in a process of its own: its largest resident set is measured."""
    for name in FULL:
        if only and name not in only:
            continue
        for road in ("grad", "auto"):  # auto takes both
            command = [sys.executable, "-m", "benchmarks.capture.roads", "one", name, road]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            row: Row = {"part": "full", "name": name, "road": road}
            last = (done.stdout.strip().splitlines() or ["{}"])[-1]
            yield row | (json.loads(last) if done.returncode == 0 else {"failure": done.stderr})


def one(name: str, road: str) -> Row:
    """Capture one network at full size, with AdamW, into a temporary file."""
    from tempfile import TemporaryDirectory

    from benchmarks.nets.lean import batch

    module, inputs = batch(name)
    optimizer = torch.optim.AdamW(module.parameters())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    begin, own = time.perf_counter(), time.process_time()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "step.onnx"
        step = memplan.TorchStep(module, None, inputs, optimizer)
        capture = memplan.capture(step, path, via=road)
        seconds, own = time.perf_counter() - begin, time.process_time() - own
        files = sum(item.stat().st_size for item in Path(folder).iterdir())
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(own, 1),
        "taken": capture.via,
        "roads": [tried.as_json() for tried in capture.roads],
        "nodes": len(capture.model.graph.node),
        "weight_bytes": capture.weight_bytes,
        "file_bytes": files,
        "rss_before_bytes": before,
        "rss_peak_bytes": after,
    }


def training_rows(only: Sequence[str]) -> Iterator[Row]:
    """200 steps in PyTorch and of the captured, rewritten graph."""
    from benchmarks.capture.trained import curves

    for name in ("gpt", "cnn"):
        if only and name not in only:
            continue
        for road in ROADS:
            yield {"part": "training", "name": name, "road": road, **curves(name, road)}


PARTS: dict[str, Callable[[Sequence[str]], Iterator[Row]]] = {
    "families": family_rows,
    "libraries": library_rows,
    "steps": step_rows,
    "full": full_rows,
    "training": training_rows,
}


def kept(path: Path | None) -> dict[tuple[object, ...], Row]:
    """Rows of an earlier record by what they are of."""
    if path is None or not path.exists():
        return {}
    rows = json.loads(path.read_text())["results"]
    return {(row["part"], row["name"], row["road"]): row for row in rows}


def main(argv: Sequence[str] | None = None) -> int:
    """Print every row, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture.roads")
    parser.add_argument("parts", nargs="+", help="families, libraries, steps, full, training")
    parser.add_argument("--only", action="append", default=[], help="a name, repeatable")
    parser.add_argument("--json", type=Path, help="the record")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    if options.parts[0] == "one":
        print(json.dumps(one(*options.parts[1:])))
        return 0
    rows = kept(options.json)
    for part in options.parts:
        for row in PARTS[part](options.only):
            print(json.dumps(row), flush=True)
            rows[row["part"], row["name"], row["road"]] = row
            if options.json is not None:
                write_record(
                    options.json, f"python -m benchmarks.capture.roads {part}", list(rows.values())
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
