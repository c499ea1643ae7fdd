"""Runs training steps on WebGPU as they are and rewritten, and beside the CPU; writes the record.

    python -m benchmarks.webgpu STEPS sample_models --json benchmarks/results/webgpu.json

The folders have training graphs: STEPS those of :mod:`benchmarks.webgpu_steps`, captured with
PyTorch, which need not be where the provider is. Called again with the same ``--json`` it goes on
where it stopped; ``--net``, ``--part`` and ``--share`` choose. Parts:

- ``adapter``: what it ran on. ``operators``: of the sample models, what becomes of their nodes.
- ``original``: nodes by provider, outputs beside the CPU's, or why it does not run.
- ``losses``: twenty steps of ``Trainer`` on both, where the step has an optimizer.
- ``rewritten`` to shares of its peak, validated beside itself: clones, order, bits.
  Steps of more than ``--flops`` are placed and planned, and not run.
- ``buffers``: storage buffers alive at once in a session's third run, counted through Vulkan (which
  needs a C compiler).
- ``browser``: steps of a rewritten one in headless Chromium on SwiftShader, with onnxruntime-web
  from npm (``MEMPLAN_NODE_MODULES``), beside the CPU.
"""

import argparse
import contextlib
import ctypes
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
from onnx import TensorProto

import memplan
from benchmarks.record import Row, arguments, in_process, run
from memplan.errors import MemplanError
from memplan.ops.cost import flops
from memplan.ops.faults import features
from memplan.ops.instance import in_graph
from memplan.ops.memory import semantics
from memplan.providers import PROVIDERS
from memplan.runtime.adapters import SOFTWARE_ALLOWED, find_adapters
from memplan.runtime.inputs import synthesize
from memplan.runtime.messages import RunRequest
from memplan.runtime.session_options import session_options
from memplan.runtime.sessions import open_session, run_step
from memplan.simulate.devices import place
from memplan.simulate.opened import OpenModel, on_devices, open_model
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate
from memplan.simulate.unrunnable import require_runs

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "sample_models"
STEPS, BROWSER_STEPS, EFFORT = 20, 10, 10
SHARES = ("70%", "50%")
PARTS = ("adapter", "operators", "original", "losses", "rewritten", "buffers", "browser")
KIND = session_kind("tuned", "webgpu")
DIMS = {"gpt_dynamic": {"N": 2}}
SHOWN = ("cnn",)
"""Networks whose buffers are counted, and which are trained in a browser."""
MODES = ("bucket", "simple", "disabled", "lazyRelease")
"""Of ``storageBufferCacheMode``."""
CHAIN = """<ir_version: 10, opset_import: ["": 20]>
chain (float[100000] x) => (float[100000] y) {
    a = Exp (x) b = Tanh (a) c = Sigmoid (b) d = Exp (c) e = Tanh (d) y = Sigmoid (e)
}"""
SETTINGS = ("LD_LIBRARY_PATH", "VK_ICD_FILENAMES", SOFTWARE_ALLOWED)


def adapter() -> Row:
    """What it runs on, and the environment that it was found in."""
    found = find_adapters()
    rows = found if isinstance(found, str) else [asdict(each) for each in found]
    return {"adapters": rows, "environment": {k: os.environ.get(k) for k in SETTINGS}}


def operators() -> Row:
    """A verdict for every operator of the sample models: how many of its nodes are placed, how many
    fall to the CPU and with which types, how many fail, and whether the probe ran it."""
    rules, found = semantics("webgpu"), dict[str, Row]()
    for path in sorted(SAMPLES.glob("*.onnx")):
        graph = open_model(path, DIMS.get(path.stem, {})).graph
        host = place(graph, "webgpu")[1].host_nodes
        for node in graph.nodes:
            new: Row = {"placed": 0, "on_cpu": 0, "fail": 0, "types_on_cpu": []}
            row = found.setdefault(node.key.lstrip(":"), new)
            row["probed"] = node.key in rules.known or node.id in host
            own = features(in_graph(graph, node))
            if node.id in host:
                types = [TensorProto.DataType.Name(graph.tensors[t].dtype) for t in node.reads]
                row["on_cpu"] += 1
                row["types_on_cpu"] = sorted({*row["types_on_cpu"], *map(str.lower, types)})
            elif any(why in own for why, _ in rules.faults.get(node.key, ())):
                row["fail"] += 1
            else:
                row["placed"] += 1
    return {"operators": dict(sorted(found.items()))}


def original(path: Path, most_flops: float) -> Row:
    """What runs where, and the outputs beside the CPU's; or why it does not run."""
    model = open_model(path, DIMS.get(path.stem, {}))
    placed = on_devices(model, KIND)
    assert placed.devices is not None
    fallbacks = placed.devices.fallbacks
    work = whole_flops(model)
    row: Row = {
        "flops": work,
        "nodes": len(model.graph.nodes),
        "nodes_on_cpu": len(placed.devices.host_nodes),
        "operators_on_cpu": sorted({each.op for each in fallbacks}),
        "bytes_of_copies": sum(each.to_host_bytes + each.to_device_bytes for each in fallbacks),
        "predicted_peak_bytes": simulate(
            placed.graph, KIND, placed.devices
        ).peak_with_workspace_bytes,
    }
    try:
        require_runs(model.graph, "webgpu")
    except MemplanError as error:
        return row | {"refused": error.message}
    if work > most_flops:
        return row | {"not_run": f"more than {most_flops:g} FLOPs"}
    feeds, found = synthesize(model.graph, 0), dict[str, dict[str, Any]]()
    for provider in ("cpu", "webgpu"):
        session = opened(path, provider)
        began = time.perf_counter()
        values = run_step(session, feeds)
        row["seconds"] = time.perf_counter() - began
        found[provider] = {o.name: v for o, v in zip(session.get_outputs(), values, strict=True)}
    return row | beside(found["cpu"], found["webgpu"])


def whole_flops(model: OpenModel) -> float:
    """Of a step, counted in its matrix products and convolutions and, of all else, its elements."""
    return sum(flops(model.graph, node) for node in model.graph.nodes)


def opened(path: Path, provider: str) -> Any:
    """A tuned session of a file."""
    dims = DIMS.get(path.stem, {})
    request = RunRequest("tuned", provider, dims)
    return open_session(str(path), request, session_options("tuned", dims))


def beside(cpu: dict[str, Any], webgpu: dict[str, Any]) -> Row:
    """The largest difference of an output, of the largest number in it."""
    worst, where = 0.0, ""
    for name, right in cpu.items():
        if right.dtype.kind != "f" or not right.size:
            continue
        size = max(float(np.abs(right).max()), 1e-6)
        off = float(np.abs(webgpu[name] - right).max()) / size
        if not off <= worst:
            worst, where = off, name
    return {"outputs": len(cpu), "largest_difference_from_cpu": worst, "output": where}


def losses(path: Path, most_flops: float) -> Row:
    """Twenty steps on both providers, each with a batch of its own."""
    found: dict[str, list[float]] = {}
    model = open_model(path, DIMS.get(path.stem, {}))
    if whole_flops(model) > most_flops:
        return {"not_run": f"more than {most_flops:g} FLOPs"}
    try:
        for provider in ("cpu", "webgpu"):
            trainer = memplan.Trainer(path, provider=provider, lr=1e-3)
            feeds = [synthesize(model.graph, seed) for seed in range(STEPS)]
            batches = [
                {slot.name: each[slot.name] for slot in trainer.batch_slots} for each in feeds
            ]
            found[provider] = [trainer.step(batch) for batch in batches]
            trainer.close()
    except MemplanError as error:
        return {"refused": error.message.replace(str(path), path.name)}
    pairs = zip(found["cpu"], found["webgpu"], strict=True)
    worst = max(abs(one - other) / abs(one) for one, other in pairs)
    return {"steps": STEPS, "largest_relative_difference": worst, **found}


def less(path: Path, share: str, target: Path) -> memplan.Rewrite:
    """Rewritten to a share of its peak."""
    size = memplan.parse_size(share)
    options = memplan.RewriteOptions(size, provider="webgpu", effort=EFFORT)
    return memplan.rewrite(path, options, target, dims=DIMS.get(path.stem))


def rewritten(path: Path, share: str, most_flops: float) -> Row:
    """One share, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "less.onnx"
        began = time.perf_counter()
        try:
            made = less(path, share, out)
            row = planned(made, time.perf_counter() - began)
            if whole_flops(open_model(path, DIMS.get(path.stem, {}))) > most_flops:
                return row | {"not_run": f"more than {most_flops:g} FLOPs"}
            asked = memplan.ValidateOptions(runs=1, draws=1, plain=False)
            found = memplan.validate(path, out, asked)
        except MemplanError as error:
            return {"refused": error.message}
    told = found.as_json()
    names = ("equality", "max_rel_diff", "contradicted_outputs", "compared_outputs", "clones")
    more = ("surviving_clones", "order_kept", "findings")
    return row | {
        **{name: told[name] for name in (*names, *more)},
        "equivalent_by_construction": found.equivalence.proved,
        "predicted_peak_bytes": [
            each.predicted_peak_with_workspace_bytes for each in (found.original, found.rewritten)
        ],
        "nodes_by_provider": dict(found.rewritten.providers),
        "step_seconds": [each.seconds_median for each in (found.original, found.rewritten)],
    }


def planned(made: memplan.Rewrite, seconds: float) -> Row:
    """What ``rewrite`` says of its file."""
    nodes = [node.name for node in made.model.graph.node]
    return {
        "budget_bytes": made.budget_bytes,
        "fences": sum(name.startswith("memplan/") for name in nodes),
        "predicted_peak_bytes": [
            made.original.timeline.peak_with_workspace_bytes,
            made.timeline.peak_with_workspace_bytes,
        ],
        "rewrite_seconds": seconds,
    }


def buffers(path: Path, budget: str, mode: str) -> Row:
    """A file, or as it is rewritten to ``budget``, where its Vulkan is one that counts."""
    tools = ROOT / "tools" / "probe_ort"
    sys.path.append(str(tools))
    compiled, loader = import_module("shim").compiled, import_module("webgpu").loader
    with tempfile.TemporaryDirectory() as folder:
        if budget:
            whole, path = path, Path(folder) / path.name
            less(whole, budget, path)
        compiled("vulkan_count.c", Path(folder) / "libvulkan.so.1")
        libraries = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        return in_process(
            "webgpu.held", path, mode, LD_LIBRARY_PATH=libraries, MEMPLAN_VULKAN=loader()
        )


def held(path: str, mode: str) -> Row:
    """Bytes of storage buffers alive at once in the third run, where they are counted."""
    feeds, known = synthesize(open_model(Path(path)).graph, 0), PROVIDERS["webgpu"]
    # Not by memplan, which would ask Vulkan for adapters.
    library = import_module(known.plugin).get_library_path()
    ort.register_execution_provider_library("webgpu", library)
    settings = {**known.settings, "storageBufferCacheMode": mode}
    options = session_options("tuned", {})
    session = ort.InferenceSession(path, options, [(known.runtime_name, settings)])
    vulkan = ctypes.CDLL("libvulkan.so.1")
    alive, peak = (
        ctypes.c_int64.in_dll(vulkan, f"count_{name}_bytes") for name in ("live", "peak")
    )
    for _ in range(3):
        peak.value = alive.value
        run_step(session, feeds)
    return {"held_bytes": peak.value}


def browser(path: Path, share: str) -> Row:
    """Losses of steps on WebGPU in Chromium, and on the CPU in Python."""
    sys.path.append(str(ROOT / "tests"))
    from helpers.browser import (
        ON_WEBGPU,
        SOFTWARE,
        node_package,
        told_by,
        webgpu_options,
        write_steps,
    )

    package = node_package("onnxruntime-web")
    if package is None:
        return {"not_run": "no onnxruntime-web"}
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        site.mkdir()
        (site / "node_modules").symlink_to(package.parent)
        target = site / "less.onnx"
        less(path, share, target)
        trainer = memplan.Trainer(target, provider="cpu")
        graph = open_model(target).graph
        feeds = [synthesize(graph, seed) for seed in range(BROWSER_STEPS)]
        names = [slot.name for slot in trainer.batch_slots]
        batches = [{"lr": 1e-3} | {name: each[name] for name in names} for each in feeds]
        with contextlib.chdir(site):
            module = "./node_modules/onnxruntime-web/dist/ort.webgpu.min.mjs"
            write_steps(target, batches, ON_WEBGPU, module, webgpu_options())
        (site / "steps.html").write_text('<script type="module" src="steps.mjs"></script>')
        told = json.loads(told_by("steps.html", site, switches=SOFTWARE))
        cpu = [trainer.step(batch) for batch in batches]
        trainer.close()
    pairs = zip(cpu, told["losses"], strict=True)
    return {
        "onnxruntime-web": json.loads((package / "package.json").read_text())["version"],
        **{name: told[name] for name in ("architecture", "submitted")},
        "largest_relative_difference": max(abs(one - other) / abs(one) for one, other in pairs),
        "cpu": cpu,
        "webgpu": told["losses"],
    }


def wanted(options: argparse.Namespace) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """What rows are of, and how they are made."""
    yield {"part": "adapter"}, adapter
    yield {"part": "operators"}, operators
    most = options.flops
    paths = [path for folder in options.graphs for path in sorted(folder.glob("*.onnx"))]
    for path in paths:
        if options.net and path.stem not in options.net:
            continue
        yield {"part": "original", "net": path.stem}, partial(original, path, most)
        yield {"part": "losses", "net": path.stem}, partial(losses, path, most)
        for share in options.share or SHARES:
            yield (
                {"part": "rewritten", "net": path.stem, "share": share},
                partial(rewritten, path, share, most),
            )
        if path.stem in SHOWN:
            yield (
                {"part": "browser", "net": path.stem, "share": SHARES[0]},
                partial(browser, path, SHARES[0]),
            )
    with tempfile.TemporaryDirectory() as folder:
        chain = Path(folder) / "chain.onnx"
        onnx.save(onnx.parser.parse_model(CHAIN), chain)
        for path in (chain, *(path for path in paths if path.stem in SHOWN)):
            for share in ("",) if path is chain else ("", "50%"):
                for mode in MODES:
                    yield (
                        {"part": "buffers", "net": path.stem, "share": share, "mode": mode},
                        partial(buffers, path, share, mode),
                    )


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Every row that is not there yet."""
    known: list[Row] = []
    if options.json and options.json.exists():
        known = json.loads(options.json.read_text())["results"]
    for key, make in wanted(options):
        chosen = not options.part or key["part"] in options.part
        if chosen and not any(key.items() <= row.items() for row in known):
            yield {**key, **make()}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the command line."""
    parser = arguments("webgpu", __doc__)
    parser.add_argument("graphs", type=Path, nargs="+", help="folders of training graphs")
    parser.add_argument("--net", action="append")
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--share", action="append", help="budgets")
    parser.add_argument("--flops", type=float, default=1e9, help="more are too slow in software")
    return run(parser, rows, argv, of=("part", "net", "share", "mode"))


if __name__ == "__main__":
    main()
