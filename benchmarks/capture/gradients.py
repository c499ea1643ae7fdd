"""What `memplan grad` keeps, beside training graphs of the same networks that PyTorch exported.

Both are simulated alike: a tuned session on the CPU, nodes in file order, static shapes. Nothing is
run. The forward graphs come from `benchmarks/nets/catalogue.py`.

    python -m benchmarks.nets.catalogue FORWARD --forward --only resnet50 --only unet --only gpt2 \\
        --only bert
    python -m benchmarks.capture.gradients --forward FORWARD --exported DIR --json results.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

import memplan
from benchmarks.record import arguments, run
from memplan.api.analysis import analyze_open
from memplan.ir.graph import Phase
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import opened
from memplan.simulate.session import session_kind


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one training graph. Peaks are dynamic: without weights and inputs.

    ``seconds``: what differentiation took; None for a graph that was there.
    """

    graph: str
    made_by: str
    nodes: int
    backward_nodes: int
    stash_bytes: int
    peak_bytes: int
    peak_with_workspace_bytes: int
    seconds: float | None


def figures(
    name: str, made_by: str, model: onnx.ModelProto, seconds: float | None = None
) -> Figures:
    """Simulate one step."""
    read = opened(prepare(model, Path(f"{name}.onnx"), {}))
    analysis = analyze_open(read, session_kind("tuned", "cpu"))
    timeline = analysis.timeline
    return Figures(
        name,
        made_by,
        len(model.graph.node),
        sum(phase is Phase.BACKWARD for phase in read.phases.of),
        sum(stash.nbytes for stash in analysis.stashes),
        timeline.dynamic_peak_bytes,
        timeline.peak_with_workspace_bytes - timeline.resident_bytes,
        seconds,
    )


def differentiated(name: str, forward: onnx.ModelProto) -> Figures:
    """The forward graph's training graph, by memplan."""
    named = {item.key: item.value for item in forward.metadata_props}
    loss = forward.graph.output[0].name
    begin = time.perf_counter()
    trained = memplan.gradients(forward, loss, named["parameters"].splitlines())
    return figures(name, "memplan grad", trained, time.perf_counter() - begin)


def rows(options: argparse.Namespace) -> Iterator[Figures]:
    """Every forward graph, and the training graph that was exported of it."""
    for path in sorted(options.forward.glob("*.onnx")):
        yield figures(path.stem, "PyTorch", onnx.load(options.exported / path.name))
        yield differentiated(path.stem, onnx.load(path))


if __name__ == "__main__":
    parser = arguments("capture.gradients", __doc__)
    parser.add_argument("--forward", type=Path, required=True, help="folder of forward graphs")
    parser.add_argument("--exported", type=Path, required=True, help="folder of training graphs")
    run(parser, rows)
