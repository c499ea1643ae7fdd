"""A graph in float64, so that differences of its results tell derivatives to nine digits.

Every float type becomes float64. ONNX Runtime has no float64 kernel for some operators
(:mod:`memplan.ops.float_types`): those that ONNX defines by others are inlined, ``Erf``
and convolutions are written out, and what is left computes in float32 between Casts.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
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
        """Float64 numbers; an int64 number or vector out of ``int``."""
        whole = isinstance(content, int | list)
        array = np.asarray(content, np.int64 if whole else np.float64)
        return self.op("Constant", value=numpy_helper.from_array(array))

    def reshape(self, x: str, shape: list[int]) -> str:
        """``x`` in another shape."""
        return self.op("Reshape", x, self.const(shape))

    def pad(self, x: str, before: list[int], behind: list[int]) -> str:
        """Zeros around the last axes."""
        lead = [0] * 2
        return self.op("Pad", x, self.const([*lead, *before, *lead, *behind]))

    def slice(self, x: str, begin: list[int], end: list[int], first: int, step: list[int]) -> str:
        """A slice along axes from ``first`` on."""
        axes = list(range(first, first + len(begin)))
        return self.op("Slice", x, *map(self.const, (begin, end, axes, step)))

    def sum(self, terms: Iterable[str]) -> str:
        """The sum of some tensors."""
        return reduce(lambda total, term: self.op("Add", total, term), terms)

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

    def average(self, sizes: Sizes) -> list[onnx.NodeProto] | None:
        """The sum of the elements of each window, over how many there are."""
        shape, kernel = sizes[0], self.given["kernel_shape"]
        if shape is None or self.given.get("ceil_mode") or math.prod(kernel) > _MOST_TAPS:
            return None
        windows = _Windows.of(self.given, shape[2:], kernel)
        inside = np.zeros(
            [size + b + e for size, b, e in zip(shape[2:], *windows.pads, strict=True)]
        )
        within = tuple(
            slice(b, b + size) for size, b in zip(shape[2:], windows.pads[0], strict=True)
        )
        inside[within] = 1
        if self.given.get("count_include_pad"):
            inside[:] = 1
        count = sum(inside[windows.places(tap)] for tap in windows.taps)
        x = self.pad(self.node.input[0], *windows.pads)
        total = self.sum(self.slice(x, *windows.bounds(tap)) for tap in windows.taps)
        return self.finish(self.op("Mul", total, self.const(1 / count)))

    def convolution(self, sizes: Sizes) -> list[onnx.NodeProto] | None:
        """A product with every element of the kernel, summed."""
        image, kernel = self._sizes(sizes)
        if not image:
            return None
        group = self.given.get("group", 1)
        windows = _Windows.of(self.given, image[2:], kernel[2:])
        x = self.pad(self.node.input[0], *windows.pads)
        split = [group, kernel[0] // group, kernel[1], len(windows.taps)]
        weight = self.op("Transpose", self.reshape(self.node.input[1], split), perm=[3, 0, 1, 2])
        return self._products(x, weight, windows, [image[0], group, kernel[1], kernel[0]])

    def transposed(self, sizes: Sizes) -> list[onnx.NodeProto] | None:
        """The convolution with the kernel back to front of an image with zeros between elements."""
        image, kernel = self._sizes(sizes)
        if (
            not image
            or "output_shape" in self.given
            or self.given.get("auto_pad", b"NOTSET") != b"NOTSET"
        ):
            return None
        rank, group, spatial = len(image) - 2, self.given.get("group", 1), list(image[2:])
        strides = list(self.given.get("strides", [1] * rank))
        apart = self.given.get("dilations", [1] * rank)
        further = self.given.get("output_padding", [0] * rank)
        pads = list(self.given.get("pads", [0] * 2 * rank))
        spans = [(size - 1) * step for size, step in zip(kernel[2:], apart, strict=True)]
        before = [span - cut for span, cut in zip(spans, pads[:rank], strict=True)]
        behind = [s - p + f for s, p, f in zip(spans, pads[rank:], further, strict=True)]
        x = self.node.input[0]
        if max(strides) > 1:
            x = self.reshape(x, [*image[:2], *(n for size in spatial for n in (size, 1))])
            x = self.pad(x, [0] * 2 * rank, [n for step in strides for n in (0, step - 1)])
            x = self.reshape(x, [*image[:2], *map(operator.mul, spatial, strides)])
            behind = [size - step + 1 for size, step in zip(behind, strides, strict=True)]
        x = self.pad(x, before, behind)
        dense = {"dilations": apart, "pads": [*before, *behind]}
        spread = list(map(operator.mul, spatial, strides))
        windows = _Windows.of(dense, spread, kernel[2:])
        windows.taps.reverse()
        split = [group, kernel[0] // group, kernel[1], len(windows.taps)]
        weight = self.op("Transpose", self.reshape(self.node.input[1], split), perm=[3, 0, 2, 1])
        return self._products(
            x, weight, windows, [image[0], group, kernel[0] // group, group * kernel[1]]
        )

    def _products(
        self, x: str, weight: str, windows: _Windows, sizes: Sequence[int]
    ) -> list[onnx.NodeProto]:
        """The sum over taps of products with a matrix of each group.

        Args:
            x: the padded image.
            weight: (taps, groups, channels made of a group, channels read of a group).
            windows: where the taps are.
            sizes: the batch, groups, channels that a group reads, and channels made in all.
        """
        batch, group, read, made = sizes

        def term(k: int) -> str:
            part = self.slice(x, *windows.bounds(windows.taps[k]))
            part = self.reshape(part, [batch, group, read, -1])
            return self.op("MatMul", self.op("Gather", weight, self.const(k)), part)

        total = self.sum(map(term, range(len(windows.taps))))
        return self.finish(self.reshape(total, [batch, made, *windows.counts]), len(windows.counts))

    def _sizes(self, sizes: Sizes) -> tuple[Sequence[int], Sequence[int]]:
        """Of image and kernel; nothing where they are not known, or are many or none."""
        image, kernel = sizes[:2]
        if image is None or kernel is None or len(image) < 3 or 0 in (*image, *kernel):
            return (), ()
        return ((), ()) if math.prod(kernel[2:]) > _MOST_TAPS else (image, kernel)


@dataclass(frozen=True, slots=True)
class _Windows:
    """Where a kernel is applied, per spatial axis. ``pads``: zeros before and behind."""

    strides: Sequence[int]
    apart: Sequence[int]
    counts: list[int]
    pads: tuple[list[int], list[int]]
    taps: list[tuple[int, ...]]

    @classmethod
    def of(cls, given: Mapping[str, Any], sizes: Sequence[int], kernel: Sequence[int]) -> _Windows:
        """By the attributes of a node."""
        rank = len(sizes)
        strides, apart = (list(given.get(n, [1] * rank)) for n in ("strides", "dilations"))
        spans = [(k - 1) * step + 1 for k, step in zip(kernel, apart, strict=True)]
        pads = _pads(given, sizes, strides, spans)
        whole = [sum(parts) for parts in zip(sizes, *pads, strict=True)]
        counts = [(w - s) // step + 1 for w, s, step in zip(whole, spans, strides, strict=True)]
        return cls(strides, apart, counts, pads, list(itertools.product(*map(range, kernel))))

    def bounds(self, tap: tuple[int, ...]) -> tuple[list[int], list[int], int, list[int]]:
        """The slice that one element of the kernel meets."""
        begin = [k * step for k, step in zip(tap, self.apart, strict=True)]
        ends = [
            b + (count - 1) * step + 1
            for b, count, step in zip(begin, self.counts, self.strides, strict=True)
        ]
        return begin, ends, 2, list(self.strides)

    def places(self, tap: tuple[int, ...]) -> tuple[slice, ...]:
        """The same, of an array of the spatial axes alone."""
        begin, ends, _, steps = self.bounds(tap)
        return tuple(map(slice, begin, ends, steps))


def _pads(
    given: Mapping[str, Any], sizes: Sequence[int], strides: Sequence[int], spans: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Padding before and behind every spatial axis."""
    rank, auto = len(sizes), given.get("auto_pad", b"NOTSET").decode()
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        pads = list(given.get("pads", [0] * 2 * rank)) if auto != "VALID" else [0] * 2 * rank
        return pads[:rank], pads[rank:]
    whole = [
        max((-(-size // step) - 1) * step + span - size, 0)
        for size, step, span in zip(sizes, strides, spans, strict=True)
    ]
    less, more = [n // 2 for n in whole], [n - n // 2 for n in whole]
    return (less, more) if auto == "SAME_UPPER" else (more, less)


_WRITTEN: Mapping[str, Callable[[_Writer, Sizes], list[onnx.NodeProto] | None]] = {
    "Erf": _Writer.erf,
    "GlobalAveragePool": _Writer.global_average,
    "AveragePool": _Writer.average,
    "Conv": _Writer.convolution,
    "ConvTranspose": _Writer.transposed,
}
