"""Scratch memory that ONNX Runtime's CPU kernels take while they run.

Every formula gives bytes and reproduces what `tools/probe_ort` measured on onnxruntime 1.31.1:
the kernel's peak beyond its inputs and outputs, as seen by the CPU allocator without an arena.
Unless a docstring says "upper bound", the formula is exact for all probed cases. Memory a kernel
takes past the allocator (std::vector, thread-local MLAS buffers) is outside every figure here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import pairwise
from math import prod

from memplan.ops.workspace_matrix import attention, einsum, gru, lstm, ms_attention, rnn
from memplan.ops.workspace_node import (
    FLOAT,
    FLOAT16,
    INT32,
    INT64,
    Formula,
    Node,
    TensorSpec,
    broadcast,
    elements,
    item_bytes,
)


def _where(node: Node) -> int | None:
    """Two masked copies, one per branch: |condition x X| + |condition x Y| elements.

    Source: where_op.cc selects each branch into a tensor of its own, then merges the two.
    """
    condition, x, y = node.inputs[0], node.inputs[1], node.inputs[2]
    if condition is None or x is None or y is None:
        return None
    return sum(prod(broadcast(condition.shape, side.shape)) * item_bytes(x) for side in (x, y))


def _variadic(node: Node) -> int | None:
    """Partial results of three or more operands folded from the left; the last one is the output.

    Two neighbouring partial results live at a time: max(t[i] + t[i+1]) - output.
    Source: element_wise_ops.cc, UntypedBroadcastVariadic.
    """
    operands = [tensor for tensor in node.inputs if tensor is not None]
    if len(operands) < 3:
        return 0
    size = item_bytes(operands[0])
    shape: tuple[int, ...] = tuple(operands[0].shape)
    partial = [0]
    for tensor in operands[1:]:
        shape = broadcast(shape, tensor.shape)
        partial.append(prod(shape) * size)
    peak = max(first + second for first, second in pairwise(partial))
    return max(0, peak - partial[-1])


def _softmax(node: Node) -> int | None:
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


def _batch_normalization(node: Node) -> int | None:
    """Training: mean and variance of the batch, 2 x channels elements; inference: none."""
    tensor = node.input(0)
    if tensor is None:
        return None
    if not node.integer("training_mode", 0):
        return 0
    return 2 * (tensor.shape[1] if len(tensor.shape) > 1 else 1) * item_bytes(tensor)


def _conv_pads_are_zero(
    node: Node, image: Sequence[int], kernel: Sequence[int], out: Sequence[int]
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
    node: Node, image: Sequence[int], kernel: Sequence[int], out: Sequence[int], channels: int
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


def _conv(node: Node) -> int | None:
    """One of three MLAS algorithms (convolve.cpp, MlasConvPrepare).

    A plain matrix product takes none. More filters than output pixels (per group): the unrolled
    image, pixels x channels x kernel x 4. Otherwise 64 KiB a thread: min(threads, batch x groups)
    threads, or for a single image as many as `_conv_segments` says.
    """
    x, weight, y = node.input(0), node.input(1), node.output(0)
    if x is None or weight is None or y is None or x.dtype != FLOAT:
        return None
    if not elements(y):
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


def _conv_transpose(node: Node) -> int | None:
    """The unfolded product of one image and group: input pixels x filters / group x kernel.

    Source: conv_transpose.cc, the column buffer (also for 1x1 kernels).
    """
    x, weight = node.input(0), node.input(1)
    if x is None or weight is None:
        return None
    return prod(x.shape[2:]) * prod(weight.shape[1:]) * item_bytes(x)


def _lrn(node: Node) -> int | None:
    """The scale of all elements, and the squares of one image padded by size - 1 channels."""
    x = node.input(0)
    if x is None:
        return None
    channels, pixels = x.shape[1], prod(x.shape[2:])
    return x.nbytes + (channels + node.integer("size", 1) - 1) * pixels * item_bytes(x)


def _twice_input(node: Node) -> int | None:
    """Two copies of the input."""
    x = node.input(0)
    return None if x is None else 2 * x.nbytes


def _once_output(node: Node) -> int | None:
    """One tensor like the output."""
    y = node.output(0)
    return None if y is None else y.nbytes


def _bias_once_output(node: Node) -> int | None:
    """One tensor like the output when there is a bias (the biased input), else none."""
    return 0 if node.input(1) is None else _once_output(node)


def _norm_in_half(node: Node) -> int | None:
    """float16: scale and bias widened to float32; float32 and float64: none."""
    x = node.input(0)
    if x is None:
        return None
    if x.dtype != FLOAT16:
        return 0
    return 4 * (elements(node.input(1)) + elements(node.input(2)))


def _skip_norm_in_half(node: Node) -> int | None:
    """float16: input, skip, result and all vectors widened to float32; otherwise none."""
    x = node.input(0)
    if x is None:
        return None
    if x.dtype != FLOAT16:
        return 0
    vectors = sum(elements(node.input(index)) for index in range(2, len(node.inputs)))
    return 4 * (2 * elements(x) + elements(node.input(1)) + vectors)


def _resize(node: Node) -> int | None:
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


_FORMULAS: dict[tuple[str, str], Formula] = {
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
    ("", "Einsum"): einsum,
    ("", "RNN"): rnn,
    ("", "LSTM"): lstm,
    ("", "GRU"): gru,
    ("", "Attention"): attention,
    ("com.microsoft", "Attention"): ms_attention,
}


# The formulas of CUDA leave out the partial sums of reductions over the last axes: 8 bytes per
# output where few elements are reduced (seen up to 120), more where it takes several blocks.


def _squares(node: Node) -> int | None:
    """CUDA: the squares of the whole input."""
    tensor = node.input(0)
    return None if tensor is None else tensor.nbytes


def _input_and_output(node: Node) -> int | None:
    """CUDA: exponentials of the input, and the largest per output; 16 B too much in one case."""
    tensor, result = node.input(0), node.outputs[0]
    return None if tensor is None or result is None else tensor.nbytes + result.nbytes


def _whole_numbers(node: Node) -> int | None:
    """CUDA: whole numbers are reduced in double precision, input and output; else none."""
    tensor, result = node.input(0), node.outputs[0]
    if tensor is None or result is None:
        return None
    return 8 * (elements(tensor) + elements(result)) if tensor.dtype in (INT32, INT64) else 0


_CUDA_FORMULAS: dict[tuple[str, str], Formula] = {
    **{("", op): _softmax for op in ("Softmax", "LogSoftmax")},
    ("", "ReduceSumSquare"): _squares,
    ("", "ReduceLogSumExp"): _input_and_output,
    **{
        ("", f"Reduce{kind}"): _whole_numbers for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod")
    },
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
    intra_op_num_threads. On CUDA few operators with scratch are known: what cuDNN and cuBLAS take
    has not been measured.
    """
    domain = "" if domain == "ai.onnx" else domain
    formula = _formulas(provider).get((domain, op))
    if formula is None:
        return 0 if f"{domain}:{op}" in _without_scratch(provider) else None
    try:
        return formula(Node(attributes, inputs, outputs, max(1, threads)))
    except (IndexError, ValueError):  # a rank that the operator never makes: the file is wrong
        return None


@cache
def never_takes_scratch(domain: str, op: str, provider: str) -> bool:
    """Whether :func:`workspace_bytes` is 0 for every call of an operator: most have no scratch."""
    return (domain, op) not in _formulas(provider) and f"{domain}:{op}" in _without_scratch(
        provider
    )


def _formulas(provider: str) -> Mapping[tuple[str, str], Formula]:
    return {"cpu": _FORMULAS, "cuda": _CUDA_FORMULAS}.get(provider, {})
