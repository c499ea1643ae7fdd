"""The GPUs that Vulkan shows, through ctypes: WebGPU's provider picks one of them on Linux.

Offsets are those of ``VkPhysicalDeviceProperties`` (Vulkan 1.0).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from dataclasses import dataclass

SOFTWARE_ALLOWED = "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"
"""The provider's variable: it takes a software adapter where this is 1."""
_PROPERTIES = 824  # bytes of the structure
_TYPE, _NAME, _RANGE = 16, 20, 324  # deviceType, deviceName, limits.maxStorageBufferRange
_CPU = 4  # VK_PHYSICAL_DEVICE_TYPE_CPU
_CREATE_INSTANCE = 1  # VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO


@dataclass(frozen=True, slots=True)
class Adapter:
    """A device. ``software``: it computes on the CPU. ``largest_bytes``: of a tensor that a kernel
    can be given as one buffer."""

    name: str
    software: bool
    largest_bytes: int


class _InstanceInfo(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint),
        ("application", ctypes.c_void_p),
        ("layers", ctypes.c_uint),
        ("layer_names", ctypes.c_void_p),
        ("extensions", ctypes.c_uint),
        ("extension_names", ctypes.c_void_p),
    )


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
    info = _InstanceInfo(type=_CREATE_INSTANCE)
    if vulkan.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance)):
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
    raw = ctypes.create_string_buffer(2 * _PROPERTIES)
    vulkan.vkGetPhysicalDeviceProperties(ctypes.c_void_p(device), raw)
    kind, largest = (struct.unpack_from("=I", raw, offset)[0] for offset in (_TYPE, _RANGE))
    name = raw.raw[_NAME : _NAME + 256].split(b"\0")[0].decode(errors="replace")
    return Adapter(name, kind == _CPU, largest)


def adapter_problem() -> str:
    """Why the provider has no adapter to run on, as far as Vulkan tells; empty: it may have."""
    found = find_adapters()
    if isinstance(found, str):
        return found if sys.platform.startswith("linux") else ""
    if all(adapter.software for adapter in found) and os.environ.get(SOFTWARE_ALLOWED) != "1":
        names = ", ".join(adapter.name for adapter in found)
        return f"only a software adapter ({names}); {SOFTWARE_ALLOWED}=1 allows it"
    return ""
