"""Changes of single nodes: what stands in their place, and which of many changes are worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import numpy_helper

from memplan.ir.graph_facts import Array, Facts
from memplan.passes.graph_pass import largest_part
from memplan.passes.surgery import Added, reopened, with_nodes
from memplan.proto.edit import remove_unread
from memplan.proto.names import NameAuthority, defined_names
from memplan.proto.nodes import is_constant, names_read
from memplan.proto.opset import allow_initializers
from memplan.shapes.fold import small_constants
from memplan.shapes.tensor_type import TensorType
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline

Accepts = Callable[[Timeline, Timeline], bool]
"""Whether a timeline is good enough, given the one before."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that may be made or left, whatever becomes of the others.

    ``nodes``: name of a node → the nodes in its place, which may hold the old one; ``constants``
    and ``types`` of what is new, by name. No two changes of one list have a node in common.
    """

    nodes: Mapping[str, tuple[onnx.NodeProto, ...]]
    constants: Mapping[str, Array] = field(default_factory=dict)
    types: Mapping[str, TensorType] = field(default_factory=dict)


def facts_of(model: OpenModel) -> Facts:
    """What is known of a model's graph."""
    values = small_constants(model.prepared.bound.graph)
    return Facts(model.graph, values, model.prepared.exact)


def name_authority(model: OpenModel) -> NameAuthority:
    """Names for new nodes and tensors of a model."""
    names = NameAuthority(defined_names(model.prepared.proto.graph))
    names.taken.update(node.name for node in model.graph.nodes)
    return names


def changed(model: OpenModel, changes: Iterable[Change]) -> OpenModel:
    """The model after ``changes``."""
    proto = model.prepared.proto
    instead: dict[str, tuple[onnx.NodeProto, ...]] = {}
    constants: dict[str, Array] = {}
    types: dict[str, TensorType] = {}
    for change in changes:
        instead |= change.nodes
        constants |= change.constants
        types |= change.types
    like = {node.name: old for old, nodes in instead.items() for node in nodes if node.name != old}
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        nodes += (node,) if is_constant(node) else instead.get(node.name, (node,))
    result = with_nodes(proto, nodes)
    if constants:
        allow_initializers(result)
    for name, value in constants.items():
        result.graph.initializer.append(numpy_helper.from_array(value, name))
        dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        types[name] = TensorType(dtype, value.shape)
    remove_unread(
        result.graph,
        stays=lambda node: not is_constant(node),
        read_before=names_read(proto.graph.node),
    )
    return reopened(model, result, added=Added(types, like))


def with_most(
    model: OpenModel, timeline: Timeline, changes: Sequence[Change], accepts: Accepts
) -> tuple[OpenModel, Timeline, int] | None:
    """The model after as many changes as are accepted, simulated, and how many; None if none is."""
    return largest_part(timeline, changes, lambda part: changed(model, part), accepts)
