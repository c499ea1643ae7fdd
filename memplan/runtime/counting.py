"""A second way to measure device memory: an allocator of our own that counts every request.

The CUDA provider takes three addresses (``gpu_external_alloc``, ``_free``, ``_empty_cache``) and
then asks that allocator instead of its arena for every tensor, initializer, copied input and
kernel workspace. The profiler's figures leave out workspace within a kernel; these do not.
Imported in child processes only. Tested over a stub of the CUDA runtime, never on a GPU.
"""

from __future__ import annotations

import ctypes
from typing import Any

from memplan.runtime.gpu import cuda_runtime

_ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_EMPTY = ctypes.CFUNCTYPE(None)


class CountingAllocator:
    """Hands out device memory one call at a time and counts the bytes asked for.

    Keep it until the session is deleted: the session calls it to free.
    """

    def __init__(self) -> None:
        runtime = cuda_runtime()
        if runtime is None:
            raise RuntimeError("the CUDA runtime library was not found")
        self._runtime: Any = runtime
        self._sizes: dict[int, int] = {}
        self.live_bytes = 0
        self.peak_bytes = 0
        self._callbacks = (_ALLOC(self._alloc), _FREE(self._free), _EMPTY(lambda: None))

    def _alloc(self, size: int) -> int | None:
        pointer = ctypes.c_void_p()
        if self._runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(max(size, 1))):
            return None
        address = int(pointer.value or 0)
        self._sizes[address] = size
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return address

    def _free(self, address: int | None) -> None:
        self.live_bytes -= self._sizes.pop(address or 0, 0)
        self._runtime.cudaFree(ctypes.c_void_p(address))

    def provider_options(self) -> dict[str, str]:
        """Options of the CUDA provider that make it use this allocator."""
        names = ("gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache")
        return {
            name: str(ctypes.cast(callback, ctypes.c_void_p).value)
            for name, callback in zip(names, self._callbacks, strict=True)
        }

    def start(self) -> None:
        """Forget the peak so far."""
        self.peak_bytes = self.live_bytes
