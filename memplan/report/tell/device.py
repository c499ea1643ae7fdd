"""What ``device`` says."""

from __future__ import annotations

from memplan.api.versions import measured_runtime
from memplan.report.parts import Report
from memplan.runtime.cuda_device import Machine
from memplan.runtime.gpu import Gpu
from memplan.runtime.messages import Start
from memplan.units import counted, format_bytes


def tell_device(device: Machine) -> Report:
    """One fact per line; what was not measured is not there."""
    lines = [
        f"ONNX Runtime {device.runtime} ({device.package}); "
        f"memplan's rules were measured on {measured_runtime()}"
    ]
    lines += [_start(start) for start in device.starts]
    lines += _gpu(device.gpu)
    lines += [
        f"adapter: {each.name}{', in software' if each.software else ''}, tensors up to "
        f"{format_bytes(each.largest_bytes)}"
        for each in device.adapters
    ]
    reserve = device.reserve_bytes
    if reserve is not None:
        lines.append(
            f"reserve: {reserve:,} B ({format_bytes(reserve)}) went to context and libraries when "
            "a trivial session started; give at least that to --reserve"
        )
    elif device.started("cuda"):
        lines.append("reserve: not measured, as the driver does not say what is free (NVML)")
    lines.append(
        f"CPU: {device.cpu}, {counted(device.threads, 'thread')}, "
        f"{format_bytes(device.cpu_bytes)} of memory, "
        f"{format_bytes(device.cpu_available_bytes)} available"
    )
    return Report(lines)


def _start(start: Start) -> str:
    if start.problem:
        return f"{start.provider}: does not start ({start.problem})"
    return f"{start.provider}: starts" + ("" if start.right else ", but computes WRONG RESULTS")


def _gpu(gpu: Gpu | str) -> list[str]:
    if isinstance(gpu, str):
        return [f"GPU: {gpu}"]
    free = "" if gpu.free_bytes is None else f", {format_bytes(gpu.free_bytes)} free"
    driver = "" if gpu.driver is None else f", driver {gpu.driver}"
    return [
        f"GPU: {gpu.name}, compute capability {gpu.compute_capability}, "
        f"{format_bytes(gpu.total_bytes)}{free}, CUDA {gpu.cuda}{driver}"
    ]
