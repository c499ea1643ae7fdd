"""Training graphs on the GPU: original and rewritten, how large a batch fits, PyTorch as peer.

    python -m benchmarks.gpu --graphs GRAPHS --json gpu.json

One command, sized by the device's memory, ends before ``--seconds``, writes the JSON after every
row (a second call with the same file goes on where the first stopped). Without a GPU it runs on the
CPU. benchmarks/README.md says how to make graphs and how to read the figures.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.batch import fitting, largest_batches
from benchmarks.gpu.bench import Bench, GraphFile
from benchmarks.gpu.peers import peer_rows
from benchmarks.gpu.sessions import fixed, session_rows
from benchmarks.record import versions

FAMILIES = ("resnet50", "unet", "gpt2", "bert")
PARTS = ("sessions", "batch", "peers")
SCHEMA = "memplan.benchmark.gpu/1"
_BATCH = re.compile(r"_bs(\d+)")


def main() -> int:
    """Run the command line; the exit code."""
    options = _options()
    bench = _start(options)
    graphs = list(_graphs(options))
    if not graphs:
        print("no graphs: give --graphs FOLDER or --graph FAMILY=FILE", file=sys.stderr)
        return 2
    for family in options.net:
        own = [graph for graph in graphs if graph.family == family]
        if own and "sessions" in options.part:
            _sessions(bench, own)
    for family in options.net:
        own = [graph for graph in graphs if graph.family == family]
        if own and "batch" in options.part:
            for key, make in largest_batches(bench, own):
                bench.add(key, make)
    if "peers" in options.part:
        batches = {
            row["net"]: row["batch"]
            for row in bench.record["results"]
            if row["kind"] == "session" and "batch" in row
        }
        for key, make in peer_rows(bench, batches):
            bench.add(key, make)
    bench.record["seconds"] = round(time.perf_counter() - bench.started, 1)
    bench.save()
    return 0


def _start(options: argparse.Namespace) -> Bench:
    from memplan.runtime.cuda_device import describe_device
    from memplan.units import parse_size

    device = describe_device()
    cuda = device.started("cuda")
    provider = options.provider
    if provider == "auto":
        provider = "cuda" if cuda else "cpu"
    free = device.cpu_available_bytes
    if provider == "cuda" and cuda is not None:
        gpu = device.gpu
        free = cuda.free_bytes or (0 if isinstance(gpu, str) else gpu.total_bytes)
    memory = parse_size(options.memory).resolve(free)
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "command": "python -m benchmarks.gpu " + " ".join(_shown(sys.argv[1:])),
        "provider": provider,
        "memory_bytes": memory,
        "device": device.as_json(),
        "versions": versions(),
        "results": [],
    }
    if options.json and options.json.exists():
        earlier = json.loads(options.json.read_text())
        if earlier.get("schema") == SCHEMA and earlier.get("provider") == provider:
            record["results"] = earlier["results"]
    record["left_out"], record["notes"] = [], []
    if provider == "cuda" and cuda is not None and not cuda.right:
        record["notes"].append("the device computes wrong results: a stub? No figure here counts")
    return Bench(options, provider, memory, record)


def _graphs(options: argparse.Namespace) -> Iterator[GraphFile]:
    """Given files, and those of a folder whose names begin with a family."""
    given = [text.partition("=")[::2] for text in options.graph]
    found = [(family, Path(path)) for family, path in given]
    for folder in options.graphs:
        for path in sorted(Path(folder).glob("*.onnx")):
            family = next((f for f in FAMILIES if path.name.startswith(f)), None)
            if family:
                found.append((family, path))
    for family, path in found:
        dim, batch = _batch(path)
        yield GraphFile(family, path, dim, batch)


def _batch(path: Path) -> tuple[str | None, int | None]:
    """Name of the symbolic batch, or the fixed one: by the file's inputs, or by its name."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_param:
            return dims[0].dim_param, None
    named = _BATCH.search(path.name)
    return None, int(named[1]) if named else 1


def _sessions(bench: Bench, graphs: list[GraphFile]) -> None:
    """Original and rewritten graphs in tuned and default sessions, at the largest fitting batch."""
    chosen = fitting(graphs, bench.memory_bytes, bench.provider, bench.options.batch)
    if chosen is None:
        bench.record["notes"].append(f"no graph of {graphs[0].family} fits --memory")
        return
    with tempfile.TemporaryDirectory() as folder:
        # A plain session binds no dimension: without fixed shapes it hardly works in place.
        graph = fixed(chosen[0], chosen[1], Path(folder))
        for key, make in session_rows(bench, graph, chosen[1], Path(folder)):
            bench.add(key, make)


def _shown(arguments: list[str]) -> list[str]:
    """The arguments with file names only: a record names no folder."""
    return [re.sub(r"(?<![\w.])(?:\.{0,2}/)?(?:[^\s=/]*/)+", "", text) for text in arguments]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.gpu")
    parser.add_argument("--graphs", action="append", default=[], help="a folder of graphs")
    parser.add_argument("--graph", action="append", default=[], metavar="FAMILY=FILE")
    parser.add_argument("--net", action="append", choices=FAMILIES)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--share", action="append", help="budgets, of the dynamic peak")
    parser.add_argument("--session", action="append", choices=["tuned", "default"])
    parser.add_argument("--provider", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--memory", default="10%", help="of what is free: what an original takes")
    parser.add_argument("--batch", type=int, help="instead of the largest that fits --memory")
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="of the peers")
    parser.add_argument("--runs", type=int, default=5, help="timed steps")
    parser.add_argument("--plan-seconds", type=float, default=8.0)
    parser.add_argument("--seconds", type=float, default=540.0, help="begin no row after this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.net = options.net or list(FAMILIES)
    options.part = options.part or list(PARTS)
    options.share = options.share or ["70%", "50%", "35%"]
    options.session = options.session or ["tuned", "default"]
    return options


if __name__ == "__main__":
    sys.exit(main())
