"""Keep the planned order where nodes of a GPU's session run on the CPU.

What they make is copied to the device behind all else that is ready: what reads the copy waits, and
nodes that were planned for later run first, recomputed ones among them, which then save nothing. So
such a node reads an input through a *fence* on the node that waited: ``Reshape`` to 0, 0, ... (each
stands for the size that is there), behind the shape of what that node made, cut to no dimension.
On the device that takes no memory, and no bit changes. Where sizes are open the proof knows no
ranks, so the zeros are the input's own ``Shape``. (WebGPU refuses ``Unsqueeze`` without axes, as
fences of plain sessions are.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ops.book import SHAPE_READERS
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
    model: onnx.ModelProto,
    session: SessionKind,
    opened: Callable[[onnx.ModelProto], Graph],
    *,
    exact: bool,
) -> onnx.ModelProto:
    """The model, with as many fences as its session needs to run its nodes as they are listed.

    Args:
        model: in the order that was planned; it is changed.
        session: a tuned one, on a GPU.
        opened: reads the graph of a model.
        exact: whether its shapes are those of every run, so that the proof knows them.
    """
    if default_opset(model) < _CUT_SHAPES:
        return model
    allow_initializers(model)
    prefix = unused_prefix(model.graph)
    for number in range(_ROUNDS):
        graph = opened(model)
        wait = _first_wait(graph, session, exact=exact)
        if wait is None:
            break
        _fence(model.graph, graph, wait, prefix, number, exact=exact)
    return model


def _first_wait(graph: Graph, session: SessionKind, *, exact: bool) -> _Wait | None:
    """The first node that others run before, though they are listed behind it. ``Shape`` and
    ``Size`` always do, and hold nothing on the device."""
    held, devices = place(unbound(graph), session.provider)
    first = {node.id for node in graph.nodes if node.key in SHAPE_READERS}
    own = set(range(len(graph.nodes))) - devices.host_nodes - first
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
            made = graph.nodes[waited].writes
            shown = (t for t in made if _takes(graph, session.provider, "Shape", t))
            tensor = next(shown, None)
            if tensor is None:
                continue
            found = ((n, _slot(graph, graph.nodes[n], devices, exact=exact)) for n in roots)
            slots = [(node, slot) for node, slot in found if slot is not None and node > waited]
            if slots:
                return _Wait(tensor, slots)
            break
        # Nothing can make these wait; what reads them may.
        order = [node for node in order if node not in roots]
    return None


def _takes(graph: Graph, provider: str, op: str, tensor: int) -> bool:
    """Whether the device has a kernel of ``op`` for a tensor."""
    version = schema_version("", op, graph.opset)
    return kernels_of(provider).has(f":{op}", version, [graph.tensors[tensor].dtype], [])


def _slot(graph: Graph, node: Node, devices: Devices, *, exact: bool) -> int | None:
    """The smallest input that the node reads on the device, and that a fence can be before."""
    host = kernels_of(devices.provider).host_inputs.get(node.key, frozenset())
    needed = ("Reshape",) if exact else ("Reshape", "Shape")
    found = [
        (graph.tensors[tensor].nbytes, slot)
        for slot, tensor in enumerate(node.inputs)
        if tensor != ABSENT
        and slot not in host
        and tensor not in devices.host_tensors
        and all(_takes(graph, devices.provider, op, tensor) for op in needed)
    ]
    return min(found)[1] if found else None


def _fence(
    proto: onnx.GraphProto, graph: Graph, wait: _Wait, prefix: str, number: int, *, exact: bool
) -> None:
    """Put the fences of one wait into a graph. Their shapes are there once for all waits on a
    tensor: a session runs ``Shape`` as soon as it can, ahead of what is listed before it."""
    source = graph.tensors[wait.tensor].name
    none, there = f"{prefix}{source}/none", {name for node in proto.node for name in node.output}
    behind = none if none in there else source
    added, readers = (
        defaultdict[str | None, list[onnx.NodeProto]](list),
        dict[str, tuple[int, str]](),
    )
    if none not in there:
        added[behind].append(marked("axes", "Shape", [source], none))
        cut = (helper.make_attribute(end, 0) for end in ("start", "end"))
        added[behind][0].attribute.extend(cut)
    for node, slot in wait.slots:
        made, read = graph.nodes[node].writes[0], graph.tensors[graph.nodes[node].inputs[slot]]
        rank, place = len(read.shape), read.name if read.name in there else None
        shape = f"{prefix}{source}/{rank}" if exact else f"{prefix}{read.name}/sizes"
        readers[graph.tensors[made].name] = slot, shape
        if shape in there:
            continue
        there.add(shape)
        if exact:
            zeros = f"{prefix}{source}/zeros_{rank}"
            added[behind].append(_concat([none, zeros], shape))
            proto.initializer.append(helper.make_tensor(zeros, _INT64, [rank], [0] * rank))
        else:
            added[place].append(marked("axes", "Shape", [read.name], shape))
    twins: dict[str, str] = {}
    result = list(added[None])
    for each in proto.node:
        found = next((readers[name] for name in each.output if name in readers), None)
        if found is not None:
            slot, shape = found
            name = each.input[slot]
            if name not in twins:
                twins[name] = f"{prefix}{number}/{name}"
                if not exact:
                    result.append(_concat([none, shape], shape := f"{prefix}{number}_shape/{name}"))
                result.append(marked("fence", "Reshape", [name, shape], twins[name]))
            each.input[slot] = twins[name]
        result.append(each)
        for name in each.output:
            result += added[name]
    replace_nodes(proto, result)


def _concat(vectors: list[str], whole: str) -> onnx.NodeProto:
    made = marked("axes", "Concat", vectors, whole)
    made.attribute.append(helper.make_attribute("axis", 0))
    return made
