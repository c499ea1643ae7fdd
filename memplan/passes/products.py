"""``products``: gradients of weights, with a factor transposed ahead of the product.

``x'·y``, the gradient of a weight, is a product of a transposed first factor. ONNX Runtime's CPU
kernel (MLAS, ``sgemm.cpp``) transposes that anew for every block of columns of the result; a
``Transpose`` before the product does it once. Where the result has more rows than columns, and sums
are long, it is made transposed (``y'·x``) and turned back: the wide side is then that of the
columns.

Measured on ONNX Runtime 1.31.1 (AMD EPYC, Zen 4, CPU seconds of one thread, 256 to 2,048 rows in a
sum): 768 x 3,072 takes 8 to 10% less, 1,536 x 384 from 6 to 12%, 320 x 320 with 2,048 summands 17%;
results of fewer than 320 rows or columns gain little or lose, up to 28%. The bits were the same
wherever the result had more than 64 rows and columns. Narrower ones, and shares of a thread that
narrow, are summed in longer blocks, so the proof grants these products rounding.

A copy takes memory: none is made that raises the peak, and the planner sees those that are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import onnx
from onnx import helper

from memplan.ir.graph import Graph, Node, Tensor
from memplan.ir.graph_facts import Facts
from memplan.ops.book import PRODUCTS
from memplan.passes.change import Change, facts_of, with_most
from memplan.passes.graph_pass import Applied, peak_did_not_rise
from memplan.passes.surgery import ModelEdit
from memplan.shapes.tensor_type import TensorType
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline
from memplan.units import counted

LEAST_SIDE = 320
"""Of the result, in both directions."""
LEAST_SUMMANDS = 256
"""No fewer were measured."""
# Of these, a result with more rows than columns gains as much without being turned.
_FEW_SUMMANDS = 512
_FLOAT = onnx.TensorProto.FLOAT
_TURNED_BATCHES = ("transBatchA", "transBatchB")


@dataclass(frozen=True, slots=True)
class Products:
    """On the CPU, in tuned sessions: plain ones fuse a ``Transpose`` with the product again."""

    name: ClassVar[str] = "products"
    summary: ClassVar[str] = "gradients of weights in their faster form"

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """With as many products in the other form as raise no peak."""
        if timeline.session.provider != "cpu":
            return Applied(model, note="measured on the CPU alone")
        facts = facts_of(model)
        if not facts.exact:
            return Applied(model, note="sizes differ from run to run")
        changes = list(_changes(facts))
        found = with_most(model, timeline, changes, peak_did_not_rise)
        if found is None:
            return Applied(model)
        after, _, made = found
        return Applied(after, f"{counted(made, 'product')} of {len(changes)}")


def _changes(facts: Facts) -> Iterator[Change]:
    """One for each product that has a faster form."""
    graph = facts.graph
    for node in graph.nodes:
        if not _is_slow(graph, node):
            continue
        rows, columns = graph.tensors[node.outputs[0]].shape
        if rows <= columns or graph.tensors[node.inputs[0]].shape[0] <= _FEW_SUMMANDS:
            yield partial(_turn_factor, graph, node)
        elif not node.attributes.get("transB", 0) and not _is_summand(graph, node):
            yield partial(_turn_result, graph, node)


def _is_slow(graph: Graph, node: Node) -> bool:
    """Whether it is a large product of two matrices, the first one transposed."""
    if node.key not in PRODUCTS or not node.attributes.get("transA", 0):
        return False
    if any(node.attributes.get(name, 0) for name in _TURNED_BATCHES):
        return False
    first, second, made = (graph.tensors[t] for t in (*node.inputs[:2], node.outputs[0]))
    return (
        all(_is_matrix(tensor) for tensor in (first, second, made))
        and first.shape[0] >= LEAST_SUMMANDS
        and min(made.shape) >= LEAST_SIDE
    )


def _is_summand(graph: Graph, node: Node) -> bool:
    """Whether it adds to a sum, or a product goes on from it, as in chunks."""
    made = node.outputs[0]
    readers = (graph.nodes[r] for r in graph.tensors[made].readers)
    return len(node.reads) > 2 or any(
        r.key in PRODUCTS and r.inputs[2:3] == (made,) for r in readers
    )


def _is_matrix(tensor: Tensor) -> bool:
    return tensor.static and tensor.dtype == _FLOAT and len(tensor.shape) == 2


def _turn_factor(graph: Graph, node: Node, edit: ModelEdit) -> None:
    """``x'·y`` from ``x'``, made before it."""
    product = edit.node(node.id)
    product.input[0] = _transposed(graph.tensors[node.inputs[0]], node, edit)
    _untranspose(product)


def _turn_result(graph: Graph, node: Node, edit: ModelEdit) -> None:
    """``x'·y`` from ``y'·x``, made before it, which is transposed behind it."""
    first, second, made = (graph.tensors[t] for t in (*node.inputs[:2], node.outputs[0]))
    product = edit.node(node.id)
    product.input[:] = [_transposed(second, node, edit), first.name]
    _untranspose(product)
    turned = edit.fresh(f"{made.name}/turned")
    edit.types[turned] = TensorType(made.dtype, made.shape[::-1])
    product.output[0] = turned
    label = edit.fresh(f"{node.name}/back")
    edit.put_behind(
        node.id, helper.make_node("Transpose", [turned], [made.name], name=label, perm=[1, 0])
    )


def _transposed(tensor: Tensor, reader: Node, edit: ModelEdit) -> str:
    """The name of a transposed tensor, made right before its reader."""
    name = edit.fresh(f"{tensor.name}/turned")
    edit.types[name] = TensorType(tensor.dtype, tensor.shape[::-1])
    label = edit.fresh(f"{reader.name}/turn")
    edit.put_before(
        reader.id, helper.make_node("Transpose", [tensor.name], [name], name=label, perm=[1, 0])
    )
    return name


def _untranspose(product: onnx.NodeProto) -> None:
    kept = [each for each in product.attribute if each.name != "transA"]
    del product.attribute[:]
    product.attribute.extend(kept)
