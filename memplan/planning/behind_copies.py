"""Keep the planned order where nodes of a GPU's session run on the CPU.

What they make is copied to the device behind all else that is ready: what reads the copy waits, and
nodes that were planned for later run first, recomputed ones among them, which then save nothing. So
such a node reads an input through a *fence* on the node that waited: ``Reshape`` to 0, 0, ... (each
stands for the size that is there), behind the shape of what that node made, cut to no dimension.
On the device that takes no memory, and no bit changes. (WebGPU refuses ``Unsqueeze`` without axes,
as fences of plain sessions are.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ops.kernels import kernels_of, schema_version
from memplan.planning.plain.fences import marked, unused_prefix
from memplan.proto.edit import replace_nodes
from memplan.proto.opset import allow_initializers, default_opset
from memplan.simulate.devices import Devices, place
from memplan.simulate.run_order import placed_order
from memplan.simulate.session import SessionKind
from memplan.simulate.state_memory import unbound

_CUT_SHAPES = 15
"""The opset from which ``Shape`` can be cut."""
_INT64 = onnx.TensorProto.INT64
_ROUNDS = 64
"""Of one wait each: a graph has a few copies."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """A node that waits for a copy, or the first behind it that a fence can read (its output
    ``tensor``), and the slots of nodes that are to wait for it."""

    tensor: int
    slots: Sequence[tuple[int, int]]


def in_planned_order(
    model: onnx.ModelProto, session: SessionKind, opened: Callable[[onnx.ModelProto], Graph]
) -> onnx.ModelProto:
    """The model, with as many fences as its session needs to run its nodes as they are listed.

    Args:
        model: in the order that was planned; it is changed.
        session: a tuned one, on a GPU.
        opened: reads the graph of a model.
    """
    if default_opset(model) < _CUT_SHAPES:
        return model
    allow_initializers(model)
    prefix = unused_prefix(model.graph)
    for number in range(_ROUNDS):
        graph = opened(model)
        wait = _first_wait(graph, session)
        if wait is None:
            break
        _fence(model.graph, graph, wait, prefix, number)
    return model


def _first_wait(graph: Graph, session: SessionKind) -> _Wait | None:
    """The first node that others run before, though they are listed behind it."""
    held, devices = place(unbound(graph), session.provider)
    own = set(range(len(graph.nodes))) - devices.host_nodes
    order = [node for node in placed_order(held, session, devices) if node in own]
    while (listed := sorted(order)) != order:
        done = next(k for k, due in enumerate(listed) if order[k] != due)
        back = order.index(listed[done])
        early = set(order[done:back])
        roots = [
            node
            for node in sorted(early)
            if not any(graph.tensors[t].producer in early for t in graph.nodes[node].reads)
        ]
        for waited in order[back:]:
            tensor = _shown(graph, graph.nodes[waited], session.provider)
            if tensor is None:
                continue
            found = ((node, _slot(graph, graph.nodes[node], devices)) for node in roots)
            slots = [(node, slot) for node, slot in found if slot is not None and node > waited]
            if slots:
                return _Wait(tensor, slots)
            break
        # Nothing can make these wait; what reads them may.
        order = [node for node in order if node not in roots]
    return None


def _shown(graph: Graph, node: Node, provider: str) -> int | None:
    """An output whose ``Shape`` the device has a kernel for."""
    kernels, version = kernels_of(provider), schema_version("", "Shape", graph.opset)
    return next(
        (t for t in node.writes if kernels.has(":Shape", version, [graph.tensors[t].dtype], [])),
        None,
    )


def _slot(graph: Graph, node: Node, devices: Devices) -> int | None:
    """The smallest input that the node reads on the device, and that a fence can be before."""
    kernels = kernels_of(devices.provider)
    version = schema_version("", "Reshape", graph.opset)
    host = kernels.host_inputs.get(node.key, frozenset())
    found = [
        (graph.tensors[tensor].nbytes, slot)
        for slot, tensor in enumerate(node.inputs)
        if tensor != ABSENT
        and slot not in host
        and tensor not in devices.host_tensors
        and kernels.has(":Reshape", version, [graph.tensors[tensor].dtype], [])
    ]
    return min(found)[1] if found else None


def _fence(proto: onnx.GraphProto, graph: Graph, wait: _Wait, prefix: str, number: int) -> None:
    """Put the fences of one wait into a graph. Their shapes are there once for all waits on a
    tensor: a session runs ``Shape`` as soon as it can, ahead of what is listed before it."""
    source = graph.tensors[wait.tensor].name
    none, there = f"{prefix}{source}/none", {name for node in proto.node for name in node.output}
    shapes, readers = [], dict[str, tuple[str, int]]()
    if none not in there:
        shapes.append(marked("axes", "Shape", [source], none))
        shapes[-1].attribute.extend(helper.make_attribute(end, 0) for end in ("start", "end"))
    behind = none if none in there else source
    for node, slot in wait.slots:
        made, read = (graph.nodes[node].writes[0], graph.nodes[node].inputs[slot])
        rank = len(graph.tensors[read].shape)
        shape = f"{prefix}{source}/{rank}"
        if shape not in there:
            there.add(shape)
            zeros = f"{prefix}{source}/zeros_{rank}"
            shapes.append(marked("axes", "Concat", [none, zeros], shape))
            shapes[-1].attribute.append(helper.make_attribute("axis", 0))
            proto.initializer.append(helper.make_tensor(zeros, _INT64, [rank], [0] * rank))
        readers[graph.tensors[made].name] = shape, slot
    twins: dict[str, str] = {}
    result: list[onnx.NodeProto] = []
    for each in proto.node:
        found = next((readers[name] for name in each.output if name in readers), None)
        if found is not None:
            shape, slot = found
            name = each.input[slot]
            if name not in twins:
                twins[name] = f"{prefix}{number}/{name}"
                result.append(marked("fence", "Reshape", [name, shape], twins[name]))
            each.input[slot] = twins[name]
        result.append(each)
        if behind in each.output:
            result += shapes
    replace_nodes(proto, result)
