"""The GPUs that Vulkan shows, through ctypes: WebGPU's provider picks one of them on Linux.

What is packed are ``VkApplicationInfo`` and ``VkInstanceCreateInfo`` (type 1); offsets are those of
``VkPhysicalDeviceProperties2`` and of what it leads to (Vulkan 1.1).
"""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
import sys
from dataclasses import dataclass

SOFTWARE_ALLOWED = "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"
"""The provider's variable: it takes a software adapter where this is 1."""
_PROPERTIES = 840  # bytes of the structure
_TYPE, _NAME = 32, 36  # deviceType, deviceName
_CPU = 4  # VK_PHYSICAL_DEVICE_TYPE_CPU
_GET_PROPERTIES = 1000059001  # VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2
_LIMITS = ((1000168000, 24), (1000413001, 16))
"""Structures of maintenance 3 and 4, and where ``maxMemoryAllocationSize`` and ``maxBufferSize``
stand in them."""
_VULKAN_1_1 = (1 << 22) | (1 << 12)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A device. ``software``: it computes on the CPU. ``largest_bytes``: of a buffer, as which the
    provider holds a tensor; what a kernel reads of it at once is less, and the provider's matter.
    """

    name: str
    software: bool
    largest_bytes: int


def find_adapters() -> tuple[Adapter, ...] | str:
    """Every device, or why there is none; on Windows and macOS, where the provider goes another
    way, nothing can be said."""
    if not sys.platform.startswith("linux"):
        return "adapters are listed on Linux only"
    try:
        vulkan = ctypes.CDLL("libvulkan.so.1")
    except OSError:
        return "no Vulkan loader (libvulkan.so.1 is not there)"
    instance, count = ctypes.c_void_p(), ctypes.c_uint()
    application = ctypes.create_string_buffer(struct.pack("iPPIPII", *[0] * 6, _VULKAN_1_1))
    info = struct.pack("iPIPIPIP", 1, 0, 0, ctypes.addressof(application), 0, 0, 0, 0)
    if vulkan.vkCreateInstance(info, None, ctypes.byref(instance)):
        return "no Vulkan driver"
    try:
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
        devices = (ctypes.c_void_p * count.value)()
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices)
        found = tuple(_adapter(vulkan, device) for device in devices)
    finally:
        vulkan.vkDestroyInstance(instance, None)
    return found or "no Vulkan device"


def _adapter(vulkan: ctypes.CDLL, device: int | None) -> Adapter:
    limits = [
        ctypes.create_string_buffer(struct.pack("=iiq32x", kind, 0, 0)) for kind, _ in _LIMITS
    ]
    for one, other in itertools.pairwise(limits):
        struct.pack_into("=q", one, 8, ctypes.addressof(other))
    first = ctypes.addressof(limits[0])
    raw = ctypes.create_string_buffer(
        struct.pack("=iiq", _GET_PROPERTIES, 0, first), 2 * _PROPERTIES
    )
    vulkan.vkGetPhysicalDeviceProperties2(ctypes.c_void_p(device), raw)
    (kind,) = struct.unpack_from("=I", raw, _TYPE)
    name = raw.raw[_NAME : _NAME + 256].split(b"\0")[0].decode(errors="replace")
    sizes = [
        struct.unpack_from("=Q", found, place)[0]
        for found, (_, place) in zip(limits, _LIMITS, strict=True)
    ]
    return Adapter(name, kind == _CPU, min(filter(None, sizes), default=0))


def adapter_problem() -> str:
    """Why the provider has no adapter to run on, as far as Vulkan tells; empty: it may have."""
    found = find_adapters()
    if isinstance(found, str):
        return found if sys.platform.startswith("linux") else ""
    if all(adapter.software for adapter in found) and os.environ.get(SOFTWARE_ALLOWED) != "1":
        names = ", ".join(adapter.name for adapter in found)
        return f"only a software adapter ({names}); {SOFTWARE_ALLOWED}=1 allows it"
    return ""


def largest_buffer() -> tuple[str, int] | None:
    """The adapter that holds the largest buffers, of those that may be used, and their bytes; None
    where nothing is known."""
    found = find_adapters()
    if isinstance(found, str):
        return None
    allowed = os.environ.get(SOFTWARE_ALLOWED) == "1"
    usable = [each for each in found if (allowed or not each.software) and each.largest_bytes]
    best = max(usable, key=lambda each: each.largest_bytes, default=None)
    return None if best is None else (best.name, best.largest_bytes)
