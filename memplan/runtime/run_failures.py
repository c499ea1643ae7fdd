"""Failures of a child process, worded for the user: one line, what to do, bytes where known."""

from __future__ import annotations

import re

from memplan.errors import (
    ModelRefusedError,
    NodeFailedError,
    ProviderMissingError,
    RuntimeUnavailableError,
)
from memplan.providers import PROVIDERS, on_host
from memplan.runtime.installed import missing_runtime
from memplan.units import format_bytes

_ASKED = re.compile(
    r"(?:buffer of size|trying to allocate|[Tt]ried to allocate|failed to allocate)\D{0,20}(\d+)"
)
_NODE = re.compile(r"while running (\S+) node\. Name:\s*'([^']*)'")
_WHERE = re.compile(r"\S+\.(?:cc|h|cu|cpp):\d+ (?:[^()]*\(.*?\)(?: const)? )?(?:\[with [^\]]*\] )?")
_NEWER = re.compile(
    r"Unsupported model IR version: \d+, max supported IR version: \d+"
    r"|Current official support for domain \S+ is till opset \d+"
)
_OLDER = (
    "the file is newer than this ONNX Runtime: install a newer one, or save the file with an older "
    "ir_version, or with an older opset (onnx.version_converter)"
)
_NO_KERNEL = "NOT_IMPLEMENTED"
_STATUS = "Status Message: "
_RUNTIME = "[ONNXRuntimeError]"
_MEMORY = (
    "Failed to allocate memory",
    "bad allocation",
    "std::bad_alloc",
    "out of memory",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
_CUDA = re.compile(
    r"CUDA(?: failure|_ERROR\w*| error)[^;]{0,160}|cudaError\w+|CU(?:BLAS|DNN) failure[^;]{0,120}"
)
_DRIVER = ("driver", "no CUDA-capable device", "cudaErrorNoDevice", "cudaErrorInsufficientDriver")
_NO_WEBGPU = ("did not start", "WebGPU adapter", "not in available", "WebGPU device")
_TRAINING = re.compile(
    r":\w*(?:Grad\w*|Accumulator\w*|Training|YieldOp)\(-?\d+\) is not a registered"
)
_LOWER = (
    "onnxruntime-training left it behind: 'memplan lower' makes standard operators of its files"
)


def explain(error: str, what: str, provider: str) -> RuntimeUnavailableError:
    """The error of a child process as the parent raises it.

    Args:
        error: the runtime's own words.
        what: what was being done.
        provider: ``cpu``, ``cuda`` or nothing.
    """
    line = " ".join(error.split())
    if out_of_memory(line):
        return _out_of_memory(line, what, provider)
    if line.startswith(("ImportError: ", "ModuleNotFoundError: ")):
        return missing_runtime(line.partition(": ")[2])
    if provider == "webgpu" and any(sign in line for sign in _NO_WEBGPU):
        problem = line.partition("did not start: ")[2] or line[-160:]
        return ProviderMissingError(
            f"WebGPU was asked for but its provider did not start: {problem[:300]}",
            PROVIDERS["webgpu"].cure,
        )
    if provider == "cuda":
        if "did not start" in line or "not in available" in line or any(d in line for d in _DRIVER):
            reason = _CUDA.search(line)
            because = f": {reason[0].strip()}" if reason else ""
            return ProviderMissingError(
                "CUDA was asked for but ONNX Runtime's CUDA provider did not start" + because,
                PROVIDERS["cuda"].cure,
            )
        failure = _CUDA.search(line)
        if failure:
            return RuntimeUnavailableError(
                f"{what} failed on the GPU: {failure[0].strip()}",
                "the driver reported it; if a second try fails too, look at nvidia-smi and dmesg",
            )
    hint = _LOWER if _TRAINING.search(line) else ""
    node, (_, found, status) = _NODE.search(line), line.partition(_STATUS)
    if node and found:
        said = _WHERE.sub("", status, count=1)
        return NodeFailedError(f"{what} failed in {node[1]} '{node[2]}': {said[:400]}")
    kind: type[RuntimeUnavailableError] = NodeFailedError if node else RuntimeUnavailableError
    if not node and _RUNTIME in line:
        kind = ModelRefusedError
    if newer := _NEWER.search(line):
        line, hint = newer[0], _OLDER
    return kind(f"{what} failed: {line[:400]}", hint)


def out_of_memory(error: str) -> bool:
    """Whether a run failed for want of memory."""
    return any(sign in error for sign in _MEMORY)


def lacks_kernel(error: str) -> bool:
    """Whether a provider has no kernel for a node, or none for its types or attributes."""
    return _NO_KERNEL in error


def failed_node(error: str) -> tuple[str, str] | None:
    """Operator and name of the node in which a run failed; None if the runtime does not say."""
    found = _NODE.search(" ".join(error.split()))
    return (found[1], found[2]) if found else None


def _out_of_memory(line: str, what: str, provider: str) -> RuntimeUnavailableError:
    asked, node = _ASKED.search(line), _NODE.search(line)
    where = "this machine" if on_host(provider) else "the GPU"
    text = f"{what} ran out of memory on {where}"
    if asked:
        size = int(asked[1])
        text += f": {size:,} B ({format_bytes(size)}) were asked for"
    if node:
        text += f" by {node[1]} '{node[2]}'"
    if not asked and not node:
        text += f": {line[:200]}"
    return RuntimeUnavailableError(text, "use a smaller batch or a lower budget")
