"""Masks that were drawn, kept eight elements to a byte: a choice that the planner has.

The mask of a Dropout is random, so it is never drawn twice, and stays from the forward to the
backward part with one byte an element. Its eighths, of elements that are 0 or 1, are added up with
weights 1, 2, 4, ..., 128 right behind the node that draws it; before the backward part reads it,
the wanted bit is moved to the top by a multiplication (a byte overflows) and compared. Every step
is exact arithmetic on bytes, of operators that the runtime has kernels for: of bytes, CUDA has none
that shift, mask or compare, so there the top bit is divided out and cast. The law that the proof
knows it by: :mod:`memplan.equivalence.packed`.

Gist (Jain et al., ISCA 2018, section 4) packs masks of activations so. Those are compared out of
something again at less cost; what is drawn is not.
"""

from __future__ import annotations

import math

import numpy as np

from memplan.ir.graph import Graph, Tensor, TensorKind
from memplan.ops.book import RANDOM_OPS
from memplan.planning.forms.dormant import Dormant, Writer
from memplan.shapes.tensor_type import TensorType
from memplan.solver.problem import Form

PACKED = "packed"
"""The kind of these forms."""
OLDEST_OPSET = 14
"""Of Add and Mul on bytes."""

_UINT8, _BOOL = 2, 9
_BITS = 8
_TOP = 128
_SMALLEST_BYTES = 4096  # below that there is nothing to save


def add_packs(builder: Dormant) -> None:
    """Let every mask that was drawn be packed, where its elements fill whole bytes."""
    graph = builder.graph
    captured = {tensor for node in graph.nodes for tensor in node.captured}
    for tensor in graph.tensors:
        if tensor.id not in captured and _may_be_packed(graph, tensor):
            _add(Writer(builder, f"{tensor.name}/pack"), tensor)


def _may_be_packed(graph: Graph, tensor: Tensor) -> bool:
    """Whether a tensor is a mask that nothing makes again, and that is wanted later."""
    drawn = tensor.dtype == _BOOL and tensor.kind is TensorKind.COMPUTED and tensor.counted
    if not drawn or tensor.is_output or not tensor.readers or not tensor.static:
        return False
    if tensor.nbytes < _SMALLEST_BYTES or math.prod(tensor.shape) % _BITS:
        return False
    maker = graph.nodes[tensor.producer]
    # A part of a mask, as chunks read them, is cut again out of the whole, which may be packed.
    sources = [t.producer for t in map(graph.tensors.__getitem__, maker.reads) if t.dtype != _BOOL]
    return any(graph.nodes[n].key in RANDOM_OPS for n in (maker.id, *sources) if n >= 0)


def _add(writer: Writer, mask: Tensor) -> None:
    """The nodes that pack a mask, and those that make it of its packed form."""
    builder, first = writer.builder, len(writer.builder.nodes)
    rows, columns = _BITS, math.prod(mask.shape) // _BITS
    sizes = writer.constant(np.array([rows, columns], np.int64))
    eighths = writer.add("Reshape", (mask.id, sizes), TensorType(_BOOL, (rows, columns)))
    packed = writer.add("Cast", (eighths,), TensorType(_UINT8, (rows, columns)), to=_UINT8)
    while rows > 1:
        rows //= 2
        half = TensorType(_UINT8, (rows, columns))
        halves = writer.constant(np.array([rows, rows], np.int64))
        low, high = writer.add_parts("Split", (packed, halves), (half, half), axis=0)
        above = writer.add("Mul", (high, _byte(writer, 1 << rows)), half)
        packed = writer.add("Add", (above, low), half)
    encode = tuple(range(first, len(builder.nodes)))
    builder.forms.append(Form(PACKED, mask.id, encode, _unpack(writer, packed, mask)))


def _unpack(writer: Writer, packed: int, mask: Tensor) -> int:
    """The nodes that make a mask of its packed form; the last one."""
    weights = writer.constant(np.array([[_TOP >> bit] for bit in range(_BITS)], np.uint8))
    columns = math.prod(mask.shape) // _BITS
    shifted = writer.add("Mul", (packed, weights), TensorType(_UINT8, (_BITS, columns)))
    shape, whole = writer.constant(np.array(mask.shape, np.int64)), TensorType(_UINT8, mask.shape)
    bits, top = writer.add("Reshape", (shifted, shape), whole), _byte(writer, _TOP)
    if writer.builder.provider == "cpu":
        return writer.make("GreaterOrEqual", (bits, top), mask.id)
    return writer.make("Cast", (writer.add("Div", (bits, top), whole),), mask.id, to=_BOOL)


def _byte(writer: Writer, value: int) -> int:
    return writer.constant(np.array(value, np.uint8))
