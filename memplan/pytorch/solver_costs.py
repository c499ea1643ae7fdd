"""What an operator of PyTorch takes: estimated seconds, and memory of its own.

Seconds are by the roofline of a device.

As for ONNX nodes (:mod:`memplan.ops.cost`): time = max(FLOPs / compute rate, bytes moved /
bandwidth) + latency per kernel; views cost nothing. FLOPs are PyTorch's own count, where it has
one.

What kernels of the CPU take for themselves while they run, beside their inputs and results, is
read off PyTorch 2.13's allocations on x86, kernel by kernel. Convolutions go to oneDNN, which has
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

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from memplan.ops.cost import Device, device_for
from memplan.pytorch.solver_joint import SIZE, Joint, Operator, size_of, value_of
from memplan.pytorch.torch_internals import internal

_pytree: Any = internal("torch.utils._pytree")
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACK = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def device_of(joint: Joint) -> Device:
    """The roofline for the device that a graph runs on."""
    values = [value_of(each) for each in (*joint.held, *joint.tangents)]
    kinds = {each.device.type for each in values if isinstance(each, torch.Tensor)}
    return device_for("cuda" if "cuda" in kinds else "cpu")


def operator_costs(operators: Sequence[Operator], device: Device) -> list[float]:
    """Estimated seconds of each operator."""
    return [_seconds(op, device) for op in operators]


def _seconds(op: Operator, device: Device) -> float:
    if op.is_view or op.refusal == SIZE:
        return 0.0
    moved = sum(_bytes(value_of(each)) for each in (*op.reads, op.node))
    work = max(flops(op.node), _bytes(value_of(op.node)) / 4)
    return max(work / device.flops_per_second, moved / device.bytes_per_second) + (
        device.kernel_seconds
    )


def _bytes(value: Any) -> int:
    """Bytes of the elements of all tensors in a value."""
    return sum(
        size_of(each.numel()) * each.dtype.itemsize
        for each in _pytree.tree_leaves(value)
        if isinstance(each, torch.Tensor)
    )


def flops(node: fx.Node) -> float:
    """Floating-point operations of a product, convolution or attention; 0 of anything else."""
    packet = getattr(node.target, "overloadpacket", None)
    shapes = _pytree.tree_map(
        lambda each: _shape(value_of(each)) if isinstance(each, fx.Node) else each,
        (node.args, node.kwargs),
    )
    if packet is _ATTENTION:
        return float(sdpa_flop_count(*shapes[0][:3]))
    if packet is _ATTENTION_BACK:
        return float(sdpa_backward_flop_count(*shapes[0][:4]))
    if packet not in flop_registry:
        return 0.0
    given = _pytree.tree_map(_meta, (node.args, node.kwargs, value_of(node)))
    args, kwargs, made = given
    return float(flop_registry[packet](*args, **kwargs, out_val=made))


def _shape(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.Size(size_of(each) for each in value.shape)
    return value


def _meta(value: Any) -> Any:
    """What a formula of FLOPs reads of an argument: tensors of its sizes, which hold no memory."""
    found = value_of(value) if isinstance(value, fx.Node) else value
    if isinstance(found, torch.Tensor):
        return torch.empty(_shape(found), device="meta")
    return size_of(found) if isinstance(found, torch.SymInt) else found


# -- memory ----------------------------------------------------------------------------------------

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
        return _cpu_bytes(first)
    if node.target is _FORWARD:
        source, weight = _value(node, 0), _value(node, 1)
        return max(_copied(source) + _cpu_bytes(weight), _cpu_bytes(first))
    if node.target is _BACKWARD:
        given, source = _value(node, 0), _value(node, 1)
        return _cpu_bytes(given) + _copied(source)
    return 0


def _value(node: fx.Node, place: int) -> Any:
    given = node.args[place]
    return value_of(given) if isinstance(given, fx.Node) else None


def _copied(value: Any) -> int:
    """Bytes of the copy of a convolution's input, where one is made."""
    if isinstance(value, torch.Tensor) and value.shape[1] < _PLAIN_CHANNELS:
        return 0
    return _cpu_bytes(value)


def _cpu_bytes(value: Any) -> int:
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return 0
    return size_of(value.numel()) * value.dtype.itemsize
