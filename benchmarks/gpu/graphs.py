"""Makes the graphs of the GPU benchmark: training steps that output loss and gradients.

    python -m benchmarks.gpu.graphs --out GRAPHS [--size full] [--net gpt2]

Needs ``.[torch]``, no GPU. Parameters are graph inputs, so the files are small. The batch ``N`` of
transformers is symbolic; convolutional networks get one file per batch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# Tracing ties a symbolic dimension to every fixed one of the same size: no layer has this one.
EXAMPLE_BATCH = 7
FAMILIES = ("resnet50", "unet", "gpt2", "bert")
BATCHES = {
    ("resnet50", "full"): (32, 64, 96, 128, 192, 256),
    ("unet", "full"): (4, 8, 12, 16, 24, 32),
    ("resnet50", "tiny"): (4, 6),
    ("unet", "tiny"): (4, 6),
}


def main() -> int:
    """Make the graphs; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.gpu.graphs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--net", action="append", choices=FAMILIES)
    parser.add_argument("--batch", type=int, action="append", help="fixed batches instead")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.net or FAMILIES:
        for batch in options.batch or BATCHES.get((name, options.size), (None,)):
            path = make(name, options.size, options.out, batch)
            print(f"{path} ({path.stat().st_size:,} B)", flush=True)
    return 0


def make(name: str, size: str, folder: Path, batch: int | None = None) -> Path:
    """Write the graph of one network; its path."""
    import memplan
    from benchmarks.nets.catalogue import net

    chosen = net(name, size)
    example = chosen.of(batch or EXAMPLE_BATCH)
    step = memplan.TorchStep(chosen.make(), None, example, dynamic=None if batch else "N")
    path = folder / (f"{name}_bs{batch}.onnx" if batch else f"{name}_dynbatch.onnx")
    memplan.capture(step, path, weights="none", force=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
