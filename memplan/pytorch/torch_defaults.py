"""The type and the device that PyTorch gives tensors where it is not told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch


class Defaults(NamedTuple):
    """What ``torch.set_default_dtype`` and ``torch.set_default_device`` were given."""

    dtype: torch.dtype
    device: torch.device | None


PLAIN = Defaults(torch.float32, None)
"""Those of a new process, in which PyTorch's exporter works; under others it mixes types."""


def defaults_now() -> Defaults:
    """Those that hold now; asking PyTorch for the device makes a tensor."""
    held = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    device: Any = getattr(getattr(held, "device_context", None), "device", None)
    return Defaults(torch.get_default_dtype(), device)


@contextmanager
def defaults(wanted: Defaults) -> Iterator[None]:
    """Inside, these hold."""
    before = defaults_now()
    _set(wanted)
    try:
        yield
    finally:
        _set(before)


def _set(wanted: Defaults) -> None:
    torch.set_default_dtype(wanted.dtype)
    if defaults_now().device != wanted.device:
        torch.set_default_device(wanted.device)
