"""What kernels of the CPU take for themselves while they run, beside their inputs and results.

Read off PyTorch 2.13's allocations on x86, kernel by kernel. Convolutions go to oneDNN, which has
layouts of its own:

1. ``convolution``: copies of the input and of the weights, before the result's own copy; then the
   result is copied back, when both are gone.
2. ``convolution_backward``: the gradient that comes in and the input are copied for the gradient of
   the weights, while that of the input is there already.
3. ``native_batch_norm_backward``, ``native_dropout`` and its gradient: one tensor of the result's
   size.

Small ones (numbers, sums over channels) are left out. A GPU's kernels are not known here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from memplan.pytorch.solver_joint import size_of, value_of

_ATEN = torch.ops.aten
_LIKE_RESULT = (
    _ATEN.native_batch_norm_backward.default,
    _ATEN.native_dropout.default,
    _ATEN.native_dropout_backward.default,
)
_FORWARD, _BACKWARD = _ATEN.convolution.default, _ATEN.convolution_backward.default
_PLAIN_CHANNELS = 4
"""An input of fewer channels is read as it lies."""


def scratch_bytes(node: fx.Node) -> int:
    """Bytes that a call takes for itself at most, on the CPU; 0 where nothing is known."""
    made = value_of(node)
    first = made[0] if isinstance(made, list | tuple) and made else made
    if node.target in _LIKE_RESULT:
        return _bytes(first)
    if node.target is _FORWARD:
        source, weight = _value(node, 0), _value(node, 1)
        return max(_copied(source) + _bytes(weight), _bytes(first))
    if node.target is _BACKWARD:
        given, source = _value(node, 0), _value(node, 1)
        return _bytes(given) + _copied(source)
    return 0


def _value(node: fx.Node, place: int) -> Any:
    given = node.args[place]
    return value_of(given) if isinstance(given, fx.Node) else None


def _copied(value: Any) -> int:
    """Bytes of the copy of a convolution's input, where one is made."""
    if isinstance(value, torch.Tensor) and value.shape[1] < _PLAIN_CHANNELS:
        return 0
    return _bytes(value)


def _bytes(value: Any) -> int:
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return 0
    return size_of(value.numel()) * value.dtype.itemsize
