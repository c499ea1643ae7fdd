"""ONNX Runtime's WebGPU provider: its kernels, what they do with memory, and where they fail.

Runs on any adapter; buffers are counted through
Vulkan (vulkan_count.c), with the provider's own cache of them turned off. Every case of the
catalogue is run there and on the CPU: one that fails, or whose result differs, is listed with what
sets it apart from those that do not. A case that ends the process is skipped by the next one.
"""

import ctypes
import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from cases import Case, all_cases, around, specs
from children import DIED, Look, Probe
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
from shim import compiled

KERNELS = Path(__file__).parents[2] / "memplan" / "ops" / "tables" / "webgpu_kernels.json"
OWN = "WebGpuExecutionProvider"
SETTINGS = {"preferredLayout": "NCHW", "storageBufferCacheMode": "disabled"}
SOURCE = (
    "the plugin provider's own kernel registry and sessions on one-op models, on SwiftShader "
    "(tools/probe_ort/webgpu.py)"
)
NO_TRUTH = {":TopK", ":ScatterElements", ":ReduceProd"}  # order, repeated indices, overflow


def _bytes(values: list) -> int:
    """Of buffers, which are made in whole multiples of 16 B."""
    return sum(-(-np.asarray(value).nbytes // 16) * 16 for value in values)


def look(case: Case, counter: ctypes.CDLL) -> dict | None:
    """What one case showed; None where the node does not run on WebGPU."""

    def counted(opened: Any, feeds: dict) -> tuple[list, int, int]:
        counter.count_reset()
        results = opened.run(None, feeds)
        read = (ctypes.c_int64.in_dll(counter, f"count_{name}") for name in ("made", "made_bytes"))
        return (results, *(value.value for value in read))

    def requests_of(model: onnx.ModelProto, feeds: dict) -> int:
        opened = session(model, (OWN, SETTINGS))
        if set(providers_of(opened).values()) != {OWN}:
            raise LookupError
        return counted(opened, feeds)[1]

    model, feeds, _, _ = around(case, bare=True)
    opened = session(model, (OWN, SETTINGS))
    if providers_of(opened).get("node") != OWN:
        return None
    # A number that float32 holds for the CPU's result, and no bits: kernels round differently.
    expected = session(model, CPU).run(None, feeds)
    found = {"inputs": case.specs, "outputs": specs(expected), "pairs": [], "shares": False}
    try:
        results, _, made = counted(opened, feeds)
    except Exception as error:
        return {**found, "said": " ".join(str(error).split()).rpartition("Message: ")[2]}
    found["scratch"] = max(made - _bytes(list(feeds.values())) - _bytes(results), 0)
    if case.key not in NO_TRUTH and not all(map(_near, results, expected)):
        found["said"] = "WRONG RESULTS"
    with suppress(Exception):  # a copy of an input or output is not on WebGPU
        found["shares"], found["pairs"] = sharing(case, requests_of, len(case.slots))
    return found


def _near(one: object, other: object) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or not one.size or one.dtype.kind not in "fiu":
        return one.shape == other.shape
    one, other = one.astype(np.float64), other.astype(np.float64)
    far = np.abs(one - other) > 0.02 * max(np.nanmax(np.abs(other)), 1e-3) + (one.dtype.kind != "f")
    return not far.any()


def _opened() -> Look:
    _register()
    counter = ctypes.CDLL("libvulkan.so.1")

    def looked(case: Case) -> dict | None:
        with suppress(Exception):  # the CPU refuses the case as well
            return look(case, counter)
        return None

    return looked


def _register() -> None:
    import onnxruntime as ort
    import onnxruntime_ep_webgpu as plugin

    ort.register_execution_provider_library("webgpu", plugin.get_library_path())


def _registry() -> Look:
    from onnxruntime.capi import _pybind_state as state

    _register()
    return kernel_look((OWN, SETTINGS), state.get_registered_ep_kernel_defs(OWN))


def _call(case: object, result: dict) -> list[str]:
    from memplan.ops.faults import features
    from memplan.ops.instance import Instance

    class Spec:
        def __init__(self, row: list) -> None:
            self.dtype, self.shape = row[0], tuple(row[1])

    slots = [[row and Spec(row) for row in result[name]] for name in ("inputs", "outputs")]
    present = iter(slots[1])
    outputs = [
        None if k in case.absent_outputs else next(present, None) for k in range(case.outputs)
    ]
    return features(Instance(dict(case.attributes), slots[0], outputs))


def fault_rows(cases: list, results: dict[int, dict]) -> dict[str, list]:
    """Operator key -> rows of what sets failing calls apart, and what the runtime said."""
    calls = defaultdict(list)
    for index, result in results.items():
        if "f16" not in result.get("said", ""):
            calls[cases[index].key].append((result.get("said"), _call(cases[index], result), index))
    found = {}
    for key, rows in sorted(calls.items()):
        fine = {name for said, names, _ in rows if not said for name in names}
        for said in dict.fromkeys(said for said, _, _ in rows if said):
            failing = [names for each, names, _ in rows if each == said]
            common = [n for n in failing[0] if all(n in each for each in failing) and n not in fine]
            if common:
                found.setdefault(key, []).append([common[0], said])
            else:
                labels = [cases[index].label for each, _, index in rows if each == said]
                print(f"{key}: {said}: not told apart: {', '.join(labels)}", file=sys.stderr)
    return found


def _memory(cases: list[Case], results: dict[int, dict]) -> dict:
    for index, result in results.items():
        if DIED in result:
            known = {"inputs": cases[index].specs, "outputs": [[1, []]]}
            results[index] = {**known, "said": "it ends the process"}
    registered = json.loads(KERNELS.read_text())["kernels"]
    missing = {case.key for case in cases} - set(registered)
    table = memory_table("webgpu", SOURCE, cases, results, missing)
    return {**table, "faults": fault_rows(cases, results)}


def _kernels(cases: list[Case], results: dict[int, dict]) -> dict:
    return kernel_table("webgpu", SOURCE, cases, results)


def _counted(folder: Path) -> Mapping[str, str]:
    """A Vulkan that counts, in front of the real one."""
    compiled("vulkan_count.c", folder / "libvulkan.so.1")
    path = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return {"MEMPLAN_VULKAN": loader(), "LD_LIBRARY_PATH": path}


def loader() -> str:
    """Where Vulkan's loader is, which the counter stands in front of."""
    ctypes.CDLL("libvulkan.so.1")
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in maps if "libvulkan.so" in line)


PROBES = {
    "webgpu": Probe(all_cases, _opened, _memory, _counted),
    "webgpu_kernels": Probe(kernel_cases, _registry, _kernels),
}
