"""A graph in float64, so that differences of its results tell derivatives to nine digits.

Every float type becomes float64. ONNX Runtime has no float64 kernel for some operators
(:mod:`memplan.ops.float_types`): those that ONNX defines by others are inlined, ``Erf``
and convolutions are written out, and what is left computes in float32 between Casts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from memplan.ops.float_types import unsupported_kernels
from memplan.proto import native
from memplan.proto.bare import without_weights
from memplan.proto.edit import copied, replace_nodes
from memplan.proto.nodes import all_graphs, is_standard
from memplan.shapes.infer import run_inference, stated_types
from memplan.shapes.tensor_type import FLOATS, UNKNOWN, TensorType

Sizes = Sequence[tuple[int, ...] | None]
"""Of the first inputs of a node, where they are known."""
Places = npt.NDArray[Any]
"""Numbers of elements in the flattened spatial axes of an image."""
_ZERO = -1
"""The place of a zero, which stands behind all elements."""
_FLOAT, _DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
_DEFINED = frozenset(
    {"Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "MeanVarianceNormalization", "Mish"}
    | {"PRelu", "Selu", "Softplus", "Softsign", "ThresholdedRelu"}
    | {"GroupNormalization", "LayerNormalization", "RMSNormalization"}
)
"""Operators that ONNX defines by others, which have kernels; norms have outputs in float32."""
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype")
_ERF_POINTS, _ERF_RANGE = 14, 5.0
"""Of the Gauss-Legendre rule; beyond the range, the function is 1 to 2e-12."""
_MOST_TAPS = 64
_MOST_POOLED = 5  # axes of an image that MaxPool takes


def in_double(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """A copy in float64, and the operators of the nodes that still compute in float32.

    Args:
        model: without weights in other files; initializers that are in it are converted, too.
    """
    result = copied(model)
    for graph in all_graphs(result.graph):
        _convert(graph)
    used = {node.op_type for graph in all_graphs(result.graph) for node in graph.node}
    wanted = sorted(used & _DEFINED)
    if wanted:
        result = native.inline_functions(result, wanted)
        for graph in all_graphs(result.graph):
            _convert(graph)
    types = _types(result)
    for graph in all_graphs(result.graph):
        _write_out(graph, types)
    missing = {each.output: each.op for each in unsupported_kernels(result, "cpu")}
    types = _types(result)
    for graph in all_graphs(result.graph):
        _between_casts(graph, missing, types)
    return result, tuple(missing.values())


def _types(model: onnx.ModelProto) -> dict[str, TensorType]:
    found: dict[str, TensorType] = {}
    inferred = run_inference(without_weights(model, statements=True))
    for graph in all_graphs(inferred.graph):
        found |= stated_types(graph)
    return found


# -- types -----------------------------------------------------------------------------------------


def _convert(graph: onnx.GraphProto) -> None:
    """Let a graph or body be stated in float64, in place."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in FLOATS:
            value.type.tensor_type.elem_type = _DOUBLE
    for tensor in graph.initializer:
        _widen(tensor)
    for node in graph.node:
        if is_standard(node.domain) and node.op_type == "ConstantOfShape" and not node.attribute:
            zero = numpy_helper.from_array(np.zeros(1))
            node.attribute.append(helper.make_attribute("value", zero))
        for attribute in node.attribute:
            _widen_attribute(node, attribute)


def _widen_attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
    if attribute.type == onnx.AttributeProto.TENSOR:
        _widen(attribute.t)
    elif attribute.name in _TYPE_ATTRIBUTES and attribute.i in FLOATS:
        attribute.i = _DOUBLE
    elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        given = helper.get_attribute_value(attribute)
        content = numpy_helper.from_array(np.asarray(given, np.float64))
        attribute.CopyFrom(helper.make_attribute("value", content))


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in FLOATS and tensor.data_type != _DOUBLE:
        content = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(content, tensor.name))


def _between_casts(
    graph: onnx.GraphProto, missing: Mapping[str, str], types: Mapping[str, TensorType]
) -> None:
    """Let nodes without a kernel, by their first outputs, compute in float32."""
    made: list[onnx.NodeProto] = []
    for node in graph.node:
        if not node.output or node.output[0] not in missing:
            made.append(node)
            continue
        stem = f"{node.output[0]}/single"
        behind = []
        for k, name in enumerate(node.input):
            if types.get(name, UNKNOWN).dtype == _DOUBLE:
                node.input[k] = f"{stem}/{k}"
                made.append(helper.make_node("Cast", [name], [node.input[k]], to=_FLOAT))
        for k, name in enumerate(node.output):
            if types.get(name, UNKNOWN).dtype == _DOUBLE:
                node.output[k] = f"{stem}/of/{k}"
                behind.append(helper.make_node("Cast", [node.output[k]], [name], to=_DOUBLE))
        made += [node, *behind]
    replace_nodes(graph, made)


# -- operators, written out ------------------------------------------------------------------------


def _write_out(graph: onnx.GraphProto, types: Mapping[str, TensorType]) -> None:
    """Replace operators whose definition is written here, in place."""
    made: list[onnx.NodeProto] = []
    for node in graph.node:
        written = None
        if is_standard(node.domain) and node.op_type in _WRITTEN:
            sizes = [types.get(name, UNKNOWN).sizes for name in node.input[:2]]
            written = _WRITTEN[node.op_type](_Writer(node), sizes)
        made += [node] if written is None else written
    replace_nodes(graph, made)


class _Writer:
    """New nodes in place of one; methods give None where they do not write it."""

    def __init__(self, node: onnx.NodeProto) -> None:
        self.node = node
        self.given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        self.nodes: list[onnx.NodeProto] = []

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node; its output."""
        name = f"{self.node.output[0]}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def const(self, content: Any) -> str:
        """Float64 numbers; int64 ones out of ``int``, a list or an array of those."""
        whole = isinstance(content, int | list) or np.asarray(content).dtype.kind == "i"
        array = np.asarray(content, np.int64 if whole else np.float64)
        return self.op("Constant", value=numpy_helper.from_array(array))

    def reshape(self, x: str, shape: list[int]) -> str:
        """``x`` in another shape."""
        return self.op("Reshape", x, self.const(shape))

    def sum(self, terms: Iterable[str]) -> str:
        """The sum of some tensors."""
        return reduce(lambda total, term: self.op("Add", total, term), terms)

    def gathered(self, image: Sequence[int], places: Places) -> str:
        """(batch, channels, taps, windows): what the windows meet of the first input."""
        shape = [*image[:2], math.prod(image[2:])]
        flat = self.op("Pad", self.reshape(self.node.input[0], shape), self.const([0] * 5 + [1]))
        rank = places.ndim // 2
        taps = places.reshape(math.prod(places.shape[:rank]), -1).transpose()
        return self.op("Gather", flat, self.const(taps), axis=2)

    def finish(self, name: str, bias: int = 0) -> list[onnx.NodeProto]:
        """All nodes, the last of which makes the output; with a bias along axis 1, which has so
        many axes behind it."""
        if bias and len(self.node.input) > 2 and self.node.input[2]:
            column = self.reshape(self.node.input[2], [-1, *[1] * bias])
            name = self.op("Add", name, column)
        self.nodes.append(helper.make_node("Identity", [name], list(self.node.output[:1])))
        return self.nodes

    def erf(self, _: Sizes) -> list[onnx.NodeProto] | None:
        """2x/√π · ∫ exp(-x²s²) ds from 0 to 1, by Gauss and Legendre's rule: it and its
        derivative to 3e-10."""
        points, weights = np.polynomial.legendre.leggauss(_ERF_POINTS)
        x = self.op("Clip", self.node.input[0], self.const(-_ERF_RANGE), self.const(_ERF_RANGE))
        square = self.op("Mul", x, x)
        powers = (
            self.op("Exp", self.op("Mul", square, self.const(-(p**2)))) for p in (points + 1) / 2
        )
        shares = map(self.const, weights / math.sqrt(math.pi))
        total = self.sum(self.op("Mul", *pair) for pair in zip(powers, shares, strict=True))
        return self.finish(self.op("Mul", x, total))

    def global_average(self, sizes: Sizes) -> list[onnx.NodeProto] | None:
        """A sum over a number of elements."""
        shape = sizes[0]
        if shape is None:
            return None
        axes = list(range(2, len(shape)))
        total = self.op("ReduceSum", self.node.input[0], self.const(axes))
        return self.finish(self.op("Mul", total, self.const(1 / math.prod(shape[2:]))))

    def global_maximum(self, sizes: Sizes) -> list[onnx.NodeProto] | None:
        """The maximum of a window as large as the image, which has a kernel; the gradient compares
        with it, so that rounding would leave no element to be the largest."""
        shape = sizes[0]
        if shape is None or not 3 <= len(shape) <= _MOST_POOLED:
            return None
        return self.finish(self.op("MaxPool", self.node.input[0], kernel_shape=list(shape[2:])))

    def average(self, sizes: Sizes) -> list[onnx.NodeProto] | None:
        """The sum of the elements of each window, over how many there are."""
        image, kernel = sizes[0], self.given["kernel_shape"]
        if image is None or self.given.get("ceil_mode") or math.prod(kernel) > _MOST_TAPS:
            return None
        places = _windows(self.given, _padded(self.given, image[2:], kernel), kernel)
        counts = list(places.shape[: len(kernel)])
        inside = places >= (-np.inf if self.given.get("count_include_pad") else 0)
        shares = 1 / inside.reshape(math.prod(counts), -1).sum(1)
        total = self.op("ReduceSum", self.gathered(image, places), self.const([2]), keepdims=0)
        mean = self.op("Mul", total, self.const(shares))
        return self.finish(self.reshape(mean, [*image[:2], *counts]))

    def convolution(self, sizes: Sizes) -> list[onnx.NodeProto] | None:
        """A product with what every window meets."""
        image, kernel = self._sizes(sizes)
        if not image:
            return None
        places = _windows(self.given, _padded(self.given, image[2:], kernel[2:]), kernel[2:])
        group = self.given.get("group", 1)
        weight = self.reshape(self.node.input[1], [group, kernel[0] // group, -1])
        return self._product(image, places, weight, kernel[0])

    def transposed(self, sizes: Sizes) -> list[onnx.NodeProto] | None:
        """The convolution with the kernel back to front of an image with zeros between elements."""
        image, kernel = self._sizes(sizes)
        stated = "output_shape" in self.given
        if not image or stated or self.given.get("auto_pad", b"NOTSET") != b"NOTSET":
            return None
        rank, group = len(image) - 2, self.given.get("group", 1)
        strides, apart = (self.given.get(n, [1] * rank) for n in ("strides", "dilations"))
        further = self.given.get("output_padding", [0] * rank)
        pads = self.given.get("pads", [0] * 2 * rank)
        spans = [(size - 1) * step for size, step in zip(kernel[2:], apart, strict=True)]
        whole = [(size - 1) * step + 1 for size, step in zip(image[2:], strides, strict=True)]
        spread = np.full(whole, _ZERO)
        spread[tuple(slice(None, None, step) for step in strides)] = _places(image[2:])
        before = [span - cut for span, cut in zip(spans, pads[:rank], strict=True)]
        behind = [s - p + f for s, p, f in zip(spans, pads[rank:], further, strict=True)]
        places = _windows({"dilations": apart}, _around(spread, before, behind), kernel[2:])
        places = np.flip(places, tuple(range(rank, 2 * rank)))
        split = [group, kernel[0] // group, kernel[1], math.prod(kernel[2:])]
        weight = self.op("Transpose", self.reshape(self.node.input[1], split), perm=[0, 2, 1, 3])
        weight = self.reshape(weight, [group, kernel[1], -1])
        return self._product(image, places, weight, group * kernel[1])

    def _product(
        self, image: Sequence[int], places: Places, weight: str, made: int
    ) -> list[onnx.NodeProto]:
        """Products with the matrix of each group: (groups, channels made of it, channels read and
        taps); ``made`` are the channels of all."""
        counts = list(places.shape[: places.ndim // 2])
        group = self.given.get("group", 1)
        met = self.reshape(self.gathered(image, places), [image[0], group, -1, math.prod(counts)])
        found = self.reshape(self.op("MatMul", weight, met), [image[0], made, *counts])
        return self.finish(found, len(counts))

    def _sizes(self, sizes: Sizes) -> tuple[Sequence[int], Sequence[int]]:
        """Of image and kernel; nothing where they are not known, or are many or none."""
        image, kernel = sizes[:2]
        if image is None or kernel is None or len(image) < 3 or 0 in (*image, *kernel):
            return (), ()
        return ((), ()) if math.prod(kernel[2:]) > _MOST_TAPS else (image, kernel)


# -- places of elements in an image, by its spatial axes -------------------------------------------


def _places(sizes: Sequence[int]) -> Places:
    """All elements, in order."""
    return np.arange(math.prod(sizes)).reshape(sizes)


def _around(places: Places, before: Sequence[int], behind: Sequence[int]) -> Places:
    """With zeros around, or less of it where that is less than none."""
    pads = list(zip(before, behind, strict=True))
    wide = np.pad(places, [(max(b, 0), max(e, 0)) for b, e in pads], constant_values=_ZERO)
    return wide[
        tuple(slice(max(-b, 0), wide.shape[k] + min(e, 0)) for k, (b, e) in enumerate(pads))
    ]


def _windows(given: Mapping[str, Any], image: Places, kernel: Sequence[int]) -> Places:
    """What the windows of a kernel over an image meet: an axis for every spatial one, then those
    of the kernel."""
    rank = len(kernel)
    strides, apart = (given.get(name, [1] * rank) for name in ("strides", "dilations"))
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, apart, strict=True)]
    every = tuple(slice(None, None, step) for step in (*strides, *apart))
    return np.lib.stride_tricks.sliding_window_view(image, spans)[every]


def _padded(given: Mapping[str, Any], sizes: Sequence[int], kernel: Sequence[int]) -> Places:
    """An image as a node pads it."""
    rank, auto = len(sizes), given.get("auto_pad", b"NOTSET").decode()
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        pads = list(given.get("pads", [0] * 2 * rank)) if auto != "VALID" else [0] * 2 * rank
        return _around(_places(sizes), pads[:rank], pads[rank:])
    strides, apart = (given.get(name, [1] * rank) for name in ("strides", "dilations"))
    steps = zip(sizes, kernel, strides, apart, strict=True)
    whole = [max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0) for n, k, s, d in steps]
    less, more = [n // 2 for n in whole], [n - n // 2 for n in whole]
    return _around(_places(sizes), *((less, more) if auto == "SAME_UPPER" else (more, less)))


_WRITTEN: Mapping[str, Callable[[_Writer, Sizes], list[onnx.NodeProto] | None]] = {
    "Erf": _Writer.erf,
    "GlobalAveragePool": _Writer.global_average,
    "GlobalMaxPool": _Writer.global_maximum,
    "AveragePool": _Writer.average,
    "Conv": _Writer.convolution,
    "ConvTranspose": _Writer.transposed,
}
