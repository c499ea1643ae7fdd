"""Training graphs of six families of networks at full size, differentiated by memplan.

The networks are in ``benchmarks/nets/families.py``. PyTorch exports the forward graph, with
parameters as graph inputs, so the files are small; ``memplan grad`` makes a training graph of it,
which gives the loss and the gradient of every parameter. Needs torch and onnxscript:

    python -m benchmarks.plans.families --out DIR [--only NAME]
    python -m benchmarks.plans.training_graphs --models DIR --budget 50% --json results.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def training_graph(forward: onnx.ModelProto) -> onnx.ModelProto:
    """Loss, new buffers and all gradients, checked as strictly as ONNX can."""
    import onnx

    import memplan

    named = {item.key: item.value for item in forward.metadata_props}
    loss = forward.graph.output[0].name
    model = memplan.gradients(forward, loss, named["parameters"].splitlines())
    onnx.checker.check_model(model, full_check=True)
    return model


def write(model: onnx.ModelProto, path: Path) -> None:
    """Whole or not at all: a reader that waits for the file never sees a part of it."""
    import onnx

    beginning = path.with_suffix(".part")
    onnx.save(model, beginning)
    beginning.replace(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Write ``NAME.onnx`` for every network."""
    from benchmarks.nets.families import FULL, TINY
    from benchmarks.nets.lean import exported

    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans.families")
    parser.add_argument("--out", type=Path, required=True, help="folder for the graphs")
    parser.add_argument("--only", action="append", default=[], help="part of a name, repeatable")
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, net in (FULL if options.size == "full" else TINY).items():
        if options.only and not any(part in name for part in options.only):
            continue
        begin = time.perf_counter()
        model = training_graph(exported(net.make(), net.batch()))
        path = options.out / f"{name}.onnx"
        write(model, path)
        print(
            f"{name:<28}{len(model.graph.node):>6} nodes{path.stat().st_size:>12,} B"
            f"{time.perf_counter() - begin:>8.1f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
