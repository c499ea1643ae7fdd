"""ONNX Runtime's CUDA provider, without a GPU, over ``tests/helpers/cuda_stub.c``: its kernels, and
what they do with memory.

Every case of the catalogue runs on the real provider with an allocator that counts. cuBLAS and
cuDNN are not there: what they would take is not seen, and convolutions do not run.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from cases import Case, all_cases, around, specs
from children import Look, Probe
from device import (
    CPU,
    kernel_cases,
    kernel_look,
    kernel_table,
    memory_table,
    providers_of,
    session,
    sharing,
)

KERNELS = Path(__file__).parents[2] / "memplan" / "ops" / "tables" / "cuda_kernels.json"
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


def look(case: Case) -> dict | None:
    """What a case showed: nothing where it does not run."""
    if case.op in ("If", "Loop", "Scan", "Shape", "Size") or "nchwc" in case.domain:
        return None  # bodies, what runs on the host, and what the CPU's optimizer alone makes
    try:
        model, feeds, _, _ = around(case, bare=True)
        results, _, peak = _run(model, feeds)
        held = [np.asarray(value).nbytes for value in results]
        shares, pairs = sharing(case, lambda *run: _run(*run)[1], sum(n > 0 for n in held))
    except OnCpuError:
        return {"on_cpu": True}
    except Exception:  # not with the stub, or not with these types
        return None
    scratch = max(peak - sum(v.nbytes for v in feeds.values()) - sum(held), 0)
    found = {"inputs": case.specs, "outputs": specs(results), "pairs": pairs}
    return {**found, "shares": shares, "scratch": scratch}


def _memory(cases: list[Case], results: dict[int, dict]) -> dict:
    # Of others the catalogue has not the types or attributes.
    registered = json.loads(KERNELS.read_text())["kernels"]
    on_cpu = {cases[index].key for index, result in results.items() if "on_cpu" in result}
    table = memory_table("cuda", SOURCES[0], cases, results, on_cpu - set(registered), LIBRARY)
    table["no_scratch"] = sorted({*table["no_scratch"], ":Shape", ":Size"})
    return table


def _registry() -> Look:
    from onnxruntime.capi import _pybind_state as state

    own = [each for each in state.get_all_opkernel_def() if each.provider == CUDA]
    return kernel_look((CUDA, {}), own)


def _kernels(cases: list[Case], results: dict[int, dict]) -> dict:
    return kernel_table("cuda", SOURCES[1], cases, results)


def _over_stub(folder: Path) -> Mapping[str, str]:
    """The loader looks for libraries when a process starts."""
    from tests.helpers import cuda_stub

    return {"LD_LIBRARY_PATH": str(cuda_stub.build(folder))}


PROBES = {
    "cuda": Probe(all_cases, lambda: look, _memory, _over_stub),
    "cuda_kernels": Probe(kernel_cases, _registry, _kernels, _over_stub),
}
