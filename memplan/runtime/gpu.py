"""What the driver says about the GPU, through ctypes: nothing to install, nothing allocated.

``libcuda`` names the device that a session will use (the first one visible); ``libnvidia-ml`` says
what of its memory is free without making a context, which ``libcuda`` cannot.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


@dataclass(frozen=True, slots=True)
class Gpu:
    """The first visible CUDA device. ``free_bytes`` and ``driver`` are None if nobody says."""

    name: str
    compute_capability: str
    total_bytes: int
    free_bytes: int | None
    driver: str | None
    cuda: str


class _MemoryInfo(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def find_gpu() -> Gpu | str:
    """The first visible device, or why there is none."""
    driver = _library("libcuda.so.1")
    if driver is None:
        return "no NVIDIA driver (libcuda.so.1 is not there)"
    status = driver.cuInit(0)
    if status:
        return f"the NVIDIA driver does not start: error {status}{_meaning(status)}"
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the NVIDIA driver shows no device"
    device = ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), 0)
    name = ctypes.create_string_buffer(256)
    total, version = ctypes.c_size_t(), ctypes.c_int()
    driver.cuDeviceGetName(name, 256, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    driver.cuDriverGetVersion(ctypes.byref(version))
    capability = [_attribute(driver, which, device) for which in (_MAJOR, _MINOR)]
    free, release = _management(_uuid(driver, device))
    return Gpu(
        name=name.value.decode(errors="replace"),
        compute_capability=f"{capability[0]}.{capability[1]}",
        total_bytes=total.value,
        free_bytes=free,
        driver=release,
        cuda=f"{version.value // 1000}.{version.value % 1000 // 10}",
    )


def unused_bytes(provider: str) -> int | None:
    """Free memory of the provider's device, with or without a context in this process; None on the
    CPU and where nobody says."""
    gpu = find_gpu() if provider == "cuda" else ""
    return None if isinstance(gpu, str) else gpu.free_bytes


def free_bytes() -> int | None:
    """Free memory of the device in a process that has a context (``cudaMemGetInfo``)."""
    runtime = cuda_runtime()
    if runtime is None:
        return None
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
        return None
    return free.value


def cuda_runtime() -> Any:
    """The CUDA runtime library that the provider uses, or None."""
    return next((lib for name in _RUNTIMES if (lib := _library(name)) is not None), None)


def _library(name: str) -> Any:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _meaning(status: int) -> str:
    known = {
        3: " (not initialized)",
        35: " (driver too old for this CUDA)",
        100: " (no CUDA-capable device)",
        803: " (driver and library versions differ)",
        999: " (unknown; the kernel module may not be loaded)",
    }
    return known.get(status, "")


def _attribute(driver: Any, which: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), which, device)
    return value.value


def _uuid(driver: Any, device: ctypes.c_int) -> bytes | None:
    """``GPU-xxxxxxxx-...`` as NVML wants it."""
    raw = (ctypes.c_ubyte * 16)()
    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or getattr(driver, "cuDeviceGetUuid", None)
    if ask is None or ask(ctypes.byref(raw), device):
        return None
    text = bytes(raw).hex()
    parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
    return f"GPU-{'-'.join(parts)}".encode()


def _management(uuid: bytes | None) -> tuple[int | None, str | None]:
    """Free bytes and driver release from NVML; None where it does not answer."""
    library = _library("libnvidia-ml.so.1")
    if library is None or library.nvmlInit_v2():
        return None, None
    try:
        release = ctypes.create_string_buffer(96)
        known = not library.nvmlSystemGetDriverVersion(release, 96)
        handle, memory = ctypes.c_void_p(), _MemoryInfo()
        failed = uuid is None or library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle))
        if failed:
            failed = library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
        if failed or library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None, release.value.decode() if known else None
        return memory.free, release.value.decode() if known else None
    finally:
        library.nvmlShutdown()
