"""ONNX Runtime's CUDA provider, without a GPU, over ``tests/helpers/cuda_stub.c``: its kernels, and
what they do with memory.

    python tools/probe_ort/cuda.py --kernels --out memplan/ops/tables/cuda_kernels.json
    python tools/probe_ort/cuda.py --out memplan/ops/tables/cuda.json

Every case of the catalogue runs on the real provider with an allocator that counts. cuBLAS and
cuDNN are not there: what they would take is not seen, and convolutions do not run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from cases import Case, all_cases, around, specs
from device import (
    CPU,
    host_slots,
    kernel_table,
    kernels,
    memory_table,
    providers_of,
    session,
    sharing,
)
from table import render

ROOT = Path(__file__).resolve().parent.parent.parent
KERNELS = ROOT / "memplan" / "ops" / "tables" / "cuda_kernels.json"
CUDA = "CUDAExecutionProvider"
SOURCES = (
    "the real CUDA provider over a stub of the CUDA runtime, without a GPU "
    "(tools/probe_ort/cuda.py): workspaces of cuDNN and cuBLAS are not in it",
    "onnxruntime-gpu's own kernel registry and sessions on one-op models, over a stub of the CUDA "
    "runtime, without a GPU (tools/probe_ort/cuda.py)",
)
# Kernels on cuBLAS or cuDNN: what these take beside was not seen.
LIBRARY = frozenset(
    {
        *(":MatMul", ":Gemm", ":Einsum", ":Attention", ":ConvInteger", ":MatMulInteger"),
        *(":DeformConv", ":AveragePool", ":MaxPool", ":GlobalAveragePool", ":GlobalMaxPool"),
        *(":LRN", ":BatchNormalization", ":InstanceNormalization", "com.microsoft:FusedMatMul"),
        *("com.microsoft:Attention", "com.microsoft:MultiHeadAttention"),
        *("com.microsoft:MatMulNBits", "com.microsoft:QAttention", "com.microsoft:GroupNorm"),
        *("com.microsoft:GemmFastGelu", "com.microsoft:GemmFloat8", "com.microsoft:Inverse"),
    }
)


class OnCpuError(Exception):
    """A node is not on CUDA."""


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> tuple[list, int, int]:
    """Results, requests for memory and bytes at the peak of one run on CUDA alone."""
    from memplan.runtime.counting import CountingAllocator

    class Counting(CountingAllocator):
        requests = 0

        def _alloc(self, size: int) -> int | None:
            self.requests += 1
            return super()._alloc(size)

    counting = Counting()
    opened = session(model, (CUDA, counting.provider_options()))
    if CPU in providers_of(opened).values():
        raise OnCpuError
    base, counting.requests = counting.live_bytes, 0
    counting.start()
    results = opened.run(None, feeds)
    return results, counting.requests, counting.peak_bytes - base


def _looked() -> Iterator[tuple[Case, dict]]:
    """Every case, with what it showed: nothing where it does not run."""
    for case in all_cases():
        if case.op in ("If", "Loop", "Scan", "Shape", "Size") or "nchwc" in case.domain:
            continue  # bodies, what runs on the host, and what the CPU's optimizer alone makes
        try:
            model, feeds, _, _ = around(case, bare=True)
            results, _, peak = _run(model, feeds)
            held = [np.asarray(value).nbytes for value in results]
            shares, pairs = sharing(case, lambda *run: _run(*run)[1], sum(n > 0 for n in held))
        except OnCpuError:
            yield case, {"on_cpu": True}
        except Exception:  # not with the stub, or not with these types
            continue
        else:
            scratch = max(peak - sum(v.nbytes for v in feeds.values()) - sum(held), 0)
            found = {"inputs": case.specs, "outputs": specs(results), "pairs": pairs}
            yield case, {**found, "shares": shares, "scratch": scratch}


def _memory() -> dict:
    found = list(_looked())
    # Of others the catalogue has not the types or attributes.
    registered = json.loads(KERNELS.read_text())["kernels"]
    missing = {case.key for case, result in found if "on_cpu" in result} - set(registered)
    table = memory_table("cuda", SOURCES[0], found, missing, LIBRARY)
    table["no_scratch"] = sorted({*table["no_scratch"], ":Shape", ":Size"})
    return table


def main() -> int:
    """Build the stub, and look in a child that runs on it: the loader looks for libraries when a
    process starts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kernels", action="store_true", help="which there are")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.child:
        sys.path.insert(0, str(ROOT))
        from tests.helpers import cuda_stub as stub

        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "LD_LIBRARY_PATH": str(stub.build(Path(folder)))}
            command = [sys.executable, *sys.argv, "--child"]
            return subprocess.run(command, env=environment).returncode
    if options.kernels:
        import onnxruntime.capi._pybind_state as state

        own = [each for each in state.get_all_opkernel_def() if each.provider == CUDA]
        found = kernel_table("cuda", SOURCES[1], kernels(own), host_slots(CUDA, {}))
    else:
        found = _memory()
    options.out.write_text(render(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
