"""Masks that were drawn, kept eight elements to a byte: a choice that the planner has.

The mask of a Dropout is random, so it is never drawn twice, and stays from the forward to the
backward part with one byte an element. Its eighths, of elements that are 0 or 1, are added up with
weights 1, 2, 4, ..., 128 right behind the node that draws it; before the backward part reads it,
the wanted bit is moved to the top by a multiplication (a byte overflows) and compared. Every step
is exact arithmetic on bytes, of operators that the runtime has kernels for: of bytes, CUDA has none
that shift, mask or compare, so there the top bit is divided out and cast.

Gist (Jain et al., ISCA 2018, section 4) packs masks of activations so. Those are compared out of
something again at less cost; what is drawn is not.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from memplan.ir.graph import Graph, Tensor, TensorKind
from memplan.ops.book import RANDOM_OPS
from memplan.planning.dormant import PACKED, Array, Dormant
from memplan.proto.opset import default_opset
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.prepare import PreparedModel
from memplan.solver.problem import Form

_UINT8, _BOOL, _INT64 = 2, 9, 7
_BITS = 8
_TOP = 128
_SMALLEST_BYTES = 4096  # below that there is nothing to save
_PARTS_OF = 2
_OLDEST_OPSET = 14  # of Add and Mul on bytes
_Constants = dict[tuple[int, tuple[int, ...], bytes], int]


def may_pack(prepared: PreparedModel) -> bool:
    """Whether masks of a file may be packed: its shapes hold in every run, its operators take
    bytes."""
    exact = not symbolic_dims(prepared.proto) and not prepared.bounded
    return exact and default_opset(prepared.proto) >= _OLDEST_OPSET


def add_packs(builder: Dormant) -> None:
    """Let every mask that was drawn be packed, where its elements fill whole bytes."""
    graph = builder.graph
    captured = {tensor for node in graph.nodes for tensor in node.captured}
    constants: _Constants = {}
    for tensor in graph.tensors:
        if tensor.id not in captured and _may_be_packed(graph, tensor):
            _Pack(builder, tensor, constants).add()


def _may_be_packed(graph: Graph, tensor: Tensor) -> bool:
    """Whether a tensor is a mask that nothing makes again, and that is wanted later."""
    drawn = tensor.dtype == _BOOL and tensor.kind is TensorKind.COMPUTED and tensor.counted
    if not drawn or tensor.is_output or not tensor.readers or not tensor.static:
        return False
    if tensor.nbytes < _SMALLEST_BYTES or math.prod(tensor.shape) % _BITS:
        return False
    maker = graph.nodes[tensor.producer]
    sources = [graph.tensors[t].producer for t in maker.reads]
    return any(graph.nodes[n].key in RANDOM_OPS for n in (maker.id, *sources) if n >= 0)


class _Pack:
    """Writes the nodes that pack one mask, and those that unpack it."""

    def __init__(self, builder: Dormant, mask: Tensor, constants: _Constants) -> None:
        self.builder, self.mask, self.constants = builder, mask, constants
        self.stem = builder.fresh_stem(f"{mask.name}/pack")
        self.columns = math.prod(mask.shape) // _BITS

    def add(self) -> None:
        """All nodes; the last one makes the mask."""
        rows, first = _BITS, len(self.builder.nodes)
        eighths = self._node("Reshape", (self.mask.id, self._sizes(rows)), _BOOL, rows)
        packed = self._node("Cast", (eighths,), _UINT8, rows, to=_UINT8)
        while rows > 1:
            rows //= _PARTS_OF
            low, high = self._halves(packed, rows)
            above = self._node("Mul", (high, self._bytes(1 << rows)), _UINT8, rows)
            packed = self._node("Add", (above, low), _UINT8, rows)
        encode = tuple(range(first, len(self.builder.nodes)))
        self.builder.forms.append(Form(PACKED, self.mask.id, encode, self._unpack(packed)))

    def _unpack(self, packed: int) -> int:
        """The nodes that make the mask of its packed form; the last one."""
        weights = np.array([[_TOP >> bit] for bit in range(_BITS)], np.uint8)
        shifted = self._node("Mul", (packed, self._constant(weights, _UINT8)), _UINT8, _BITS)
        shape = self._constant(np.array(self.mask.shape, np.int64), _INT64)
        whole = self._node("Reshape", (shifted, shape), _UINT8)
        top = self._bytes(_TOP)
        if self.builder.provider == "cpu":
            return self._made("GreaterOrEqual", (whole, top))
        return self._made("Cast", (self._node("Div", (whole, top), _UINT8),), to=_BOOL)

    def _halves(self, rows_of: int, rows: int) -> tuple[int, int]:
        """The first and the second half of ``2 * rows`` rows."""
        low, high = (self._tensor(_UINT8, rows) for _ in range(_PARTS_OF))
        sizes = self._constant(np.array([rows, rows], np.int64), _INT64)
        node = self.builder.add_node(
            self._name(), "Split", (rows_of, sizes), (low, high), {"axis": 0}
        )
        self.builder.makers[low] = self.builder.makers[high] = node
        return low, high

    def _node(
        self, op: str, reads: tuple[int, ...], dtype: int, rows: int = 0, **given: int
    ) -> int:
        """A node with one output, whose id is returned; ``rows`` 0: of the mask's shape."""
        output = self._tensor(dtype, rows)
        self.builder.makers[output] = self.builder.add_node(
            self._name(), op, reads, (output,), dict(given)
        )
        return output

    def _made(self, op: str, reads: tuple[int, ...], **given: int) -> int:
        return self.builder.add_node(self._name(), op, reads, (self.mask.id,), dict(given))

    def _tensor(self, dtype: int, rows: int) -> int:
        shape = (rows, self.columns) if rows else self.mask.shape
        like = replace(
            self.mask, dtype=dtype, shape=shape, nbytes=math.prod(shape), names_seen=None
        )
        place = len(self.builder.tensors)
        name = f"{self.stem}_{place}"
        return self.builder.add_tensor(name, like, TensorKind.COMPUTED, len(self.builder.nodes))

    def _sizes(self, rows: int) -> int:
        return self._constant(np.array([rows, self.columns], np.int64), _INT64)

    def _bytes(self, value: int) -> int:
        return self._constant(np.array(value, np.uint8), _UINT8)

    def _constant(self, value: Array, dtype: int) -> int:
        key = dtype, value.shape, value.tobytes()
        if key not in self.constants:
            like = replace(self.mask, dtype=dtype, names_seen=None)
            name = f"{self.stem}_{len(self.builder.tensors)}"
            self.constants[key] = self.builder.add_constant(name, value, like)
        return self.constants[key]

    def _name(self) -> str:
        return f"{self.stem}_node{len(self.builder.nodes)}"
