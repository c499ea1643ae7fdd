"""Plan → model: nodes in plan order, recomputed ones as clones, readers on the latest value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import onnx
from onnx import helper

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ops.book import operator
from memplan.planning.forms.on_host import ON_HOST
from memplan.planning.plan import Plan
from memplan.proto.edit import copied, leave_out, rename_reads, renamed
from memplan.proto.graph_edit import GraphEdit
from memplan.proto.metadata import node_metadata, set_metadata
from memplan.shapes.tensor_type import TensorType

OFFLOAD, RELOAD = "offload", "reload"
"""``memplan.role`` of nodes that copy a tensor to the host and back."""


def apply_plan(model: onnx.ModelProto, plan: Plan, dims: Mapping[str, int]) -> onnx.ModelProto:
    """A new model whose file order is the plan's sequence.

    Args:
        model: the model that the plan's graph was built from (left untouched).
        plan: the plan.
        dims: bound dimensions, recorded in the metadata.
    """
    edit = GraphEdit(model)
    writer = _Writer(edit, plan)
    edit.write(writer.nodes())
    for name, value in plan.extended.constants.items():
        if name in writer.used_constants:
            edit.initialize(name, value)
    result = edit.finished()
    set_metadata(
        result,
        {
            "session": "tuned",
            "dims": dict(dims),
            "budget_bytes": plan.budget_bytes,
            "predicted_peak_bytes": plan.predicted_peak_bytes,
            "predicted_peak_with_workspace_bytes": plan.predicted_peak_with_workspace_bytes,
            "strategy": plan.strategy,
            "clones": plan.clones,
        },
    )
    return result


def rewritten_types(
    rewritten: onnx.ModelProto, plan: Plan, types: Mapping[str, TensorType]
) -> dict[str, TensorType]:
    """Types of every tensor; clones have those of what they are clones of, copies to the host and
    back that of what they copy."""
    graph, known = plan.extended.graph, dict(types)
    for tensor in graph.tensors:
        known.setdefault(tensor.name, TensorType(tensor.dtype, tensor.shape))
    originals = {node.name: node for node in graph.nodes}
    for proto in rewritten.graph.node:
        metadata = node_metadata(proto)
        of = metadata.get("memplan.of")
        if of is None or proto.name in originals:  # the latter: of a rewrite before this one
            continue
        if metadata.get("memplan.role") in (OFFLOAD, RELOAD):
            known[proto.output[0]] = known[of]
            continue
        for name, index in zip(proto.output, originals[of].outputs, strict=False):
            if name:
                source = graph.tensors[index]
                known[name] = TensorType(source.dtype, source.shape)
    return known


class _Writer:
    """Walks the sequence and keeps, per tensor, the name that readers must use now."""

    def __init__(self, edit: GraphEdit, plan: Plan) -> None:
        self.edit = edit
        self.graph: Graph = plan.extended.graph
        self.plan = plan
        self.current = [tensor.name for tensor in self.graph.tensors]
        self.names = edit.names
        self.names.taken.update(self.current, (node.name for node in self.graph.nodes))
        self.runs: defaultdict[int, int] = defaultdict(int)
        self.used_constants: set[str] = set()
        self.known_info = {v.name: v for v in edit.model.graph.value_info}
        self.read_counts = _reads_per_instance(plan)
        copies = plan.extended.of_kind(ON_HOST)
        self.copies = {node: (OFFLOAD, copy.tensor) for copy in copies for node in copy.encode}
        self.copies |= {copy.decode: (RELOAD, copy.tensor) for copy in copies}
        self.hosted = {self.graph.nodes[n].outputs[0]: c.tensor for c in copies for n in c.encode}

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """The nodes in the order of the plan."""
        own = self.edit.count
        for position, index in enumerate(self.plan.sequence):
            original = self.edit.original(index) if index < own else None
            yield self._instance(position, self.graph.nodes[index], original)

    def _instance(
        self, position: int, node: Node, original: onnx.NodeProto | None
    ) -> onnx.NodeProto:
        proto = _copy_or_make(node, original, self.graph)
        self.runs[node.id] += 1
        is_clone = original is None or self.runs[node.id] > 1
        renamed = {self.graph.tensors[t].name: self.current[t] for t in node.reads}
        rename_reads(proto, renamed)
        self.used_constants.update(renamed.values())
        if is_clone:
            self._mark(proto, node)
        elif self.plan.tags and node.name in self.plan.recomputed:
            _add_metadata(proto, self.plan.tags)
        unread: set[str] = set()
        for slot, tensor in enumerate(node.outputs):
            if tensor == ABSENT:
                continue
            if self._unread(position, node, slot):
                unread.add(proto.output[slot])
            elif is_clone:
                proto.output[slot] = name = self._name_of(node, tensor)
                self._declare(tensor, name)
                self.current[tensor] = name
        leave_out(proto, unread, operator(node.key).listed_outputs)
        return proto

    def _unread(self, position: int, node: Node, slot: int) -> bool:
        """An optional output that nobody reads is left out, so that it is never allocated."""
        tensor = self.graph.tensors[node.outputs[slot]]
        if slot not in operator(node.key).optional_outputs:
            return False
        if tensor.is_output and self.runs[node.id] == 1:
            return False
        return self.read_counts[position][slot] == 0

    def _name_of(self, node: Node, tensor: int) -> str:
        """A name for what a recomputed node or a copy makes."""
        if node.id not in self.copies:
            return self.names.fresh(f"{self.graph.tensors[tensor].name}/recompute", first=2)
        role, of = self.copies[node.id]
        where = "host" if role == OFFLOAD else "again"
        return self.names.fresh(f"{self.graph.tensors[of].name}/{where}")

    def _mark(self, proto: onnx.NodeProto, node: Node) -> None:
        """Name a recomputed node or a copy, and note what it is."""
        role, of, tags = "recompute", node.name, self.plan.tags
        if node.id in self.copies:
            role, tensor = self.copies[node.id]
            of, tags = self.graph.tensors[tensor].name, {}
            proto.name = self.names.fresh(f"{of}/{role}")
        else:
            proto.name = self.names.fresh(f"{of}/{role}", first=2)
        saved = sum(self.graph.tensors[t].nbytes for t in node.writes)
        noted = {"memplan.role": role, "memplan.of": of, "memplan.saves_bytes": str(saved)}
        _add_metadata(proto, {**noted, **tags})

    def _declare(self, tensor: int, name: str) -> None:
        """Shape information for a clone's output, as the original states it; for a copy to the
        host, that of what it copies."""
        source = self.graph.tensors[self.hosted.get(tensor, tensor)]
        known = self.known_info.get(source.name)
        if known is not None:
            info = renamed(known, name)
        elif source.counted and not self.plan_has_symbols():
            info = helper.make_tensor_value_info(name, source.dtype, list(source.shape))
        else:
            return
        self.edit.graph.value_info.append(info)

    def plan_has_symbols(self) -> bool:
        """Whether the file has symbolic dimensions (then bound shapes must not be written)."""
        return any(
            dim.dim_param
            for value in self.edit.model.graph.input
            for dim in value.type.tensor_type.shape.dim
        )


def _add_metadata(proto: onnx.NodeProto, values: Mapping[str, str]) -> None:
    helper.set_metadata_props(proto, {**node_metadata(proto), **values})


def _copy_or_make(node: Node, original: onnx.NodeProto | None, graph: Graph) -> onnx.NodeProto:
    if original is not None:
        return copied(original)
    names = [graph.tensors[t].name for t in node.inputs]
    outputs = [graph.tensors[t].name for t in node.outputs]
    attributes: dict[str, Any] = dict(node.attributes)
    return helper.make_node(node.op, names, outputs, name=node.name, **attributes)


def _reads_per_instance(plan: Plan) -> list[list[int]]:
    """How often each output of each instance is read, by output slot (absent ones: 0)."""
    graph = plan.extended.graph
    latest: dict[int, list[int]] = {}
    counts: list[list[int]] = []
    slots: dict[int, int] = {}
    for index in plan.sequence:
        node = graph.nodes[index]
        for tensor in node.reads:
            if tensor in latest:
                latest[tensor][slots[tensor]] += 1
        mine = [0] * len(node.outputs)
        counts.append(mine)
        for slot, tensor in enumerate(node.outputs):
            if tensor != ABSENT:
                latest[tensor], slots[tensor] = mine, slot
    return counts
