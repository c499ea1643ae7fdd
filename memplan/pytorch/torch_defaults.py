"""The type and the device that PyTorch gives tensors where it is not told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from memplan.pytorch.torch_internals import internal

_HELD = "device_context"


class Defaults(NamedTuple):
    """What ``torch.set_default_dtype`` and ``torch.set_default_device`` were given."""

    dtype: torch.dtype
    device: torch.device | None


class _Plain(NamedTuple):
    """In the place of a mode that cannot be looked at."""

    device: torch.device


PLAIN = Defaults(torch.float32, None)
"""Those of a new process, in which PyTorch's exporter works; under others it mixes types."""


def defaults_now() -> Defaults:
    """Those that hold now."""
    return Defaults(torch.get_default_dtype(), getattr(_default_device_mode(), "device", None))


def _default_device_mode() -> Any:
    """What ``torch.set_default_device`` has entered; None: nothing. Asking PyTorch for the device
    makes a tensor."""
    held = internal("torch._GLOBAL_DEVICE_CONTEXT")
    return _Plain(torch.get_default_device()) if held is None else getattr(held, _HELD, None)


def on_device(name: str) -> torch.device:
    """A device, to be entered: what is made inside lies there."""
    return torch.device(name)


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
