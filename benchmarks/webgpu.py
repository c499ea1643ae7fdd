"""Runs training steps on WebGPU as they are and rewritten, and beside the CPU; writes the record.

    python -m benchmarks.webgpu STEPS --json benchmarks/results/webgpu.json

STEPS has the steps of :mod:`benchmarks.webgpu_steps`, captured with PyTorch, which need not be
where the provider is. Of each: nodes by provider; rewritten to shares of its peak, proved, run
beside itself, clones, order, bits; its outputs beside the CPU's; and twenty steps of ``Trainer`` on
both, where the step has an optimizer. Of the sample models, a verdict for every operator. Called
again with the same ``--json`` it goes on where it stopped; ``--net`` and ``--share`` choose.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

import memplan
from benchmarks.record import versions
from memplan.errors import InfeasibleError, MemplanError
from memplan.ops.faults import features
from memplan.ops.instance import in_graph
from memplan.ops.memory import semantics
from memplan.runtime.adapters import find_adapters
from memplan.runtime.inputs import synthesize
from memplan.runtime.messages import RunRequest
from memplan.runtime.session_options import session_options
from memplan.runtime.sessions import open_session
from memplan.simulate.devices import place
from memplan.simulate.opened import OpenModel, on_devices, open_model
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

STEPS, EFFORT = 20, 10
KIND = session_kind("tuned", "webgpu")


def original_row(path: Path) -> dict[str, Any]:
    """What runs where, and the outputs beside the CPU's."""
    model = open_model(path)
    placed = on_devices(model, KIND)
    assert placed.devices is not None
    host = placed.devices.host_nodes
    fallbacks = placed.devices.fallbacks
    return {
        "nodes": len(model.graph.nodes),
        "nodes_on_cpu": len(host),
        "operators_on_cpu": sorted({each.op for each in fallbacks}),
        "bytes_of_copies": sum(each.to_host_bytes + each.to_device_bytes for each in fallbacks),
        "predicted_peak_bytes": simulate(
            placed.graph, KIND, placed.devices
        ).peak_with_workspace_bytes,
        "beside_cpu": beside_cpu(path, model),
        "losses": losses(path, model),
    }


def operators() -> dict[str, Any]:
    """A verdict for every operator of the sample models: how many of its nodes are placed, how many
    fall to the CPU and with which types, how many fail, and whether the probe ran it."""
    rules, found = semantics("webgpu"), dict[str, Any]()
    for path in sorted(Path("sample_models").glob("*.onnx")):
        graph = open_model(path, {"N": 2} if path.stem == "gpt_dynamic" else {}).graph
        host = place(graph, "webgpu")[1].host_nodes
        for node in graph.nodes:
            op = node.key.lstrip(":")
            row = found.setdefault(op, {"placed": 0, "on_cpu": 0, "fail": 0, "types_on_cpu": []})
            row["probed"] = node.key in rules.known or node.id in host
            own = features(in_graph(graph, node))
            if node.id in host:
                types = [graph.tensors[t].dtype for t in node.reads]
                row["on_cpu"] += 1
                row["types_on_cpu"] = sorted({*row["types_on_cpu"], *map(dtype_name, types)})
            elif any(why in own for why, _ in rules.faults.get(node.key, ())):
                row["fail"] += 1
            else:
                row["placed"] += 1
    return dict(sorted(found.items()))


def dtype_name(dtype: int) -> str:
    """As ``int64``."""
    return str(TensorProto.DataType.Name(dtype)).lower()


def beside_cpu(path: Path, model: OpenModel) -> dict[str, Any]:
    """The largest difference of an output, of the largest number in it."""
    feeds = synthesize(model.graph, 0)
    found = {}
    for provider in ("cpu", "webgpu"):
        request = RunRequest("tuned", provider)
        session = open_session(path.read_bytes(), request, session_options("tuned", {}))
        names = [given.name for given in session.get_outputs()]
        taken = [given.name for given in session.get_inputs()]
        values = session.run(names, {name: feeds[name] for name in taken})
        found[provider] = dict(zip(names, values, strict=True))
    worst, where = 0.0, ""
    for name, right in found["cpu"].items():
        if right.dtype.kind != "f" or not right.size:
            continue
        size = max(float(np.abs(right).max()), 1e-6)
        off = float(np.abs(found["webgpu"][name] - right).max()) / size
        if off > worst:
            worst, where = off, name
    return {"outputs": len(found["cpu"]), "largest_relative_difference": worst, "output": where}


def losses(path: Path, model: OpenModel) -> dict[str, Any]:
    """Twenty steps on both providers, each with a batch of its own."""
    found: dict[str, list[float]] = {}
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
        return {"not_trained": error.message}
    pairs = zip(found["cpu"], found["webgpu"], strict=True)
    worst = max(abs(one - other) / abs(one) for one, other in pairs)
    return {"steps": STEPS, "largest_relative_difference": worst, **found}


def rewritten_row(path: Path, share: str) -> dict[str, Any]:
    """One share, or why there is none."""
    budget = memplan.parse_size(share)
    options = memplan.RewriteOptions(budget, provider="webgpu", effort=EFFORT)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "less.onnx"
        try:
            made = memplan.rewrite(path, options, out)
        except InfeasibleError as error:
            return {"refused": error.message}
        found = memplan.validate(path, out, memplan.ValidateOptions(runs=1, draws=1, plain=False))
        nodes = [node.name for node in made.model.graph.node]
    told = found.as_json()
    names = ("proved", "equality", "max_rel_diff", "contradicted_outputs", "compared_outputs")
    more = ("clones", "surviving_clones", "order_kept", "within_budget", "findings")
    return {
        "budget_bytes": made.budget_bytes,
        "fences": sum(name.startswith("memplan/") for name in nodes),
        **{name: told[name] for name in (*names, *more)},
        "equivalent_by_construction": found.equivalence.proved,
        "predicted_peak_bytes": [
            run.predicted_peak_with_workspace_bytes for run in (found.original, found.rewritten)
        ],
        "nodes_by_provider": dict(found.rewritten.providers),
        "seconds": [run.seconds_median for run in (found.original, found.rewritten)],
    }


def main() -> int:
    """Write a row after every step; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.webgpu")
    parser.add_argument("steps", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--net", action="append")
    parser.add_argument("--share", action="append")
    options = parser.parse_args()
    record = json.loads(options.json.read_text()) if options.json.exists() else {}
    adapters = find_adapters()
    record["command"] = f"python -m benchmarks.webgpu STEPS --json {options.json}"
    record["versions"] = {
        **versions(),
        "onnxruntime-ep-webgpu": version("onnxruntime-ep-webgpu"),
    }
    record["adapters"] = (
        adapters if isinstance(adapters, str) else [adapter.name for adapter in adapters]
    )
    record["operators"] = operators()
    rows = record.setdefault("steps", {})
    for path in sorted(options.steps.glob("*.onnx")):
        if options.net and path.stem not in options.net:
            continue
        row = rows.setdefault(path.stem, {})
        if "original" not in row:
            row["original"] = original_row(path)
            options.json.write_text(json.dumps(record, indent=1) + "\n")
        for share in options.share or ("70%", "50%"):
            if share not in row:
                row[share] = rewritten_row(path, share)
                options.json.write_text(json.dumps(record, indent=1) + "\n")
            print(
                path.stem, share, row[share].get("refused", row[share].get("equality")), flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
