"""Nodes that ONNX Runtime computes wrongly: known fusions, and one kernel that races.

Measured with 1.31.1 on 7,900 small graphs at every level of optimization;
``tests/unit/ops/test_sharp_edges.py`` holds every line against the installed runtime.

1. **MatmulTransposeFusion** (level EXTENDED): ``MatMul`` of a transposed matrix and a vector. The
   fused node takes the vector for another matrix. With the vector in front it is right. The
   Transpose is found through what the runtime removes or moves out of the way: Identity, Cast,
   Dropout, views, scalar factors, Concat.
2. **Pad_Fusion** (level BASIC): ``Pad`` of zeros and ``MaxPool``. The pool takes its own padding
   for -inf, so negative maxima at the border differ, unless nothing negative comes in. With
   ``ceil_mode`` the fused pool, ``AveragePool`` too, has another shape. How much is padded, with
   what and who else reads it is not looked at. (With as much padding as the kernel is wide no
   session opens, and says so.)
3. ``FusedMatMul`` with ``transA`` and a vector, which is what 1. leaves behind in a file.
4. ``ScatterND`` with a reduction loses updates on the CPU where an index occurs twice and several
   threads run.

GemmTransposeFusion with an identity permutation (microsoft/onnxruntime#32228) is right in 1.31.0
and 1.31.1. A tuned session fuses nothing, so 1 and 2 are those of plain sessions and of
optimization offline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import onnx
from onnx import helper

from memplan.proto.bare import without_weights
from memplan.proto.nodes import is_constant, operator_key, subgraphs
from memplan.shapes.infer import constant_type, declared_values, run_inference
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
_NOT_NEGATIVE = frozenset({"Relu", "Sigmoid", "Softmax", "Softplus", "Abs", "Exp"})


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

    def edges(self) -> Iterator[SharpEdge]:
        """All of them, in file order."""
        yield from self._of(self.model.graph)

    def _of(self, graph: onnx.GraphProto) -> Iterator[SharpEdge]:
        ranks, makers = self.ranks, self.makers
        for tensor in graph.initializer:
            ranks.setdefault(tensor.name, len(tensor.dims))
        for value in declared_values(graph):
            if value.name not in ranks and (shape := read_type(value.type).shape) is not None:
                ranks[value.name] = len(shape)
        for node in graph.node:
            makers.update((name, node) for name in node.output if name)
            found = constant_type(node) if is_constant(node) else None
            if found is not None and found.shape is not None:
                ranks.setdefault(node.output[0], len(found.shape))
        for node in graph.node:
            edge = self._edge(node)
            if edge is not None:
                yield SharpEdge(edge, node.op_type, node.name, node.output[0])
            for body in subgraphs(node):
                yield from self._of(body)

    def _edge(self, node: onnx.NodeProto) -> Edge | None:
        match operator_key(node):
            case "com.microsoft:FusedMatMul" if _attribute(node, "transA"):
                return Edge.FUSED if self._by_vector(node) else None
            case ":MatMul" if self._is_behind_transpose(node):
                return Edge.VECTOR if self._by_vector(node) else None
            case ":MaxPool" | ":AveragePool" if self._is_behind_padding(node):
                return Edge.POOL
            case ":ScatterND" if _attribute(node, "reduction") not in (None, b"none"):
                return Edge.SCATTER
        return None

    def _by_vector(self, node: onnx.NodeProto) -> bool:
        rank = self.ranks.get(node.input[1]) if len(node.input) > 1 else 0
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
            if maker.op_type == "Transpose":
                return True
            seen.add(name)
            names.extend(maker.input)
        return False

    def _is_behind_padding(self, node: onnx.NodeProto) -> bool:
        """2. of the head."""
        pad = self.makers.get(node.input[0])
        while pad is not None and operator_key(pad) == ":Identity":
            pad = self.makers.get(pad.input[0])
        if pad is None or operator_key(pad) != ":Pad" or len(node.output) > 1:
            return False
        if _attribute(pad, "mode") not in (None, b"constant") or any(pad.input[3:]):
            return False
        if _attribute(node, "ceil_mode"):
            return True
        before = self.makers.get(pad.input[0])
        harmless = before is not None and before.op_type in _NOT_NEGATIVE
        return node.op_type == "MaxPool" and not harmless


def _attribute(node: onnx.NodeProto, name: str) -> object:
    found = next((item for item in node.attribute if item.name == name), None)
    return None if found is None or found.ref_attr_name else helper.get_attribute_value(found)
