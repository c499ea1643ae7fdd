"""``elide``: copies that copy nothing, and chains of views.

``Identity``, no-op ``Cast``, ``Reshape``, ``Transpose``, ``Expand``, ``Slice`` and their like go;
their readers read what they copied. A view of a view becomes one view, a transposed transpose one
transpose or none. Caffe2's recurrent networks write gradients in place of such copies
(*recurrent-gradient-alias*); here it is done to any graph afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import onnx

from memplan.ir.graph import Graph, Node, Tensor, TensorKind
from memplan.ir.reach import needed_nodes
from memplan.ops.book import VIEWS, operator
from memplan.passes.graph_pass import Applied, largest_part, peak_did_not_rise
from memplan.passes.no_ops import Facts, permutation, same_value
from memplan.passes.surgery import reopened, with_nodes
from memplan.proto.edit import copied, remove_unread
from memplan.proto.nodes import captured_names, is_constant, names_read
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.fold import small_constants
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline
from memplan.units import counted

# A round sees what the one before left; chains get shorter every time.
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one node, by name.

    With ``removed`` the node goes, and ``source`` stands for its output; else its first input
    becomes ``source`` and, where ``perm`` is not empty, its axes ``perm``.
    """

    node: str
    source: str
    removed: bool
    perm: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Elide:
    """``rounds``: looks at the graph, each at what the one before left."""

    name: ClassVar[str] = "elide"
    summary: ClassVar[str] = "copies that copy nothing, and views of views"
    rounds: int = _ROUNDS

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """Without copies, as far as no peak rises by it."""
        start = len(model.graph.nodes)
        for _ in range(self.rounds):
            edits = find_edits(model)
            lower = largest_part(timeline, edits, partial(_after, model), peak_did_not_rise)
            if lower is None:
                break
            model, timeline, _ = lower
        removed = start - len(model.graph.nodes)
        return Applied(model, counted(removed, "node") if removed else "")


def _after(model: OpenModel, edits: Sequence[Edit]) -> OpenModel:
    return reopened(model, apply_edits(model, edits))


def find_edits(model: OpenModel) -> list[Edit]:
    """What could go, in order of the nodes. Any part of it may be done."""
    graph, proto = model.graph, model.prepared.proto
    exact = not symbolic_dims(proto) and not model.prepared.bounded
    facts = Facts(graph, small_constants(model.prepared.bound.graph), exact)
    outer = {name for node in proto.graph.node for name in captured_names(node)}
    found: list[Edit] = []
    taken: set[str] = set()  # renamed to a graph output, or removed
    for node in graph.nodes:
        edit = _edit(facts, node)
        if edit is not None and edit.removed and _makes_weights(facts, node):
            continue
        if edit is None or (edit.removed and not _may_be_removed(graph, node, edit, outer, taken)):
            continue
        if edit.removed:
            result = graph.tensors[node.outputs[0]]
            taken.add(edit.source if result.is_output else result.name)
        found.append(edit)
    return found


def _edit(facts: Facts, node: Node) -> Edit | None:
    graph = facts.graph
    if same_value(facts, node):
        return Edit(node.name, graph.tensors[node.inputs[0]].name, removed=True)
    if node.key in VIEWS:
        return _shorter_chain(facts, node)
    if node.key == ":Transpose":
        return _one_transpose(facts, node)
    return None


def _shorter_chain(facts: Facts, node: Node) -> Edit | None:
    """A view of a view: of what the first one is a view of, or that itself."""
    graph = facts.graph
    source = graph.tensors[node.inputs[0]]
    if source.producer < 0 or graph.nodes[source.producer].key not in VIEWS:
        return None
    root, alone = source, True
    while root.producer >= 0 and graph.nodes[root.producer].key in VIEWS:
        alone = alone and len(root.readers) == 1 and not root.is_output
        root = graph.tensors[graph.nodes[root.producer].inputs[0]]
        if facts.exact and root.shape == graph.tensors[node.outputs[0]].shape:
            return Edit(node.name, root.name, removed=True)
    shape = facts.value(node, 1)
    # An entry of 0 stands for a dimension of the input, which changes here.
    if node.key == ":Reshape" and alone and shape is not None and bool((shape != 0).all()):
        return Edit(node.name, root.name, removed=False)
    return None


def _one_transpose(facts: Facts, node: Node) -> Edit | None:
    """A transposed transpose: one, or none."""
    graph = facts.graph
    middle = graph.tensors[node.inputs[0]]
    if middle.producer < 0 or graph.nodes[middle.producer].key != ":Transpose":
        return None
    first = graph.nodes[middle.producer]
    inner, outer = permutation(graph, first), permutation(graph, node)
    axes = tuple(inner[axis] for axis in outer)
    root = graph.tensors[first.inputs[0]]
    if axes == tuple(range(len(axes))):
        return Edit(node.name, root.name, removed=True)
    if len(middle.readers) == 1 and not middle.is_output:
        return Edit(node.name, root.name, removed=False, perm=axes)
    return None


def _makes_weights(facts: Facts, node: Node) -> bool:
    """Whether the copy is one of a constant, and a kernel that reads it would pack that: it then
    adds in another order."""
    graph, source = facts.graph, facts.graph.tensors[node.inputs[0]]
    while source.producer >= 0 and _hands_on(facts, graph.nodes[source.producer]):
        source = graph.tensors[graph.nodes[source.producer].inputs[0]]
    return source.kind is TensorKind.INITIALIZER and any(
        node.outputs[0] == read
        for reader in graph.tensors[node.outputs[0]].readers
        for slot, read in enumerate(graph.nodes[reader].inputs)
        if slot in operator(graph.nodes[reader].key).packed_inputs
    )


def _hands_on(facts: Facts, node: Node) -> bool:
    return node.key in VIEWS or node.key == ":Transpose" or same_value(facts, node)


def _may_be_removed(graph: Graph, node: Node, edit: Edit, outer: set[str], taken: set[str]) -> bool:
    """Whether names allow it: what the user, a body or the author of a mark goes by stays."""
    result = graph.tensors[node.outputs[0]]
    if result.id in graph.checkpoints or result.name in outer:
        return False
    if not result.is_output:
        return True
    # Its source takes over the name, so it must be made here, and not be wanted by its own.
    source = graph.tensor_named(edit.source)
    return source is not None and _may_be_renamed(graph, source, outer | taken)


def _may_be_renamed(graph: Graph, source: Tensor, fixed: set[str]) -> bool:
    free = source.kind is TensorKind.COMPUTED and not source.is_output
    return free and source.name not in fixed and source.id not in graph.checkpoints


def apply_edits(model: OpenModel, edits: Sequence[Edit]) -> onnx.ModelProto:
    """A copy of the model's file after ``edits``, without what nobody reads any more."""
    names = _Names(model.graph, edits)
    changed = {edit.node: edit for edit in edits}
    nodes = []
    for proto in model.prepared.proto.graph.node:
        edit = None if is_constant(proto) else changed.get(proto.name)
        if edit is not None and edit.removed:
            continue
        node = copied(proto)
        if edit is not None:
            node.input[0] = edit.source
            if edit.perm:
                del node.attribute[:]
                node.attribute.append(onnx.helper.make_attribute("perm", list(edit.perm)))
        for names_of in (node.input, node.output):
            for slot, name in enumerate(names_of):
                names_of[slot] = names.now(name)
        nodes.append(node)
    result = with_nodes(model.prepared.proto, nodes)
    # What served no output before is left to ``prune``, with all that it reads.
    graph = model.graph
    served = {graph.nodes[n].name for n in needed_nodes(graph, graph.outputs)}
    remove_unread(
        result.graph,
        stays=lambda node: not is_constant(node) and node.name not in served,
        read_before=names_read(model.prepared.proto.graph.node),
    )
    return result


class _Names:
    """What a tensor is called after the edits."""

    def __init__(self, graph: Graph, edits: Sequence[Edit]) -> None:
        result = {node.name: graph.tensors[node.outputs[0]] for node in graph.nodes if node.outputs}
        removed = [(result[edit.node], edit.source) for edit in edits if edit.removed]
        self.copies = {made.name: source for made, source in removed if not made.is_output}
        self.outputs = {source: made.name for made, source in removed if made.is_output}

    def now(self, name: str) -> str:
        """The present name of ``name``."""
        while name in self.copies:
            name = self.copies[name]
        return self.outputs.get(name, name)
