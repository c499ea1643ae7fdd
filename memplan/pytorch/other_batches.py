"""Other batches than the example, made of it so that they stay what a step can take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

_OWN = 0.75
"""What a row keeps of itself, where it is mixed with another."""
_SCALED = 1 / 64


def other_batch(example: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """A batch of the same shapes and types; batch 1 is the example.

    Rows of all tensors that have the common size change places in the same way. Floating-point
    numbers that are not all whole are mixed with those of another row: probabilities remain such,
    and what lies between bounds does. With a single row, the second axis is taken, and
    floating-point numbers become a little smaller.

    Args:
        example: tensors by name.
        number: tells it from other batches.
    """
    if number == 1 or any(tensor.is_meta for tensor in example.values()):
        return dict(example)
    generator = torch.Generator().manual_seed(number)
    axis = 0 if _common(example, 0) > 1 else 1
    size = _common(example, axis)
    if size < 1:
        return dict(example)
    order, other = (torch.randperm(size, generator=generator, device="cpu") for _ in range(2))
    found = {}
    for name, tensor in example.items():
        found[name] = tensor
        if tensor.dim() <= axis or tensor.shape[axis] != size:
            continue
        moved = tensor.detach().index_select(axis, order.to(tensor.device))
        if not _mixes(tensor):
            found[name] = moved
        elif axis:
            found[name] = tensor.detach() * (1 - _SCALED * number)
        else:
            mixed = tensor.detach().index_select(axis, other.to(tensor.device))
            found[name] = _OWN * moved + (1 - _OWN) * mixed
    return found


def _common(example: Mapping[str, Tensor], axis: int) -> int:
    """The size that most tensors have along an axis."""
    sizes = Counter(tensor.shape[axis] for tensor in example.values() if tensor.dim() > axis)
    return max(sizes, key=lambda size: sizes[size], default=0)


def _mixes(tensor: Tensor) -> bool:
    """Whether a tensor holds measurements, rather than numbers of things, flags or masks."""
    if not tensor.is_floating_point():
        return False
    values = tensor.detach()
    return bool(torch.isfinite(values).all()) and not bool((values == values.round()).all())
