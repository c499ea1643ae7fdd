"""Whether recomputed nodes ran, when they should have, and where."""

from __future__ import annotations

from memplan.ir.graph import Graph
from memplan.runtime.messages import Measurement
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import Timeline, later_runs
from memplan.units import counted


def clone_names(model: OpenModel) -> set[str]:
    """Names of the recomputed nodes."""
    return {
        node.name
        for node, metadata in zip(model.graph.nodes, model.graph.metadata, strict=True)
        if metadata.get("memplan.role") == "recompute"
    }


def order_kept(model: OpenModel, timeline: Timeline, measured: Measurement) -> bool:
    """Whether the runtime ran the file's nodes in the simulated order (bodies left out, and the
    copies that the runtime adds under names of its own)."""
    inside = _inside(model.graph)
    added = set(model.devices.copies) if model.devices else set()
    names = {node.name for node in model.graph.nodes if node.id not in added} - inside
    ran = [node.name for node in measured.nodes if node.name in names]
    nodes = (model.graph.nodes[i] for i in timeline.order)
    planned = [node.name for node in nodes if node.id not in added]
    return ran == [name for name in planned if name not in inside]


def _inside(graph: Graph) -> set[str]:
    """Names of nodes in control-flow bodies: the profiler lists them among the others."""
    return {
        node.name
        for bodies in graph.bodies.values()
        for body in bodies
        if body.graph
        for node in body.graph.nodes
    }


def clone_findings(model: OpenModel, timeline: Timeline, measured: Measurement) -> list[str]:
    """Recomputed nodes that vanished, ran too early, or ran on another provider than the rest.

    A recomputed node is early if it ran before a node that makes something for the first time and
    stands before it in the plan: its result was then there while that node ran.
    """
    clones = clone_names(model)
    place = {node.name: step for step, node in enumerate(measured.nodes)}
    gone = sorted(clones - place.keys())
    early = _early(model, timeline, clones, place)
    usual = {node.name: node.provider for node in measured.nodes}
    of = {
        node.name: metadata.get("memplan.of", "")
        for node, metadata in zip(model.graph.nodes, model.graph.metadata, strict=True)
    }
    moved = sorted(
        name
        for name in clones & place.keys()
        if of[name] in usual and usual[of[name]] != usual[name]
    )
    found = []
    if gone:
        found.append(
            f"{counted(len(gone), 'recomputed node')} did not run: merged or removed by the "
            f"runtime ({gone[0]})"
        )
    if early:
        found.append(
            f"{counted(len(early), 'recomputed node')} ran earlier than planned ({early[0]})"
        )
    if moved:
        found.append(
            f"{counted(len(moved), 'recomputed node')} ran on another provider than what is "
            f"repeated ({moved[0]})"
        )
    return found


def _early(
    model: OpenModel, timeline: Timeline, clones: set[str], place: dict[str, int]
) -> list[str]:
    """Recomputed nodes that ran before the last original node that the plan has before them."""
    early: list[str] = []
    latest = -1
    for index in timeline.order:
        name = model.graph.nodes[index].name
        if name not in place:
            continue
        if name not in clones:
            latest = max(latest, place[name])
        elif place[name] < latest:
            early.append(name)
    return early


def pattern_notes(measured: Measurement, timeline: Timeline, session: str) -> list[str]:
    """What the memory pattern costs from the second run on, and how to do without it."""
    first, second = measured.dynamic_bytes, measured.second_run_dynamic_bytes
    if session != "default" or second <= first:
        return []
    block = later_runs(timeline).block_bytes
    return [
        f"from the second run on a plain session holds a block of {block:,} B throughout (memory "
        f"pattern): {second:,} B dynamic instead of {first:,} B ({100 * (second / first - 1):+.1f}%"
        "); session_options.enable_mem_pattern = False makes every run like the first"
    ]
