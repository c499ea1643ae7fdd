"""What must hold before a rewritten model is written: asked of its own bytes, read as a stranger
would.

Two pieces of code know the runtime's memory, and neither may lean on the other: the simulator
(:mod:`memplan.simulate.allocation`) is the oracle, the solver's evaluator
(:mod:`memplan.solver.evaluate`) its subject. Here the new bytes are parsed, shapes, phases and
state are found anew as ``analyze`` finds them, and the oracle's figures for that graph must be
those that were promised, to the byte.
"""

from __future__ import annotations

import onnx

from memplan.api.open_step import open_step
from memplan.errors import ModelError
from memplan.ir.graph import ABSENT, Graph
from memplan.ops.kernels import COPY_OPS
from memplan.planning.apply import RELOAD
from memplan.planning.plan import Plan, Rejected
from memplan.proto.read import reread
from memplan.shapes.dims import symbolic_dims
from memplan.shapes.prepare import PreparedModel, prepare
from memplan.simulate.devices import place
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import SessionKind
from memplan.simulate.state_memory import unbound
from memplan.simulate.timeline import Timeline, simulate
from memplan.units import counted

_NAMED = 3


def sound_timeline(
    model: onnx.ModelProto,
    before: PreparedModel,
    plan: Plan,
    session: SessionKind,
    loss: str | None = None,
) -> Timeline:
    """The simulation of a rewritten model, opened with nothing but its bytes; what it takes is not
    judged here.

    Args:
        model: the rewritten model, with its metadata.
        before: what was planned; external data lies beside it, and its dimensions are bound alike.
        plan: the plan, which says what was to lie in place.
        session: the kind of session that the file is for.
        loss: the name of the loss, if the user gave one.

    Raises:
        Rejected: a condition does not hold. That is our bug, and nothing is written.
    """
    _check_interface(before.proto, model)
    try:
        found = opened_anew(model, before, session, loss)
    except ModelError as error:
        raise Rejected(f"the new file cannot be read again: {error.message}") from None
    _check_counted(found.prepared, before)
    _check_clones_read(found.graph)
    if session.name == "default":
        return simulate(unbound(found.graph), session)
    _check_state(plan.extended.graph, found.graph)
    _check_copies(found.graph, session)
    timeline = simulate(found.graph, session)
    if list(timeline.order) != list(range(len(found.graph.nodes))):
        raise Rejected("the runtime would not run the nodes in plan order")
    return timeline


def require_as_planned(plan: Plan, timeline: Timeline) -> None:
    """Hold the peak of a file for tuned sessions against its plan.

    Raises:
        Rejected: it is over the budget, or not the peak that the evaluator found.
    """
    peak = timeline.peak_with_workspace_bytes
    if peak > plan.budget_bytes:
        raise Rejected(f"the simulated peak {peak:,} B breaks the budget {plan.budget_bytes:,} B")
    planned = plan.predicted_peak_bytes - plan.resident_bytes
    if timeline.dynamic_peak_bytes != planned:
        raise Rejected(
            f"planner and simulator disagree: {planned:,} and {timeline.dynamic_peak_bytes:,} B"
        )


def require_as_promised(promised: Timeline, timeline: Timeline) -> None:
    """Hold the simulation of a file for plain sessions against the one that the planner made.

    Raises:
        Rejected: they differ.
    """
    peaks = timeline.peak_with_workspace_bytes, promised.peak_with_workspace_bytes
    if peaks[0] != peaks[1] or timeline.resident_bytes != promised.resident_bytes:
        raise Rejected(
            f"the new file takes {peaks[0]:,} B when it is read again, not {peaks[1]:,} B"
        )


def opened_anew(
    model: onnx.ModelProto, before: PreparedModel, session: SessionKind, loss: str | None
) -> OpenModel:
    """A rewritten model, opened with nothing but its bytes; see :func:`sound_timeline`.

    Raises:
        ModelError: it cannot be.
    """
    fresh = reread(model, before.path, before.beside)
    known = symbolic_dims(fresh)
    dims = {name: size for name, size in before.dims.items() if name in known}
    prepared = prepare(fresh, before.path, dims, before.beside, partly=True)
    return open_step(prepared, session, loss=loss)


def _check_interface(original: onnx.ModelProto, rewritten: onnx.ModelProto) -> None:
    for field in ("input", "output"):
        before = [v.SerializeToString() for v in getattr(original.graph, field)]
        after = [v.SerializeToString() for v in getattr(rewritten.graph, field)]
        if before != after:
            raise Rejected(f"the graph {field}s changed")


def _check_counted(found: PreparedModel, before: PreparedModel) -> None:
    """What was counted to the byte must be so now."""
    if found.uncounted:
        raise Rejected(
            f"the new file does not tell the size of {_some(found.uncounted)} when it is read again"
        )
    if found.bounded and not before.bounded:
        raise Rejected(
            f"the new file tells only a bound of the size of {_some(found.bounded)} when it is "
            "read again"
        )


def _some(names: tuple[str, ...]) -> str:
    return f"{counted(len(names), 'tensor')} ({', '.join(names[:_NAMED])})"


def _check_clones_read(graph: Graph) -> None:
    for node, metadata in zip(graph.nodes, graph.metadata, strict=True):
        if metadata.get("memplan.role") not in ("recompute", RELOAD):
            continue
        if not any(graph.tensors[t].readers for t in node.writes):
            raise Rejected(f"nothing reads the recomputed node {node.name}")


def _check_state(planned: Graph, graph: Graph) -> None:
    """What was planned to lie in place must lie there in the new order, with what is recomputed, as
    a check of the file alone (:mod:`memplan.equivalence.in_place`) agrees to."""
    if planned.state is None:
        return
    apart = graph.state.apart if graph.state is not None else {}
    reasons = {graph.tensors[output].name: why for output, why in apart.items()}
    for output in planned.state.in_place:
        name = planned.tensors[output].name
        if graph.state is None or name in reasons:
            why = reasons.get(name, "the new file does not say so")
            raise Rejected(f"'{name}' would not be made in place: {why}")


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
    devices = place(unbound(graph), session.provider)[1]
    for node in graph.nodes:
        source = node.inputs[0] if node.op == "MemcpyToHost" else ABSENT
        if node.op in COPY_OPS and node.id in devices.host_nodes:
            raise Rejected(f"{node.name} would not run on the device")
        if source in devices.host_tensors:
            raise Rejected(f"{node.name} makes a copy of what is on the host already")
