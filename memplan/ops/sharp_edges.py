"""Nodes that ONNX Runtime computes wrongly: known fusions, and one kernel that races.

Measured with 1.31.1 by ``tools/probe_ort/fusions.py`` (7,900 small graphs at every level of
optimization); ``tests/unit/ops/test_sharp_edges.py`` holds every line against the installed
runtime.

1. **MatmulTransposeFusion** (level EXTENDED): ``MatMul`` of a transposed matrix and a vector. The
   fused node takes the vector for another matrix. With the vector in front it is right. The
   Transpose is found through what the runtime removes or moves out of the way: Identity, Cast,
   Dropout, views, scalar factors, Concat.
2. **Pad_Fusion** (level BASIC): ``Pad`` of zeros and ``MaxPool``. The pool takes its own padding
   for -inf, so negative maxima at the border differ, unless nothing negative comes in. With
   ``ceil_mode`` the fused pool, ``AveragePool`` too, has another shape, and with as much padding as
   the kernel is wide it is refused.
3. ``FusedMatMul`` with ``transA`` and a vector, which is what 1. leaves behind in a file.
4. ``ScatterND`` with a reduction loses updates on the CPU where an index occurs twice and several
   threads run.

GemmTransposeFusion with an identity permutation (microsoft/onnxruntime#32228) is right in 1.31.0
and 1.31.1. A tuned session fuses nothing, so 1 and 2 are those of plain sessions and of
optimization offline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import onnx
from onnx import helper, numpy_helper

from memplan.proto.nodes import is_constant, is_standard, reads_of, subgraphs
from memplan.shapes.infer import (
    constant_type,
    declared_values,
    has_small_content,
    run_inference,
    without_weights,
)
from memplan.shapes.tensor_type import Types, read_type
from memplan.units import counted

_NAMED = 3  # nodes that a sentence names
# What the runtime removes, or moves a Transpose through, on its way to a product.
_THROUGH = frozenset(
    {"Identity", "Cast", "Dropout", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Concat"}
    | {"Split", "Slice", "Mul", "Div", "Neg", "Flatten", "Expand", "Pad", "Tile", "Gather"}
    | {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"}
    | {"ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp", "ArgMax", "ArgMin"}
)
_NOT_NEGATIVE = frozenset(
    {"Relu", "Sigmoid", "HardSigmoid", "Softmax", "Softplus", "Abs", "Exp", "Sqrt", "ReduceL2"}
)
_KEEPS_SIGN = frozenset(
    {"Identity", "Dropout", "Cast", "Reshape", "Transpose", "MaxPool", "AveragePool", "Concat"}
)


class Edge(StrEnum):
    """What is wrong, as numbered at the head."""

    VECTOR = "vector"
    POOL = "pool"
    FUSED = "fused"
    SCATTER = "scatter"


_TEXT = {
    Edge.VECTOR: (
        "{nodes} of a transposed matrix and a vector: ONNX Runtime's MatmulTransposeFusion, from "
        "level EXTENDED on, may compute it wrongly; tuned sessions are right; make the vector a "
        "column ([n, 1]) or disable that optimizer"
    ),
    Edge.POOL: (
        "{nodes} behind a Pad of zeros: ONNX Runtime's Pad_Fusion, from level BASIC on, takes the "
        "zeros for -inf or counts the windows otherwise; tuned sessions are right; give Pad its "
        "'axes' (opset 18) or disable that optimizer"
    ),
    Edge.FUSED: (
        "{nodes} with transA and a vector is computed wrongly by ONNX Runtime: a wrong fusion is "
        "in the file; make it again from the original"
    ),
    Edge.SCATTER: (
        "{nodes} with a reduction: on the CPU, ONNX Runtime loses updates where an index occurs "
        "twice and several threads run; use one thread (intra_op_num_threads=1)"
    ),
}
_OPTIMIZERS = {Edge.VECTOR: "MatmulTransposeFusion", Edge.POOL: "Pad_Fusion"}


@dataclass(frozen=True, slots=True)
class SharpEdge:
    """A node that may be computed wrongly; ``output`` is its first output."""

    edge: Edge
    op: str
    node: str
    output: str

    @property
    def optimizer(self) -> str:
        """The runtime's optimizer that is wrong, by the name that disables it; empty: a kernel."""
        return _OPTIMIZERS.get(self.edge, "")


def sharp_edges(model: onnx.ModelProto, types: Types | None = None) -> tuple[SharpEdge, ...]:
    """The nodes of a model, bodies included, that ONNX Runtime may compute wrongly.

    Args:
        model: any model.
        types: of its tensors, where they are known; else they are inferred where that matters.
    """
    search = _Search(model, types or {})
    found = tuple(search.edges())
    if search.unsure:
        inferred = run_inference(without_weights(model, statements=True))
        found = tuple(_Search(inferred, types or {}).edges())
    return found


def wrong_optimizers(edges: Sequence[SharpEdge]) -> tuple[str, ...]:
    """The optimizers to leave out for a graph with these nodes."""
    return tuple(sorted({edge.optimizer for edge in edges if edge.optimizer}))


def edge_notes(edges: Sequence[SharpEdge], provider: str = "cpu") -> tuple[str, ...]:
    """What to tell of them, a sentence per kind."""
    notes = []
    for edge in Edge:
        alike = [found for found in edges if found.edge is edge]
        if alike and not (edge is Edge.SCATTER and provider != "cpu"):
            notes.append(_TEXT[edge].format(nodes=_listed(alike)))
    return tuple(notes)


def disabled_notes(edges: Sequence[SharpEdge]) -> tuple[str, ...]:
    """What was left out of an optimization because of them."""
    notes = []
    for name in wrong_optimizers(edges):
        alike = [edge for edge in edges if edge.optimizer == name]
        notes.append(f"fused without {name}, which ONNX Runtime gets wrong at {_listed(alike)}")
    return tuple(notes)


def _listed(edges: Sequence[SharpEdge]) -> str:
    """Nodes of one operator: ``MatMul 'a'``, ``5 MatMuls ('a', 'b', 'c' and 2 more)``."""
    names = ", ".join(f"'{edge.node or edge.output}'" for edge in edges[:_NAMED])
    if len(edges) == 1:
        return f"{edges[0].op} {names}"
    more = f" and {len(edges) - _NAMED} more" if len(edges) > _NAMED else ""
    return f"{counted(len(edges), edges[0].op)} ({names}{more})"


class _Search:
    """A walk over the graphs of a model. ``unsure``: a rank that matters was not known."""

    def __init__(self, model: onnx.ModelProto, types: Types) -> None:
        self.model = model
        self.unsure = False
        self.ranks = {name: len(t.shape) for name, t in types.items() if t.shape is not None}
        self.makers: dict[str, onnx.NodeProto] = {}
        self.constants: dict[str, onnx.TensorProto] = {}

    def edges(self) -> Iterator[SharpEdge]:
        """All of them, in file order."""
        yield from self._of(self.model.graph)

    def _of(self, graph: onnx.GraphProto) -> Iterator[SharpEdge]:
        for value in declared_values(graph):
            shape = read_type(value.type).shape
            if shape is not None:
                self.ranks.setdefault(value.name, len(shape))
        for tensor in graph.initializer:
            self.ranks.setdefault(tensor.name, len(tensor.dims))
            if has_small_content(tensor):
                self.constants[tensor.name] = tensor
        for node in graph.node:
            self.makers.update((name, node) for name in node.output if name)
            if is_constant(node):
                self._learn(node)
        padded = any(node.op_type == "Pad" for node in graph.node)
        read = _times_read(graph) if padded else {}
        for node in graph.node:
            edge = self._edge(node, read)
            if edge is not None:
                yield SharpEdge(edge, node.op_type, node.name, node.output[0])
            for body in subgraphs(node):
                yield from self._of(body)

    def _learn(self, constant: onnx.NodeProto) -> None:
        found = constant_type(constant)
        if found is not None and found.shape is not None:
            self.ranks.setdefault(constant.output[0], len(found.shape))
        if constant.attribute[0].name == "value" and has_small_content(constant.attribute[0].t):
            self.constants[constant.output[0]] = constant.attribute[0].t

    def _edge(self, node: onnx.NodeProto, read: Mapping[str, int]) -> Edge | None:
        if node.op_type == "FusedMatMul":
            return Edge.FUSED if _number(node, "transA") and self._by_vector(node) else None
        if not is_standard(node.domain):
            return None
        if node.op_type == "MatMul":
            return Edge.VECTOR if self._is_behind_transpose(node) else None
        if node.op_type in ("MaxPool", "AveragePool"):
            return Edge.POOL if self._is_behind_padding(node, read) else None
        if node.op_type == "ScatterND":
            return Edge.SCATTER if _text(node, "reduction") not in ("", "none") else None
        return None

    def _by_vector(self, node: onnx.NodeProto) -> bool:
        rank = self.ranks.get(node.input[1])
        self.unsure = self.unsure or rank is None
        return rank == 1

    def _is_behind_transpose(self, node: onnx.NodeProto) -> bool:
        """1. of the head."""
        seen: set[str] = set()
        names = [node.input[0]]
        while names:
            name = names.pop()
            maker = self.makers.get(name)
            if name in seen or maker is None or maker.op_type not in _THROUGH:
                continue
            seen.add(name)
            if maker.op_type == "Transpose":
                return self._by_vector(node)
            names.extend(maker.input)
        return False

    def _is_behind_padding(self, node: onnx.NodeProto, read: Mapping[str, int]) -> bool:
        """2. of the head."""
        name = node.input[0]
        pad = self.makers.get(name)
        while pad is not None and pad.op_type == "Identity" and read.get(name) == 1:
            name = pad.input[0]
            pad = self.makers.get(name)
        if pad is None or pad.op_type != "Pad" or read.get(name) != 1 or len(node.output) > 1:
            return False
        pads = self._pads(pad)
        if pads is None or _text(node, "auto_pad") not in ("", "NOTSET"):
            return False
        if _number(node, "ceil_mode"):
            return True
        kernel = _list(node, "kernel_shape")
        own = _list(node, "pads") or [0] * 2 * len(kernel)
        sides = [*pads[2 : 2 + len(kernel)], *pads[-len(kernel) :]]
        wide = any(a + b >= k for a, b, k in zip(sides, own, kernel * 2, strict=False))
        return wide or (node.op_type == "MaxPool" and not self._is_not_negative(pad.input[0]))

    def _pads(self, pad: onnx.NodeProto) -> list[int] | None:
        """The widths that a Pad of zeros adds to a batch of images; None where the runtime leaves
        it as it is."""
        if _text(pad, "mode") not in ("", "constant") or (len(pad.input) > 3 and pad.input[3]):
            return None
        if len(pad.input) > 2 and pad.input[2]:
            value = self.constants.get(pad.input[2])
            if value is None or numpy_helper.to_array(value).any():
                return None
        if len(pad.input) < 2:  # before opset 11
            return None if _float(pad, "value") else _list(pad, "pads")
        widths = self.constants.get(pad.input[1])
        if widths is None:
            return None
        pads = [int(width) for width in numpy_helper.to_array(widths)]
        batch = len(pads) // 2
        images = [*pads[2:batch], *pads[batch + 2 :]]
        apart = [*pads[:2], *pads[batch : batch + 2]]
        return pads if min(images, default=-1) >= 0 and not any(apart) else None

    def _is_not_negative(self, name: str) -> bool:
        """Whether a tensor cannot have a negative element, as far as its makers tell."""
        names, seen = [name], set[str]()
        while names:
            name = names.pop()
            maker = self.makers.get(name)
            if maker is None:
                return False
            if name in seen or maker.op_type in _NOT_NEGATIVE:
                continue
            seen.add(name)
            if maker.op_type == "Clip" and len(maker.input) > 1:
                low = self.constants.get(maker.input[1])
                if low is None or float(numpy_helper.to_array(low)) < 0:
                    return False
            elif maker.op_type in _KEEPS_SIGN:
                names.extend(maker.input if maker.op_type == "Concat" else maker.input[:1])
            else:
                return False
        return True


def _times_read(graph: onnx.GraphProto) -> Counter[str]:
    """How many nodes read a tensor, one more for a graph output."""
    read = Counter(value.name for value in graph.output)
    for node in graph.node:
        read.update(set(reads_of(node)))
    return read


def _attribute(node: onnx.NodeProto, name: str) -> object:
    found = next((item for item in node.attribute if item.name == name), None)
    return None if found is None or found.ref_attr_name else helper.get_attribute_value(found)


def _number(node: onnx.NodeProto, name: str) -> int:
    value = _attribute(node, name)
    return value if isinstance(value, int) else 0


def _float(node: onnx.NodeProto, name: str) -> float:
    value = _attribute(node, name)
    return value if isinstance(value, float) else 0.0


def _list(node: onnx.NodeProto, name: str) -> list[int]:
    value = _attribute(node, name)
    return [int(item) for item in value] if isinstance(value, Sequence) else []


def _text(node: onnx.NodeProto, name: str) -> str:
    value = _attribute(node, name)
    return value.decode() if isinstance(value, bytes) else ""
