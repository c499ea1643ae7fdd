"""What must hold before a rewritten model is written: checked on the model itself.

Three pieces of code know the runtime's memory, and none of them may lean on another: the simulator
(:mod:`memplan.simulate.allocation`) is the oracle; the solver's evaluator
(:mod:`memplan.solver.evaluate`, of tuned sessions) and its pins (:mod:`memplan.solver.pins`, of
plain ones) are its subjects. Here the oracle reads the new file's own graph, and its figures must
be those of the evaluator, to the byte; :mod:`memplan.planning.plain.finish_fences` does the same
for pins.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from memplan.equivalence.in_place import unsafe_pairs
from memplan.errors import MemplanError
from memplan.ir.build_graph import build_graph
from memplan.ir.graph import ABSENT, Graph
from memplan.ops.kernels import COPY_OPS
from memplan.planning.apply import OFFLOAD, RELOAD
from memplan.planning.plan import Plan
from memplan.proto.metadata import node_metadata
from memplan.proto.model_checks import find_fault, require_valid
from memplan.shapes.tensor_type import TensorType
from memplan.simulate.devices import place
from memplan.simulate.session import SessionKind
from memplan.simulate.state_memory import rebound, unbound
from memplan.simulate.timeline import Timeline, simulate


class Rejected(MemplanError):
    """A check found a plan wanting, or the proof did not follow it: our bug."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the plan was rejected: {reason}",
            "nothing was written; please report this with the model",
        )
        self.reason = reason


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


def rewritten_graph(
    rewritten: onnx.ModelProto, plan: Plan, types: Mapping[str, TensorType]
) -> Graph:
    """The graph of a rewritten model, with its state where the plan's graph has it."""
    graph = build_graph(rewritten, rewritten_types(rewritten, plan, types))
    return rebound(graph, plan.extended.graph)


def sound_timeline(
    original: onnx.ModelProto,
    rewritten: onnx.ModelProto,
    plan: Plan,
    types: Mapping[str, TensorType],
    session: SessionKind,
) -> Timeline:
    """The simulated timeline of a rewritten model that runs its nodes in plan order.

    The simulation here is a code path of its own: it reads the new file's graph and knows nothing
    of the planner's evaluator.

    Raises:
        Rejected: a condition does not hold. That is our bug, and nothing is written.
    """
    graph = rewritten_graph(rewritten, plan, types)
    ensure_sound(original, rewritten, graph)
    _check_state(plan.extended.graph, graph, rewritten)
    _check_copies(graph, session)
    timeline = simulate(graph, session)
    if list(timeline.order) != list(range(len(graph.nodes))):
        raise Rejected("the runtime would not run the nodes in plan order")
    return timeline


def ensure(
    original: onnx.ModelProto,
    rewritten: onnx.ModelProto,
    plan: Plan,
    types: Mapping[str, TensorType],
    session: SessionKind,
) -> Timeline:
    """Check the rewritten model against its plan and return its simulated timeline.

    Raises:
        Rejected: a condition does not hold. That is our bug, and nothing is written.
    """
    timeline = sound_timeline(original, rewritten, plan, types, session)
    peak = timeline.peak_with_workspace_bytes
    if peak > plan.budget_bytes:
        raise Rejected(f"the simulated peak {peak:,} B breaks the budget {plan.budget_bytes:,} B")
    if timeline.dynamic_peak_bytes != plan.predicted_peak_bytes - plan.resident_bytes:
        raise Rejected(
            f"planner and simulator disagree: {plan.predicted_peak_bytes - plan.resident_bytes:,} "
            f"and {timeline.dynamic_peak_bytes:,} B"
        )
    return timeline


def ensure_sound(original: onnx.ModelProto, rewritten: onnx.ModelProto, graph: Graph) -> None:
    """Check all but order and memory: interface, validity, no recomputation for nothing.

    Raises:
        Rejected: a condition does not hold. That is our bug, and nothing is written.
    """
    _check_interface(original, rewritten)
    _check_valid(original, rewritten)
    _check_clones_read(graph)


def _check_interface(original: onnx.ModelProto, rewritten: onnx.ModelProto) -> None:
    for field in ("input", "output"):
        before = [v.SerializeToString() for v in getattr(original.graph, field)]
        after = [v.SerializeToString() for v in getattr(rewritten.graph, field)]
        if before != after:
            raise Rejected(f"the graph {field}s changed")


def _check_state(planned: Graph, graph: Graph, rewritten: onnx.ModelProto) -> None:
    """What was planned to lie in place must lie there in the new order, with what is recomputed:
    asked of the simulator, and of a check of the file that knows nothing of it."""
    if planned.state is None:
        return
    reasons = (
        {graph.tensors[o].name: why for o, why in graph.state.apart.items()}
        if (graph.state)
        else {}
    )
    for output in planned.state.in_place:
        name = planned.tensors[output].name
        if name in reasons:
            raise Rejected(f"'{name}' would not be made in place: {reasons[name]}")
    pairs = {
        planned.tensors[output].name: planned.tensors[given].name
        for output, given in planned.state.in_place.items()
    }
    for name, reason in unsafe_pairs(rewritten, pairs).items():
        raise Rejected(f"'{name}' must not be made in place: {reason}")


def _check_valid(original: onnx.ModelProto, rewritten: onnx.ModelProto) -> None:
    fault = find_fault(rewritten)
    if fault is not None:
        require_valid(original)  # what was wrong before is not ours
        raise Rejected(f"the ONNX checker refuses the model: {fault}")


def _check_copies(graph: Graph, session: SessionKind) -> None:
    """Host copies must be made from the device before they are read back, and read by nothing that
    computes; and the runtime must add no copies of its own to them."""
    if not any(node.op in COPY_OPS for node in graph.nodes):
        return
    if session.provider != "cuda":
        raise Rejected("copies to the host are for CUDA sessions")
    made: set[int] = set()
    for node in graph.nodes:
        if node.op == "MemcpyFromHost" and node.inputs[0] not in made:
            raise Rejected(f"{node.name} reads a host copy that has not been made")
        if node.op not in COPY_OPS and not made.isdisjoint(node.reads):
            raise Rejected(f"{node.name} computes with a host copy")
        if node.op == "MemcpyToHost":
            if graph.tensors[node.outputs[0]].is_output:
                raise Rejected(f"the host copy of {node.name} is a graph output")
            made.add(node.outputs[0])
    devices = place(unbound(graph))[1]
    for node in graph.nodes:
        source = node.inputs[0] if node.op == "MemcpyToHost" else ABSENT
        if node.op in COPY_OPS and node.id in devices.host_nodes:
            raise Rejected(f"{node.name} would not run on the device")
        if source in devices.host_tensors:
            raise Rejected(f"{node.name} makes a copy of what is on the host already")


def _check_clones_read(graph: Graph) -> None:
    for node, metadata in zip(graph.nodes, graph.metadata, strict=True):
        if metadata.get("memplan.role") not in ("recompute", RELOAD):
            continue
        if not any(graph.tensors[t].readers for t in node.writes):
            raise Rejected(f"nothing reads the recomputed node {node.name}")
