"""Alias, in-place outputs and scratch of CUDA kernels, measured over ``tests/helpers/cuda_stub.c``.

    python tools/probe_ort/cuda_memory.py --out memplan/ops/tables/cuda.json

Every case of the catalogue runs on the real CUDA provider with an allocator that counts. A kernel
works in place where one request fewer is made when an input has no later reader; it aliases where
it asks for less often than it has outputs; what it holds beyond inputs and outputs is scratch.
cuBLAS and cuDNN are not there: what they would take is not seen, and convolutions do not run.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
from on_stub import ROOT, run_on_stub
from onnx import helper

SOURCE = (
    "the real CUDA provider over a stub of the CUDA runtime, without a GPU "
    "(tools/probe_ort/cuda_memory.py): workspaces of cuDNN and cuBLAS are not in it"
)
# Kernels on cuBLAS or cuDNN: what these take beside was not seen.
LIBRARY = {
    *(":MatMul", ":Gemm", ":Einsum", ":Attention", ":ConvInteger", ":MatMulInteger", ":DeformConv"),
    *(":AveragePool", ":MaxPool", ":GlobalAveragePool", ":GlobalMaxPool", ":LRN"),
    *(":BatchNormalization", ":InstanceNormalization"),
    *("com.microsoft:FusedMatMul", "com.microsoft:Attention", "com.microsoft:MultiHeadAttention"),
    *("com.microsoft:MatMulNBits", "com.microsoft:QAttention", "com.microsoft:GroupNorm"),
    *("com.microsoft:GemmFastGelu", "com.microsoft:GemmFloat8", "com.microsoft:Inverse"),
}


def _model(case: object, dying: int | None, bare: bool) -> tuple[onnx.ModelProto, dict, list, int]:
    """The case's model, feeds, copied inputs, and number of late readers.

    Bare: graph inputs and outputs only. Else inputs are copies that all but ``dying`` are read
    again after the node, and every output is read once.
    """
    from cases import Const, model_of, node_of

    rng = np.random.default_rng(0)
    names, nodes, copies, results = [], [], [], []
    constants, feeds = {"same": np.zeros(0, np.int64)}, {}
    for index, item in enumerate(case.inputs):
        if item is None:
            names.append("")
            continue
        names.append(f"x{index}")
        if isinstance(item, Const):
            constants[f"x{index}"] = item.value
            continue
        name = f"x{index}" if bare else f"g{index}"
        feeds[name] = item.sample(rng)
        copies.append(index)
        if not bare:
            nodes.append(helper.make_node("Expand", [name, "same"], [f"x{index}"]))
    nodes.append(node_of(case, names))
    late = [] if bare else [index for index in copies if index != dying]
    for source, target in [
        *((f"y{k}", f"r{k}") for k in case.slots if not bare),
        *((f"x{index}", f"l{index}") for index in late),
    ]:
        nodes.append(helper.make_node("Expand", [source, "same"], [target]))
        results.append(target)
    model = model_of(case, nodes, feeds, constants, results or [f"y{k}" for k in case.slots])
    return model, feeds, copies, len(late)


def _run(case: object, dying: int | None, bare: bool = False) -> dict:
    """Requests made, bytes at the peak, feeds and results of one run on CUDA alone."""
    import onnxruntime as ort

    from memplan.runtime.counting import CountingAllocator

    class Counting(CountingAllocator):
        requests = 0

        def _alloc(self, size: int) -> int | None:
            self.requests += 1
            return super()._alloc(size)

    model, feeds, copies, late = _model(case, dying, bare)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.enable_mem_pattern = options.enable_mem_reuse = False
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    counting = Counting()
    provider = ("CUDAExecutionProvider", counting.provider_options())
    session = ort.InferenceSession(model.SerializeToString(), options, providers=[provider])
    session.disable_fallback()
    if any(
        part.ep_name == "CPUExecutionProvider"
        for part in session.get_provider_graph_assignment_info()
    ):
        raise RuntimeError("a node is on the CPU")
    base, counting.requests = counting.live_bytes, 0
    counting.start()
    results = session.run(None, feeds)
    found = {
        "requests": counting.requests - late,
        "peak": counting.peak_bytes - base,
        "feeds": feeds,
        "results": results,
        "copies": copies,
    }
    del session
    return found


def _specs(values: list) -> list:
    arrays = [np.asarray(value) for value in values]
    return [[int(helper.np_dtype_to_tensor_dtype(a.dtype)), list(a.shape)] for a in arrays]


def measure() -> dict[str, object]:
    """The table of all cases that run."""
    import onnxruntime as ort
    from cases import all_cases
    from table import _plain

    inplace: dict[str, set[tuple[int, int]]] = defaultdict(set)
    alias: dict[str, set[tuple[int, int]]] = defaultdict(set)
    ran: set[str] = set()
    missing: set[str] = set()
    rows = []
    for case in all_cases():
        if case.op in ("If", "Loop", "Scan", "Shape", "Size") or "nchwc" in case.domain:
            continue  # bodies, what runs on the host, and what the CPU's optimizer alone makes
        try:
            kept = _run(case, None)
            fewer = [i for i in kept["copies"] if _run(case, i)["requests"] < kept["requests"]]
            bare = _run(case, None, bare=True)
        except Exception as error:
            if "on the CPU" in str(error):
                missing.add(case.key)
            continue
        ran.add(case.key)
        inplace[case.key] |= {(0, index) for index in fewer}
        given = list(bare["feeds"].values())
        beyond = bare["peak"] - sum(v.nbytes for v in given)
        scratch = beyond - sum(np.asarray(v).nbytes for v in bare["results"])
        # Besides the node: every input is sent and copied, every output read once.
        outputs = case.outputs - len(case.absent_outputs)
        own = kept["requests"] - 2 * len(kept["copies"]) - outputs
        if own < sum(np.asarray(v).nbytes > 0 for v in bare["results"]):
            alias[case.key].add((0, 0))
            continue
        rows.append(
            {
                "op": case.key,
                "case": case.label,
                "opset": case.opset,
                "inputs": _inputs(case, given),
                "outputs": _specs(bare["results"]),
                "attributes": _plain(case.attributes),
                "threads": 1,
                "scratch_bytes": max(scratch, 0),
            }
        )
    taking = {row["op"] for row in rows if row["scratch_bytes"]}
    sharing = {key for key, pairs in inplace.items() if pairs} | set(alias)
    return {
        "schema": "memplan.probe/1",
        "runtime": f"onnxruntime {ort.__version__}",
        "provider": "cuda",
        "source": SOURCE,
        "alias": {k: sorted(map(list, v)) for k, v in sorted(alias.items())},
        "inplace": {k: sorted(map(list, v)) for k, v in sorted(inplace.items()) if v},
        "not_inplace": sorted(ran - sharing),
        "no_kernel": sorted(missing - ran - _registered()),
        "no_scratch": sorted((ran | {":Shape", ":Size"}) - taking - LIBRARY),
        "scratch": [row for row in rows if row["scratch_bytes"] and row["op"] not in LIBRARY],
    }


def _registered() -> set[str]:
    """Operators with a kernel for other types or attributes than those of the catalogue."""
    import json

    table = ROOT / "memplan" / "ops" / "tables" / "cuda_kernels.json"
    return set(json.loads(table.read_text())["kernels"])


def _inputs(case: object, given: list) -> list:
    """Specs of every input slot, None where it is left out."""
    from cases import Const

    values = iter(given)
    found = []
    for item in case.inputs:
        if item is None:
            found.append(None)
        else:
            found += _specs([item.value if isinstance(item, Const) else next(values)])
    return found


def _write(out: Path) -> None:
    from table import render

    out.write_text(render(measure()))


def main() -> int:
    """Build the stub and measure in a child that runs on it."""
    return run_on_stub(__file__, __doc__.splitlines()[0], _write)


if __name__ == "__main__":
    sys.exit(main())
