"""What regions and layers in chunks save, and what they take: ``rewrite --chunk`` before any plan.

    python -m benchmarks.plans.chunking --json results/chunking.json MODEL...

Files are simulated as ONNX Runtime fuses them (``--run``: also run in tuned sessions, original and
in chunks, with outputs compared). FLOPs are those of products. ``--heads`` times logits and
cross-entropy with their gradients, alone, in turns with the same in chunks: the worst case, as the
rest of a network takes the same time in both. ``--steps`` (needs torch) times whole steps with
regions, and with layers, in chunks. Both count CPU seconds of one thread, which do not depend on
what else runs on the machine. A rewrite is planned at ``--budget``, if that is given.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime

import memplan
from benchmarks import record
from memplan.equivalence.prove import Side, prove, reference_side
from memplan.ir.graph import Graph
from memplan.ops.cost import flops
from memplan.passes.chunk.choose_chunks import Chunks
from memplan.passes.chunk.chunk_state import State, state_of
from memplan.proto.read import read_model
from memplan.proto.restore_order import restore_order
from memplan.proto.write import write_model
from memplan.runtime.optimize import optimize_offline
from memplan.runtime.session_options import session_options
from memplan.simulate.opened import open_model
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

# Rows, width, classes of loss heads that are timed.
HEADS = ((2048, 256, 8000), (2048, 768, 16000), (4096, 512, 8000))
_TURNS = 7
KINDS = ("regions", "layers")


def product_flops(graph: Graph) -> float:
    """FLOPs of all products."""
    products = ("MatMul", "Gemm", "FusedMatMul")
    return sum(flops(graph, node) for node in graph.nodes if node.op in products)


def fused(path: Path, folder: Path) -> Path:
    """The file as ONNX Runtime fuses it, in the folder."""
    saved, target = folder / "saved.onnx", folder / f"{path.stem}.fused.onnx"
    optimize_offline(path, saved, "cpu")
    write_model(restore_order(read_model(saved, path), read_model(path)), target)
    return target


def chunk_states(
    path: Path, kind: str = "regions", *, small: bool = False
) -> tuple[State, State, str, float]:
    """Before and after, what was done, and the CPU seconds for it; ``small``: two chunks where the
    tensors are too small for the choice of its own."""
    model = open_model(path)
    timeline = simulate(model.graph, session_kind("tuned"))
    begin = time.process_time()
    found = Chunks(kind=kind).apply(model, timeline)
    if found.model is model and small:
        found = Chunks(count=2, kind=kind).apply(model, timeline)
    seconds = time.process_time() - begin
    after = simulate(found.model.graph, timeline.session)
    return state_of(model, timeline), state_of(found.model, after), found.note, seconds


def row(path: Path, run: bool, kind: str) -> record.Row:
    """One graph before and after one kind of chunks: bytes with resident ones and workspace, FLOPs
    of products; ``measured``: of a run."""
    with TemporaryDirectory() as folder:
        before, after, note, seconds = chunk_states(fused(path, Path(folder)), kind, small=run)
        proto = after.model.prepared.proto
        found = prove(reference_side(before.model.prepared), Side(proto, path.parent))
        measured = None
        if run:
            target = Path(folder) / "chunks.onnx"
            write_model(proto, target)
            measured = measured_row(before.model.prepared.path, target)
    return {
        "graph": path.stem,
        "kind": kind,
        "chunks": note,
        "nodes_before": len(before.model.graph.nodes),
        "nodes_after": len(after.model.graph.nodes),
        "peak_before_bytes": before.peak_bytes,
        "peak_after_bytes": after.peak_bytes,
        "floor_before_bytes": before.floor_bytes,
        "floor_after_bytes": after.floor_bytes,
        "product_flops_before": product_flops(before.model.graph),
        "product_flops_after": product_flops(after.model.graph),
        "seconds_to_choose": round(seconds, 2),
        "proved": found.reason or ("the same but for rounding" if found.rounded else "equivalent"),
        "assumed_up_to_rounding": len(found.rounded),
        "measured": measured,
    }


def measured_row(before: Path, after: Path) -> record.Row:
    """Both files run, each in a process of its own: peaks, of how many ``outputs`` the bits are
    equal, and the largest relative difference of the others, over the largest element of one."""
    found = memplan.validate(before, after, memplan.ValidateOptions(plain=False))
    return {
        "peak_before_bytes": found.original.measured_peak_bytes,
        "peak_after_bytes": found.rewritten.measured_peak_bytes,
        "as_predicted": found.original.as_predicted and found.rewritten.as_predicted,
        "outputs": found.comparison.outputs,
        "outputs_bitwise_equal": found.comparison.outputs - found.comparison.differing,
        "largest_relative_difference": found.comparison.max_rel_diff,
        "findings": [finding.text for finding in found.findings],
    }


HEAD = """<ir_version: 10, opset_import: ["" : 20]>
head (float[{rows},{width}] hidden, float[{classes},{width}] weight, int64[{rows}] labels)
    => (float loss)
{{
    columns = Transpose <perm = [1, 0]> (weight)
    logits = MatMul (hidden, columns)
    loss = SoftmaxCrossEntropyLoss (logits, labels)
}}"""


def head_time(rows: int, width: int, classes: int) -> record.Row:
    """Logits and mean cross-entropy with gradients by the hidden states and the weights: both forms
    in one process, in turns."""
    sizes = {"rows": rows, "width": width, "classes": classes}
    model = memplan.gradients(
        onnx.parser.parse_model(HEAD.format(**sizes)), "loss", ["hidden", "weight"]
    )
    source = np.random.default_rng(0)
    feeds = {
        "hidden": source.standard_normal((rows, width)).astype(np.float32),
        "weight": source.standard_normal((classes, width)).astype(np.float32) / 16,
        "labels": source.integers(0, classes, rows),
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "head.onnx"
        write_model(model, path)
        before, after, note, _ = chunk_states(fused(path, Path(folder)))
        return sizes | {"chunks": int(note.split()[-2])} | timed(before, after, feeds)


def step_times() -> Iterator[record.Row]:
    """Steps of two language models of a size that runs in a second, in chunks of each kind."""
    import torch

    from benchmarks.nets import Gpt, Llama, text

    nets: dict[str, Any] = {
        "Llama, 4 layers 192 wide, 8 x 256": lambda: Llama(4000, 192, 6, 2, 768, 4),
        "GPT-2, 4 layers 192 wide, 8 x 256": lambda: Gpt(4000, 256, 192, 3, 4, tied=True),
    }
    for name, make in nets.items():
        torch.manual_seed(0)
        module, inputs = make(), text(256, 4000)(8)
        feeds = {key: value.detach().numpy() for key, value in module.named_parameters()}
        feeds |= {key: v.numpy() for key, v in zip(("tokens", "labels"), inputs, strict=True)}
        with TemporaryDirectory() as folder:
            path = Path(folder) / "step.onnx"
            memplan.capture((module, None, inputs), path, weights="none", check=False)
            whole = fused(path, Path(folder))
            for kind in KINDS:
                before, after, note, _ = chunk_states(whole, kind)
                step = {"step": name, "kind": kind, "chunks": note}
                yield step | timed(before, after, feeds)


def timed(before: State, after: State, feeds: Mapping[str, Any]) -> record.Row:
    """Peaks before and after, medians of turns in CPU milliseconds of one thread, and that of the
    ratio in each turn."""
    seconds = in_turns([state.model.prepared.proto for state in (before, after)], feeds)
    first, second = (round(statistics.median(times) * 1e3, 2) for times in seconds)
    ratio = statistics.median(b / a for a, b in zip(*seconds, strict=True))
    return {
        "peak_before_bytes": before.peak_bytes,
        "peak_after_bytes": after.peak_bytes,
        "before_ms": first,
        "after_ms": second,
        "ratio": round(ratio, 3),
    }


def in_turns(models: Sequence[onnx.ModelProto], feeds: Mapping[str, Any]) -> list[list[float]]:
    """CPU seconds of every model, turn by turn; the first turn is not counted."""
    options = session_options("tuned")
    options.intra_op_num_threads = 1
    sessions = [
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        for model in models
    ]
    seconds: list[list[float]] = [[] for _ in models]
    for turn in range(1 + _TURNS):
        for session, times in zip(sessions, seconds, strict=True):
            begin = time.process_time()
            session.run(None, dict(feeds))
            if turn:
                times.append(time.process_time() - begin)
    return seconds


def planned(path: Path, budget: str, device: str | None = None) -> record.Row:
    """A rewrite in chunks at a budget, with the times of the provider's device or of another."""
    options = memplan.RewriteOptions(memplan.parse_size(budget), chunk="auto", device=device)
    result = memplan.rewrite(path, options, dry_run=True)
    best = (note for note in result.assumptions if note.startswith("chunks: the best"))
    return {
        "graph": path.stem,
        "best": next(best, ""),
        "budget": budget,
        "device": device or "cpu",
        "budget_bytes": result.budget_bytes,
        "peak_bytes": result.timeline.peak_with_workspace_bytes,
        "extra_cost_fraction": result.extra_cost_fraction,
        "chunk_cost_fraction": result.chunk_cost,
        "bound_fraction": result.chunk_bound,
        "recomputed_nodes": result.plan.clones,
    }


def rows(options: argparse.Namespace) -> Iterator[record.Row]:
    """What was asked for, one by one."""
    for path in (*options.models, *options.run):
        for kind in KINDS:
            yield row(path, path in options.run, kind)
    for path in options.models if options.budget else ():
        for device in options.device:
            yield planned(path, options.budget, device)
    for sizes in HEADS if options.heads else ():
        yield head_time(*sizes)
    if options.steps:
        yield from step_times()


if __name__ == "__main__":
    parser = record.arguments("plans.chunking", __doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--run", action="append", default=[], type=Path, help="run this one, too")
    parser.add_argument("--heads", action="store_true", help="time loss heads")
    parser.add_argument("--steps", action="store_true", help="time whole steps")
    parser.add_argument("--budget", help="plan the models for it, too")
    parser.add_argument("--device", nargs="*", default=("cpu",), help="with times of these")
    record.run(parser, rows)
