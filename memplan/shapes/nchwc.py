"""Shapes of ONNX Runtime's blocked convolution layout (NCHWc), which exists on the CPU only.

A plain session goes over to it between ``ReorderInput`` and ``ReorderOutput`` where a convolution's
weights are constants (``nchwc_transformer.cc``, 1.31.1). Channels come in blocks, of 8 or 16 by the
processor; their number is rounded up. ONNX knows none of these operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx
from onnx import helper

from memplan.shapes.tensor_type import TensorType, Types

DOMAIN = "com.microsoft.nchwc"
BLOCK = "memplan.block"
"""Attribute of a ``ReorderInput`` from :func:`state_block`: channels per block."""

Sizes = tuple[int, ...]
_SPATIAL = 2
# What the runtime calls tensors that it puts into the layout.
_TOKEN = "reorder"
_GLOBAL = frozenset({"GlobalMaxPool", "GlobalAveragePool"})
_WINDOWED = frozenset({"Conv", "MaxPool", "AveragePool"})


def in_blocks(graph: onnx.GraphProto) -> bool:
    """Whether any node of the graph works on blocks of channels."""
    return any(node.domain == DOMAIN for node in graph.node)


def state_block(graph: onnx.GraphProto, block: int) -> None:
    """Note the number of channels per block where shapes depend on it."""
    for node in graph.node:
        if node.domain == DOMAIN and node.op_type == "ReorderInput":
            node.attribute.append(helper.make_attribute(BLOCK, block))


def nchwc_type(node: onnx.NodeProto, types: Types, blocked: set[str]) -> TensorType | None:
    """The type of a node's first output, if that of its first input is known.

    Operators of other domains that stand in the layout work element by element, or are ``Concat``.
    ``blocked`` collects the tensors that are in it: nodes are asked in the order of the file.
    """
    if not node.input or not node.output:
        return None
    if node.domain != DOMAIN and (
        blocked.isdisjoint(node.input) or not node.output[0].startswith(_TOKEN)
    ):
        return None
    if node.op_type != "ReorderOutput":
        blocked.add(node.output[0])
    source = types.get(node.input[0])
    if source is None or source.sizes is None:
        return None
    try:
        sizes = _sizes(node, source.sizes, types)
    except (LookupError, ValueError, TypeError, ArithmeticError):  # no runtime wrote this node
        return None
    return None if sizes is None else TensorType(source.dtype, sizes)


def _sizes(node: onnx.NodeProto, source: Sizes, types: Types) -> Sizes | None:
    """Dimensions of the output of a node that reads a tensor of dimensions ``source``."""
    given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    if len(source) != 2 + _SPATIAL:
        return None
    batch, channels, *spatial = source
    if node.domain != DOMAIN:
        if node.op_type != "Concat":
            return source
        parts = [value.sizes if (value := types.get(name)) else None for name in node.input]
        whole = [part[1] for part in parts if part is not None and len(part) == len(source)]
        return (batch, sum(whole), *spatial) if len(whole) == len(parts) else None
    if node.op_type == "ReorderInput":
        if given.get("channels_last", 0):
            channels, spatial = source[-1], list(source[1:-1])
        block = int(given.get(BLOCK, 1))
        return (batch, -(-channels // block) * block, *spatial)
    if node.op_type == "ReorderOutput":
        channels = int(given["channels"])
        last = given.get("channels_last", 0)
        return (batch, *spatial, channels) if last else (batch, channels, *spatial)
    if node.op_type in _GLOBAL:
        return (batch, channels, *(1 for _ in spatial))
    if node.op_type == "Upsample":
        return tuple(size * int(by) for size, by in zip(source, given["scales"], strict=True))
    if node.op_type not in _WINDOWED:
        return None
    if node.op_type == "Conv":
        weight = types.get(node.input[1])
        if weight is None or weight.sizes is None:
            return None
        channels, kernel = weight.sizes[0], weight.sizes[2:]
    else:
        kernel = tuple(given["kernel_shape"])
    return (batch, channels, *_windows(spatial, kernel, given))


def _windows(spatial: Sequence[int], kernel: Sequence[int], given: dict[str, Any]) -> Iterable[int]:
    """How often a window fits along every spatial axis (ONNX ``Conv`` and pools)."""
    count = len(spatial)
    strides = given.get("strides") or [1] * count
    dilations = given.get("dilations") or [1] * count
    pads = given.get("pads") or [0] * (2 * count)
    automatic = given.get("auto_pad", b"NOTSET")
    for axis, size in enumerate(spatial):
        if automatic in (b"SAME_UPPER", b"SAME_LOWER"):
            yield -(-size // strides[axis])
            continue
        padding = 0 if automatic == b"VALID" else pads[axis] + pads[axis + count]
        room = size + padding - (dilations[axis] * (kernel[axis] - 1) + 1)
        up = strides[axis] - 1 if given.get("ceil_mode", 0) else 0
        yield (room + up) // strides[axis] + 1
