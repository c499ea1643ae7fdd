"""``masks``: two masks of one gradient, joined to one.

PyTorch's exporter writes the backward part of ``hardtanh`` (ReLU6) as two products, by 0 or 1 for
what lies below the range and for what lies above it, and keeps a mask for each. ``g·0·1``,
``g·1·0`` and ``g·0·0`` are the same bits as ``g·0``, signs, infinities and NaN included, as
multiplying by 1 changes nothing and 0 is not negative: one mask that holds where either does will
do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import onnx
from onnx import helper

from memplan.ir.graph import Graph, Node, TensorKind
from memplan.ir.graph_facts import Facts
from memplan.passes.change import Change, facts_of, with_most
from memplan.passes.graph_pass import Applied
from memplan.passes.surgery import ModelEdit
from memplan.proto.edit import copied
from memplan.shapes.tensor_type import TensorType
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline
from memplan.units import counted

_BOOL = onnx.TensorProto.BOOL


@dataclass(frozen=True, slots=True)
class Masks:
    """No options."""

    name: ClassVar[str] = "masks"

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """The model with masks joined, as far as no peak rises by it."""
        found = with_most(model, timeline, joined_masks(model))
        if found is None:
            return Applied(model)
        model, _, count = found
        return Applied(model, f"{counted(count, 'mask')} joined with another")


def joined_masks(model: OpenModel) -> list[Change]:
    """One change for every product by two masks."""
    facts, taken = facts_of(model), set[int]()
    changes: list[Change] = []
    for last in facts.graph.nodes:
        found = _two_masks(facts, last)
        if found is None or taken & {n.id for n in found}:
            continue
        taken |= {n.id for n in (*found, last)}
        changes.append(partial(_join, facts.graph, *found, last))
    return changes


def _two_masks(facts: Facts, last: Node) -> tuple[Node, Node, Node] | None:
    """The first product and both choices of 0 or 1, if ``last`` is the second product."""
    first = _only_reader(facts, last, 0)
    if last.key != ":Mul" or first is None or first.key != ":Mul":
        return None
    choices = [_choice(facts, node) for node in (first, last)]
    if choices[0] is None or choices[1] is None or choices[0].id == choices[1].id:
        return None
    masks = [facts.graph.tensors[choice.inputs[0]] for choice in choices if choice is not None]
    if masks[0].shape != masks[1].shape or masks[0].id == masks[1].id or not facts.exact:
        return None
    return first, choices[0], choices[1]


def _only_reader(facts: Facts, node: Node, slot: int) -> Node | None:
    """What makes an input, if that is a tensor that nobody else reads."""
    if len(node.inputs) <= slot or node.inputs[slot] < 0:
        return None
    tensor = facts.graph.tensors[node.inputs[slot]]
    alone = tensor.kind is TensorKind.COMPUTED and len(tensor.readers) == 1
    if not alone or tensor.is_output or tensor.id in facts.graph.checkpoints:
        return None
    return facts.graph.nodes[tensor.producer]


def _choice(facts: Facts, product: Node) -> Node | None:
    """``Where(mask, 0, 1)``, if a product is by that and nobody else reads it."""
    node = _only_reader(facts, product, 1)
    if node is None or node.key != ":Where":
        return None
    zero, one = facts.value(node, 1), facts.value(node, 2)
    if zero is None or one is None or zero.shape != () or one.shape != ():
        return None
    if zero.dtype.kind != "f" or float(zero) != 0 or np.signbit(zero) or float(one) != 1:
        return None
    return node


def _join(graph: Graph, first: Node, one: Node, other: Node, last: Node, edit: ModelEdit) -> None:
    """One mask, made right before the only product that is left."""
    masks = [graph.tensors[node.inputs[0]] for node in (one, other)]
    either = edit.fresh(f"{masks[0].name}/either")
    edit.types[either] = TensorType(_BOOL, masks[0].shape)
    mask = helper.make_node("Or", [tensor.name for tensor in masks], [either], name=either)
    choice = copied(edit.original(other.id))
    choice.input[0] = either
    for node in (first, one, other):
        edit.remove(node.id)
    edit.put_before(last.id, mask, choice)
    edit.node(last.id).input[0] = graph.tensors[first.inputs[0]].name
