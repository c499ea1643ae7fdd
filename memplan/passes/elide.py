"""``elide``: copies that copy nothing, and chains of views.

``Identity``, no-op ``Cast``, ``Reshape``, ``Transpose``, ``Expand``, ``Slice`` and their like go;
their readers read what they copied. A view of a view becomes one view, a transposed transpose one
transpose or none. Caffe2's recurrent networks write gradients in place of such copies
(*recurrent-gradient-alias*); here it is done to any graph afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx

from memplan.ir.graph import Graph, Node, Tensor, TensorKind
from memplan.ir.graph_facts import Facts
from memplan.ir.reach import needed_nodes
from memplan.ops.book import VIEWS
from memplan.ops.memory import packable
from memplan.passes.change import facts_of, with_most
from memplan.passes.graph_pass import Applied
from memplan.passes.no_ops import permutation, same_value
from memplan.passes.surgery import ModelEdit
from memplan.proto.edit import Nodes
from memplan.proto.nodes import is_constant
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline
from memplan.units import counted

# A round sees what the one before left; chains get shorter every time.
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Removed:
    """A node that goes: ``source`` stands for its ``result``. Where that is an output of the graph,
    the source takes over its name."""

    node: int
    result: Tensor
    source: str

    def make(self, edit: ModelEdit) -> None:
        """Take it out."""
        edit.remove(self.node)
        if self.result.is_output:
            edit.rename(self.source, self.result.name)
        else:
            edit.replace_uses(self.result.name, self.source)


@dataclass(frozen=True, slots=True)
class Rerouted:
    """A node whose first input becomes ``source`` and, where ``perm`` is not empty, its axes
    ``perm``."""

    node: int
    source: str
    perm: tuple[int, ...] = ()

    def make(self, edit: ModelEdit) -> None:
        """Let it read the other tensor."""
        node = edit.node(self.node)
        node.input[0] = self.source
        if self.perm:
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("perm", list(self.perm)))


Edit = Removed | Rerouted


@dataclass(frozen=True, slots=True)
class Elide:
    """``rounds``: looks at the graph, each at what the one before left."""

    name: ClassVar[str] = "elide"
    rounds: int = _ROUNDS

    def apply(self, model: OpenModel, timeline: Timeline) -> Applied:
        """Without copies, as far as no peak rises by it."""
        start = len(model.graph.nodes)
        for _ in range(self.rounds):
            changes = [edit.make for edit in find_edits(model)]
            lower = with_most(model, timeline, changes, _served(model.graph))
            if lower is None:
                break
            model, timeline, _ = lower
        removed = start - len(model.graph.nodes)
        return Applied(model, counted(removed, "node") if removed else "")


def _served(graph: Graph) -> Nodes:
    """What outputs depend on. What served none before is left to ``prune``, with all it reads."""
    served = {graph.nodes[n].name for n in needed_nodes(graph, graph.outputs)}
    return lambda node: is_constant(node) or node.name in served


def find_edits(model: OpenModel) -> list[Edit]:
    """What could go, in order of the nodes. Any part of it may be done."""
    graph, facts = model.graph, facts_of(model)
    captured = {graph.tensors[t].name for node in graph.nodes for t in node.captured}
    found: list[Edit] = []
    taken: set[str] = set()  # renamed to a graph output, or removed
    for node in graph.nodes:
        edit = _edit(facts, node)
        if isinstance(edit, Removed):
            fixed = _makes_weights(facts, node)
            if fixed or not _may_be_removed(graph, edit, captured, taken):
                continue
            taken.add(edit.source if edit.result.is_output else edit.result.name)
        found += () if edit is None else (edit,)
    return found


def _edit(facts: Facts, node: Node) -> Edit | None:
    if same_value(facts, node):
        return _removed(facts.graph, node, facts.graph.tensors[node.inputs[0]])
    if node.key in VIEWS:
        return _shorter_chain(facts, node)
    if node.key == ":Transpose":
        return _one_transpose(facts, node)
    return None


def _removed(graph: Graph, node: Node, source: Tensor) -> Removed:
    return Removed(node.id, graph.tensors[node.outputs[0]], source.name)


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
            return _removed(graph, node, root)
    shape = facts.value(node, 1)
    # An entry of 0 stands for a dimension of the input, which changes here.
    if node.key == ":Reshape" and alone and shape is not None and bool((shape != 0).all()):
        return Rerouted(node.id, root.name)
    return None


def _one_transpose(facts: Facts, node: Node) -> Edit | None:
    """A transposed transpose: one, or none."""
    graph = facts.graph
    middle = graph.tensors[node.inputs[0]]
    if middle.producer < 0 or graph.nodes[middle.producer].key != ":Transpose":
        return None
    first = graph.nodes[middle.producer]
    inner, outer = permutation(graph, first), permutation(graph, node)
    if inner is None or outer is None:
        return None
    axes = tuple(inner[axis] for axis in outer)
    root = graph.tensors[first.inputs[0]]
    if axes == tuple(range(len(axes))):
        return _removed(graph, node, root)
    if len(middle.readers) == 1 and not middle.is_output:
        return Rerouted(node.id, root.name, axes)
    return None


def _makes_weights(facts: Facts, node: Node) -> bool:
    """Whether the copy is one of a constant, and a kernel that reads it would pack that: it then
    adds in another order."""
    graph, source = facts.graph, facts.graph.tensors[node.inputs[0]]
    while source.producer >= 0 and _hands_on(facts, graph.nodes[source.producer]):
        source = graph.tensors[graph.nodes[source.producer].inputs[0]]
    return source.kind is TensorKind.INITIALIZER and any(
        node.outputs[0] in packable(graph.nodes[reader])
        for reader in graph.tensors[node.outputs[0]].readers
    )


def _hands_on(facts: Facts, node: Node) -> bool:
    return node.key in VIEWS or node.key == ":Transpose" or same_value(facts, node)


def _may_be_removed(graph: Graph, edit: Removed, captured: set[str], taken: set[str]) -> bool:
    """Whether names allow it: what the user, a body or the author of a mark goes by stays."""
    if edit.result.id in graph.checkpoints or edit.result.name in captured:
        return False
    if not edit.result.is_output:
        return True
    # Its source takes over the name, so it must be made here, and not be wanted by its own.
    source = graph.tensor_named(edit.source)
    return source is not None and _may_be_renamed(graph, source, captured | taken)


def _may_be_renamed(graph: Graph, source: Tensor, fixed: set[str]) -> bool:
    free = source.kind is TensorKind.COMPUTED and not source.is_output
    return free and source.name not in fixed and source.id not in graph.checkpoints
