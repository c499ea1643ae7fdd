"""Scratch memory that ONNX Runtime's CPU kernels take while they run.

Every formula gives bytes and reproduces what `tools/probe_ort` measured on onnxruntime 1.31.1:
the kernel's peak beyond its inputs and outputs, as seen by the CPU allocator without an arena.
Unless a docstring says "upper bound", the formula is exact for all probed cases. Memory a kernel
takes past the allocator (std::vector, thread-local MLAS buffers) is outside every figure here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from math import prod
from typing import Protocol

_FLOAT, _BOOL, _FLOAT16 = 1, 9, 10
_ITEM_BYTES = {
    1: 4,
    2: 1,
    3: 1,
    4: 2,
    5: 2,
    6: 4,
    7: 8,
    9: 1,
    10: 2,
    11: 8,
    12: 4,
    13: 8,
    14: 8,
    15: 16,
    16: 2,
    17: 1,
    18: 1,
    19: 1,
    20: 1,
}


class TensorSpec(Protocol):
    """What a formula needs to know of a tensor; `dtype` is an onnx TensorProto code."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, all known."""

    @property
    def dtype(self) -> int:
        """Element type, as in TensorProto.DataType."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""


@dataclass(frozen=True)
class _Node:
    """The arguments of one formula."""

    attributes: Mapping[str, object]
    inputs: Sequence[TensorSpec | None]
    outputs: Sequence[TensorSpec | None]
    threads: int

    def input(self, index: int) -> TensorSpec | None:
        """The input, None when it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def output(self, index: int) -> TensorSpec | None:
        """The output, None when it is absent."""
        return self.outputs[index] if index < len(self.outputs) else None

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int]) -> Sequence[int]:
        """A list of integers; an empty or absent one is the default."""
        value = self.attributes.get(name)
        return value if isinstance(value, Sequence) and value else default


_Formula = Callable[[_Node], int | None]


def _item(tensor: TensorSpec) -> int:
    return _ITEM_BYTES.get(tensor.dtype, 0)


def _elements(tensor: TensorSpec | None) -> int:
    return prod(tensor.shape) if tensor is not None else 0


def _broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(0 if 0 in dims else max(dims) for dims in zip(*padded, strict=True))


def _where(node: _Node) -> int | None:
    """Two masked copies, one per branch: |condition x X| + |condition x Y| elements.

    Source: where_op.cc selects each branch into a tensor of its own, then merges the two.
    """
    condition, x, y = node.inputs[0], node.inputs[1], node.inputs[2]
    if condition is None or x is None or y is None:
        return None
    return sum(prod(_broadcast(condition.shape, side.shape)) * _item(x) for side in (x, y))


def _variadic(node: _Node) -> int | None:
    """Partial results of three or more operands folded from the left; the last one is the output.

    Two neighbouring partial results live at a time: max(t[i] + t[i+1]) - output.
    Source: element_wise_ops.cc, UntypedBroadcastVariadic.
    """
    operands = [tensor for tensor in node.inputs if tensor is not None]
    if len(operands) < 3:
        return 0
    size = _item(operands[0])
    shape: tuple[int, ...] = tuple(operands[0].shape)
    partial = [0]
    for tensor in operands[1:]:
        shape = _broadcast(shape, tensor.shape)
        partial.append(prod(shape) * size)
    peak = max(first + second for first, second in pairwise(partial))
    return max(0, peak - partial[-1])


def _softmax(node: _Node) -> int | None:
    """Twice the tensor when the axis is not the last: input and output are transposed copies.

    Opsets before 13 flatten instead and take none; pass `__opset` in the attributes for those.
    Source: softmax.cc, ComputeImplOpset13.
    """
    tensor = node.input(0)
    if tensor is None:
        return None
    rank = len(tensor.shape)
    if node.integer("__opset", 13) < 13 or rank == 0:
        return 0
    return 0 if node.integer("axis", -1) % rank == rank - 1 else 2 * tensor.nbytes


def _batch_normalization(node: _Node) -> int | None:
    """Training: mean and variance of the batch, 2 x channels elements; inference: none."""
    tensor = node.input(0)
    if tensor is None:
        return None
    if not node.integer("training_mode", 0):
        return 0
    return 2 * (tensor.shape[1] if len(tensor.shape) > 1 else 1) * _item(tensor)


def _conv_pads_are_zero(
    node: _Node, image: Sequence[int], kernel: Sequence[int], out: Sequence[int]
) -> bool:
    mode = node.text("auto_pad", "NOTSET")
    if mode == "VALID":
        return True
    if mode == "NOTSET":
        return not any(node.integers("pads", [0]))
    ones = [1] * len(kernel)
    strides, dilations = node.integers("strides", ones), node.integers("dilations", ones)
    return all(
        (out[d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 <= image[d]
        for d in range(len(kernel))
    )


def _conv_is_plain_product(
    node: _Node, image: Sequence[int], kernel: Sequence[int], out: Sequence[int], channels: int
) -> bool:
    """Whether the convolution is one matrix product on the input as it lies in memory."""
    if any(s != 1 for s in node.integers("strides", [1])):
        return False
    if not _conv_pads_are_zero(node, image, kernel, out):
        return False
    if prod(kernel) == 1:
        return True
    dilated = any(d != 1 for d in node.integers("dilations", [1]))
    if dilated or channels != 1 or len(kernel) > 2:
        return False
    wide = [(1, *kernel), (1, *image)] if len(kernel) == 1 else [tuple(kernel), tuple(image)]
    (kernel_h, kernel_w), (image_h, image_w) = wide
    return kernel_w == image_w or (kernel_h == image_h and kernel_w == 1)


_CONV_SEGMENT_BYTES = 128 * 128 * 4
_CONV_OPERATIONS_PER_THREAD = 64 * 1024
_CONV_MOST_THREADS = 16
_CONV_COLUMN_ALIGN = 16


def _conv_segments(filters: int, pixels: int, depth: int, threads: int) -> int:
    """How many threads MLAS gives one image: by work, then by columns in steps of 16."""
    work = filters * pixels * depth
    wanted = min(work // _CONV_OPERATIONS_PER_THREAD + 1, _CONV_MOST_THREADS, threads)
    columns = -(-pixels // wanted)
    if wanted > 1:
        columns = -(-columns // _CONV_COLUMN_ALIGN) * _CONV_COLUMN_ALIGN
        if columns >= pixels:
            return 1
        if columns * (wanted - 1) >= pixels:
            return wanted - 1
    return wanted


def _conv(node: _Node) -> int | None:
    """One of three MLAS algorithms (convolve.cpp, MlasConvPrepare).

    A plain matrix product takes none. More filters than output pixels (per group): the unrolled
    image, pixels x channels x kernel x 4. Otherwise 64 KiB a thread: min(threads, batch x groups)
    threads, or for a single image as many as `_conv_segments` says.
    """
    x, weight, y = node.input(0), node.input(1), node.output(0)
    if x is None or weight is None or y is None or x.dtype != _FLOAT:
        return None
    if not _elements(y):
        return 0
    groups = node.integer("group", 1)
    image, kernel, out = x.shape[2:], weight.shape[2:], y.shape[2:]
    channels = weight.shape[1]
    if _conv_is_plain_product(node, image, kernel, out, channels):
        return 0
    filters, pixels, depth = weight.shape[0] // groups, prod(out), channels * prod(kernel)
    if filters > pixels:
        return pixels * depth * 4
    parts = x.shape[0] * groups
    if parts > 1:
        return min(node.threads, parts) * _CONV_SEGMENT_BYTES
    return _conv_segments(filters, pixels, depth, node.threads) * _CONV_SEGMENT_BYTES


def _conv_transpose(node: _Node) -> int | None:
    """The unfolded product of one image and group: input pixels x filters / group x kernel.

    Source: conv_transpose.cc, the column buffer (also for 1x1 kernels).
    """
    x, weight = node.input(0), node.input(1)
    if x is None or weight is None:
        return None
    return prod(x.shape[2:]) * prod(weight.shape[1:]) * _item(x)


def _lrn(node: _Node) -> int | None:
    """The scale of all elements, and the squares of one image padded by size - 1 channels."""
    x = node.input(0)
    if x is None:
        return None
    channels, pixels = x.shape[1], prod(x.shape[2:])
    return x.nbytes + (channels + node.integer("size", 1) - 1) * pixels * _item(x)


def _twice_input(node: _Node) -> int | None:
    """Two copies of the input."""
    x = node.input(0)
    return None if x is None else 2 * x.nbytes


def _once_output(node: _Node) -> int | None:
    """One tensor like the output."""
    y = node.output(0)
    return None if y is None else y.nbytes


def _bias_once_output(node: _Node) -> int | None:
    """One tensor like the output when there is a bias (the biased input), else none."""
    return 0 if node.input(1) is None else _once_output(node)


def _norm_in_half(node: _Node) -> int | None:
    """float16: scale and bias widened to float32; float32 and float64: none."""
    x = node.input(0)
    if x is None:
        return None
    if x.dtype != _FLOAT16:
        return 0
    return 4 * (_elements(node.input(1)) + _elements(node.input(2)))


def _skip_norm_in_half(node: _Node) -> int | None:
    """float16: input, skip, result and all vectors widened to float32; otherwise none."""
    x = node.input(0)
    if x is None:
        return None
    if x.dtype != _FLOAT16:
        return 0
    vectors = sum(_elements(node.input(index)) for index in range(2, len(node.inputs)))
    return 4 * (2 * _elements(x) + _elements(node.input(1)) + vectors)


def _resize(node: _Node) -> int | None:
    """Linear: per output row and column 16 bytes (24 with a depth axis); other modes: none.

    An unchanged size is copied without any. Antialiasing is not modelled.
    """
    x, y = node.input(0), node.output(0)
    if x is None or y is None:
        return None
    if node.integer("antialias", 0):
        return None
    if node.text("mode", "nearest") != "linear" or tuple(x.shape) == tuple(y.shape):
        return 0
    rank = len(x.shape)
    if rank in (3, 5):
        return 24 * sum(y.shape[-3:])
    channels_last = rank == 4 and x.shape[1] != y.shape[1] and x.shape[3] == y.shape[3]
    return 16 * sum(y.shape[1:3] if channels_last else y.shape[-2:])


def _copied(order: str, wanted: str, nbytes: int) -> int:
    """Bytes of the transposed copy, none when the axes are in order already."""
    return 0 if order == wanted else nbytes


def _einsum(node: _Node) -> int | None:
    """Transposed copies where the equation needs them, the product, and its transposed copy.

    Letters are numbered by first appearance. The second operand is first put into that order,
    then both become [batch, kept, summed] x [batch, summed, kept]; all copies live to the end.
    Exact for two operands; equations with an ellipsis, a repeated letter or a letter summed out
    of one operand alone get an upper bound; more than two operands are not modelled.
    Source: einsum_utils/einsum_typed_compute_processor.cc.
    """
    first, second, y = node.input(0), node.input(1), node.output(0)
    if first is None or y is None or len(node.inputs) > 2:
        return None
    left, _, result = node.text("equation", "").replace(" ", "").partition("->")
    a, _, b = left.partition(",")
    plain = left.replace(",", "").isalpha() and all(len(set(t)) == len(t) for t in (a, b, result))
    if second is None:
        kept = "".join(c for c in a if c in result)
        reduced = y.nbytes if kept != a else 0
        return reduced + _copied(kept, result, y.nbytes) if plain else 2 * y.nbytes
    if not plain or "->" not in node.text("equation", "") or not set(a) ^ set(b) <= set(result):
        return first.nbytes + 2 * second.nbytes + 2 * y.nbytes
    order = "".join(dict.fromkeys(a + b))
    batch = "".join(c for c in order if c in a and c in b and c in result)
    summed = "".join(c for c in order if c in a and c in b and c not in result)
    rows, columns = "".join(c for c in a if c not in b), "".join(c for c in order if c not in a)
    return (
        _copied(b, "".join(sorted(b, key=order.index)), second.nbytes)
        + _copied(batch + rows + summed + columns, order, first.nbytes)
        + _copied(batch + summed + columns + rows, order, second.nbytes)
        + y.nbytes
        + _copied(batch + rows + columns, result, y.nbytes)
    )


def _flow(node: _Node) -> tuple[int, int, int, int]:
    """Sequence length, batch size, input size and hidden size of a recurrent node."""
    x, recurrent = node.inputs[0], node.inputs[2]
    assert x is not None
    assert recurrent is not None
    return x.shape[0], x.shape[1], x.shape[2], recurrent.shape[-1]


def _reversal(node: _Node) -> int:
    """Elements of the reversed copies of input and output, for the backward direction."""
    steps, batch, width, hidden = _flow(node)
    if node.text("direction", "forward") == "forward":
        return 0
    return steps * batch * (width + hidden)


def _directions(node: _Node) -> int:
    return 2 if node.text("direction", "forward") == "bidirectional" else 1


def _rnn(node: _Node) -> int | None:
    """The input product of one direction, and Y itself when it is not an output (rnn.cc)."""
    steps, batch, _, hidden = _flow(node)
    frame = steps * batch * hidden
    return 4 * (frame + (frame * _directions(node) if node.output(0) is None else 0))


def _lstm(node: _Node) -> int | None:
    """Per direction: 2 vectors, 3 states, 4 gates of the whole sequence, 4 biases, the lengths.

    Plus the reversed copies of the backward direction and the states that are not outputs.
    Source: uni_directional_lstm.cc, AllocateBuffers (peephole weights are used in place).
    """
    steps, batch, _, hidden = _flow(node)
    state = batch * hidden
    each = 2 * hidden + 3 * state + 4 * steps * state
    each += 4 * hidden if node.input(3) is not None else 0
    each += batch if node.input(4) is None else 0
    absent = sum(state for index in (1, 2) if node.output(index) is None)
    return 4 * (_directions(node) * (each + absent) + _reversal(node))


def _gru(node: _Node) -> int | None:
    """Per direction: 2 states, 3 gates of the whole sequence, repeated biases, the lengths.

    With `linear_before_reset` one more bias and a product. Plus the reversed copies of the
    backward direction and Y_h when it is not an output. Source: deep_cpu_gru.cc, AllocateBuffers.
    """
    steps, batch, _, hidden = _flow(node)
    state = batch * hidden
    linear = bool(node.integer("linear_before_reset", 0))
    each = 2 * state + 3 * steps * state + (state if linear else 0)
    each += (4 if linear else 3) * state if node.input(3) is not None else 0
    each += batch if node.input(4) is None else 0
    each += state if node.output(1) is None else 0
    return 4 * (_directions(node) * each + _reversal(node))


def _attention(node: _Node) -> int | None:
    """Scores of all heads (batch x heads x queries x keys), and a copy of the mask.

    The mask is copied when it is boolean or has the causal pattern laid over it; without a mask
    the causal pattern is one queries x keys matrix. float16 adds one float32 score matrix a
    thread: an upper bound. Source: llm/attention.cc.
    """
    query, key, mask, past = node.input(0), node.input(1), node.input(3), node.input(4)
    if query is None or key is None:
        return None
    if len(query.shape) == 4:
        batch, heads, rows = query.shape[:3]
        columns = key.shape[2]
    else:
        batch, rows, heads = *query.shape[:2], node.integer("q_num_heads", 1)
        columns = key.shape[1]
    columns += past.shape[2] if past is not None else 0
    size = _item(query)
    causal = bool(node.integer("is_causal", 0)) and not (rows == 1 and past is not None)
    total = batch * heads * rows * columns * size
    if mask is not None and (causal or mask.dtype == _BOOL):
        total += _elements(mask) * size
    elif mask is None and causal:
        total += rows * columns * size
    if query.dtype == _FLOAT16:
        total += 4 * rows * columns * min(node.threads, batch * heads)
    return total


def _ms_attention(node: _Node) -> int | None:
    """Projections, scores, result before its transposition, 64 bytes a head, and the mask.

    The mask is batch x keys for a plain padding mask and batch x queries x keys when
    unidirectional. Past states and masks of other ranks are not modelled.
    """
    x, bias, mask = node.input(0), node.input(2), node.input(3)
    heads = node.integer("num_heads", 0)
    if x is None or bias is None or not heads or node.input(4) is not None:
        return None
    if (mask is not None and len(mask.shape) != 2) or node.input(5) is not None:
        return None
    batch, rows = x.shape[:2]
    hidden = bias.shape[0] // 3
    floats = 4 * batch * rows * hidden + batch * heads * rows * rows
    if node.integer("unidirectional", 0):
        floats += batch * rows * rows
    elif mask is not None:
        floats += batch * rows
    return 4 * floats + 64 * batch * heads


_FORMULAS: dict[tuple[str, str], _Formula] = {
    ("", "Where"): _where,
    **{("", op): _variadic for op in ("Sum", "Max", "Min", "Mean")},
    **{("", op): _softmax for op in ("Softmax", "LogSoftmax", "Hardmax")},
    ("", "BatchNormalization"): _batch_normalization,
    ("", "Conv"): _conv,
    ("com.microsoft", "FusedConv"): _conv,
    ("", "ConvTranspose"): _conv_transpose,
    ("", "LRN"): _lrn,
    ("", "MeanVarianceNormalization"): _twice_input,
    ("com.microsoft", "BiasGelu"): _once_output,
    ("com.microsoft", "FastGelu"): _bias_once_output,
    **{
        ("", op): _norm_in_half
        for op in ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
    },
    ("com.microsoft", "SkipLayerNormalization"): _skip_norm_in_half,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _skip_norm_in_half,
    ("", "Resize"): _resize,
    ("", "Upsample"): _resize,
    ("", "Einsum"): _einsum,
    ("", "RNN"): _rnn,
    ("", "LSTM"): _lstm,
    ("", "GRU"): _gru,
    ("", "Attention"): _attention,
    ("com.microsoft", "Attention"): _ms_attention,
}


@cache
def _without_scratch(provider: str) -> frozenset[str]:
    """The keys `domain:op` that the provider's table lists as taking no scratch at all."""
    table = resources.files(__package__) / "tables" / f"{provider}.json"
    if not table.is_file():
        return frozenset()
    return frozenset(json.loads(table.read_text(encoding="utf-8")).get("no_scratch", ()))


def workspace_bytes(
    domain: str,
    op: str,
    attributes: Mapping[str, object],
    inputs: Sequence[TensorSpec | None],
    outputs: Sequence[TensorSpec | None],
    *,
    provider: str = "cpu",
    threads: int = 1,
) -> int | None:
    """Bytes the kernel takes beyond its inputs and outputs; None when the op was never measured.

    An absent optional input or output is None in its sequence. `threads` is the session's
    intra_op_num_threads. On CUDA only operators without scratch are known: cuDNN's and cuBLAS's
    workspaces have not been measured.
    """
    domain = "" if domain == "ai.onnx" else domain
    formula = _FORMULAS.get((domain, op)) if provider == "cpu" else None
    if formula is not None:
        return formula(_Node(attributes, inputs, outputs, max(1, threads)))
    return 0 if f"{domain}:{op}" in _without_scratch(provider) else None
