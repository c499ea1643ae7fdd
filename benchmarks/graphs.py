"""Training graphs of the networks at published sizes (``full``) or small (``tiny``), as files.

    python -m benchmarks.graphs DIR --only vit

for the benchmarks of plans: ``memplan capture`` without weights, so the files are small. Needs
``.[torch]``; about two minutes on two cores.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import memplan
from benchmarks.nets import FULL, TINY, Net
from benchmarks.record import Row, arguments, run


def captured(net: Net, count: int, path: Path) -> memplan.Capture:
    """The training step of a network with a batch of ``count`` samples, as the file ``path``: loss,
    new buffers and gradients. Weights are inputs without a value."""
    step = memplan.TorchStep(net.make(), None, net.of(count))
    return memplan.capture(step, path, weights="none", check=False)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Write ``NAME.onnx`` for every network."""
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, net in (FULL if options.size == "full" else TINY).items():
        if not options.only or any(part in name for part in options.only):
            made = captured(net, net.count, options.folder / f"{name}.onnx")
            yield {"graph": name, "nodes": len(made.model.graph.node)}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = arguments("graphs", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", default=[], help="part of a name, repeatable")
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    run(parser, rows, argv)


if __name__ == "__main__":
    main()
