"""Bytes in use at every step, and the peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from memplan.ir.graph import Graph, Node
from memplan.ops.book import CONTROL_FLOW_OPS
from memplan.ops.instance import in_graph
from memplan.ops.kernels import COPY_OPS
from memplan.ops.memory import semantics
from memplan.ops.workspace import never_takes_scratch, workspace_bytes
from memplan.simulate.allocation import Allocation, Buffer, allocate, is_resident, off_device
from memplan.simulate.body_memory import BodyPeak, Inside, body_bytes, is_fed_tensors
from memplan.simulate.devices import Devices
from memplan.simulate.pattern import pattern_block
from memplan.simulate.run_order import execution_order, placed_order
from memplan.simulate.session import SessionKind

Bytes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A simulated run. Arrays have one entry per step, in bytes.

    ``dynamic`` counts every tensor buffer in use when the node of that step ends, before its dead
    inputs are released: what ONNX Runtime's profiler reports as requested in use, less what was
    there before the run. ``workspace`` is scratch that the kernel takes and gives back within the
    step. ``inside`` are the bytes of both that lie in bodies of control-flow nodes.
    ``resident_bytes`` are initializers and graph inputs. With ``devices``, all of these are bytes
    on the device, and ``host`` are the dynamic bytes that lie on the host, as tensors ``away`` do.
    Without, all tensors count as on the device but for those that the graph itself copies to the
    host. ``assumptions`` say how it was counted; ``bounds`` are those for which figures may be too
    high or too low.
    """

    graph: Graph
    session: SessionKind
    allocation: Allocation
    resident_bytes: int
    dynamic: Bytes
    workspace: Bytes
    inside: Inside
    assumptions: tuple[str, ...]
    bounds: tuple[str, ...] = ()
    devices: Devices | None = None
    host: Bytes | None = None
    away: frozenset[int] = frozenset()

    @property
    def order(self) -> tuple[int, ...]:
        """Node ids by step."""
        return self.allocation.order

    @property
    def dynamic_peak_bytes(self) -> int:
        """Largest number of tensor bytes in use at any step."""
        return int(self.dynamic.max(initial=0))

    @property
    def peak_step(self) -> int:
        """First step at which ``dynamic`` is largest."""
        return int(self.dynamic.argmax()) if len(self.dynamic) else 0

    @property
    def peak_bytes(self) -> int:
        """Resident bytes and the dynamic peak."""
        return self.resident_bytes + self.dynamic_peak_bytes

    @property
    def peak_with_workspace_bytes(self) -> int:
        """The same with kernel workspace: what a budget is held against."""
        return self.resident_bytes + int((self.dynamic + self.workspace).max(initial=0))

    @property
    def lifted(self) -> bool:
        """Whether workspace lifts the peak above that of tensors."""
        return self.peak_with_workspace_bytes > self.peak_bytes

    @property
    def peak_with_workspace_step(self) -> int:
        """First step at which that peak is reached: :attr:`peak_step` unless workspace lifts it."""
        return int((self.dynamic + self.workspace).argmax()) if self.lifted else self.peak_step

    def live_at(self, step: int) -> list[Buffer]:
        """Buffers in use at ``step``, largest first."""
        live = [
            b
            for b in self.allocation.buffers
            if b.birth <= step < b.death and b.nbytes and b.root not in self.away
        ]
        return sorted(live, key=lambda buffer: (-buffer.nbytes, buffer.birth, buffer.id))


@dataclass(frozen=True, slots=True)
class LaterRuns:
    """Peaks in bytes, resident ones included; ``block_bytes`` is what is held all the time."""

    block_bytes: int
    dynamic_peak_bytes: int
    peak_bytes: int
    peak_with_workspace_bytes: int


def simulate(graph: Graph, session: SessionKind, devices: Devices | None = None) -> Timeline:
    """What the runtime will do with ``graph`` in a session of the given kind.

    Args:
        graph: a graph; with ``devices``, as :func:`memplan.simulate.devices.place` gives it.
        session: how it is loaded.
        devices: where everything is; None: all of it in one memory.
    """
    if devices is None:
        order = execution_order(graph, session)
    else:
        order = placed_order(graph, session, devices)
    allocation = allocate(graph, order, session, devices)
    inside = bodies_of(graph, session)
    workspace, assumptions = node_workspace(graph, session, inside, devices)
    steps = np.asarray(allocation.order, dtype=np.int64)
    away = off_device(graph, session, devices)
    dynamic = live_bytes(allocation, away)
    for node, nbytes in inside.nbytes.items():
        dynamic[allocation.step_of[node]] += nbytes
    return Timeline(
        graph=graph,
        session=session,
        allocation=allocation,
        resident_bytes=resident_bytes(graph, away),
        dynamic=dynamic,
        workspace=workspace[steps] if len(steps) else workspace,
        inside=inside,
        assumptions=(*assumptions, *inside.assumptions),
        bounds=(*assumptions, *inside.bounds),
        devices=devices,
        host=live_bytes(allocation) - live_bytes(allocation, away) if away else None,
        away=away,
    )


def bodies_of(graph: Graph, session: SessionKind) -> Inside:
    """Bytes inside the control-flow nodes of ``graph``: every body is simulated, once.

    Ask a :class:`Timeline` for its ``inside`` where there is one: bodies nest, and whoever
    simulates each of them twice does so 2^depth times for the innermost.
    """

    def peaks(body: Graph, kind: SessionKind) -> tuple[BodyPeak, BodyPeak]:
        timeline = simulate(body, kind)
        total = timeline.peak_with_workspace_bytes - timeline.resident_bytes
        first = BodyPeak(timeline.dynamic_peak_bytes, total)
        if not kind.patterns:
            return first, first
        later = later_runs(timeline)
        total = later.peak_with_workspace_bytes - timeline.resident_bytes
        return first, BodyPeak(later.dynamic_peak_bytes, total)

    return body_bytes(graph, session, peaks)


def later_runs(timeline: Timeline) -> LaterRuns:
    """What every run after the first one of the same session needs."""
    graph, inner, allocation = timeline.graph, timeline.inside, timeline.allocation
    kept = [b for b in allocation.buffers if b.root not in timeline.away]
    block, dynamic = 0, live_bytes(allocation, timeline.away)
    if is_fed_tensors(graph):
        kept = [replace(b, id=index) for index, b in enumerate(kept)]
        block = pattern_block(replace(allocation, buffers=tuple(kept))).block_bytes
        dynamic[:] = block
        for buffer in kept:
            if buffer.is_output:
                dynamic[buffer.birth :] += buffer.nbytes
    workspace = timeline.workspace.copy()
    for node, nbytes in inner.later.items():
        step = allocation.step_of[node]
        dynamic[step] += nbytes
        workspace[step] = inner.later_closing[node]
    highest = int(dynamic.max(initial=0))
    resident = timeline.resident_bytes
    return LaterRuns(
        block_bytes=block,
        dynamic_peak_bytes=highest,
        peak_bytes=resident + highest,
        peak_with_workspace_bytes=resident + int((dynamic + workspace).max(initial=0)),
    )


def resident_bytes(graph: Graph, away: frozenset[int] = frozenset()) -> int:
    """Initializers, graph inputs and second buffers of state, without tensors that are ``away``."""
    second = graph.state.second_bytes if graph.state else 0
    return second + sum(
        tensor.nbytes for tensor in graph.tensors if is_resident(tensor) and tensor.id not in away
    )


def removable_casts(graph: Graph) -> tuple[str, ...]:
    """Casts back from a wider type: the runtime removes such pairs whenever it loads a model."""
    pairs = []
    for node in graph.nodes:
        source = graph.tensors[node.inputs[0]] if node.key == ":Cast" else None
        if source is None or source.producer < 0:
            continue
        first = graph.nodes[source.producer]
        if first.key == ":Cast" and graph.tensors[first.inputs[0]].nbytes <= source.nbytes:
            pairs.append(node.name)
    return tuple(pairs)


def live_bytes(allocation: Allocation, away: frozenset[int] = frozenset()) -> Bytes:
    """Sum of the live buffers at every step, without those of tensors that are ``away``."""
    change = np.zeros(len(allocation.order) + 1, dtype=np.int64)
    for buffer in allocation.buffers:
        if buffer.root in away:
            continue
        change[buffer.birth] += buffer.nbytes
        change[buffer.death] -= buffer.nbytes
    return np.cumsum(change)[:-1]


def node_workspace(
    graph: Graph, session: SessionKind, inside: Inside, devices: Devices | None = None
) -> tuple[Bytes, list[str]]:
    """Scratch bytes per node id, and what had to be assumed for operators not probed.

    Control-flow nodes take what their bodies, which are ``inside``, close with. What ``devices``
    has on the host takes nothing of the device; nor do copies.
    """
    away = devices.host_nodes if devices else frozenset()
    rules = semantics(session.provider)
    scratch = np.zeros(len(graph.nodes), dtype=np.int64)
    unknown: dict[str, int] = {}
    unmodelled: dict[str, int] = {}
    for node in graph.nodes:
        if node.key in CONTROL_FLOW_OPS or node.id in away or node.op in COPY_OPS:
            continue
        found = _scratch(graph, node, session)
        if found is None and node.key in rules.known:
            unmodelled[node.op] = unmodelled.get(node.op, 0) + 1
        elif found is None:
            unknown[node.key.lstrip(":")] = unknown.get(node.key.lstrip(":"), 0) + 1
        scratch[node.id] = found or 0
    for index, nbytes in inside.closing.items():
        scratch[index] = nbytes
    return scratch, [
        *_unknown_notes(unknown, session.provider),
        *_unmodelled_notes(unmodelled, session.provider),
    ]


def _scratch(graph: Graph, node: Node, session: SessionKind) -> int | None:
    if never_takes_scratch(node.key, session.provider):
        return 0
    instance = in_graph(graph, node, threads=session.threads)
    return workspace_bytes(node.key, instance, session.provider)


def _unmodelled_notes(unmodelled: Mapping[str, int], provider: str) -> list[str]:
    """Kernels that no formula follows; on CUDA also those of which only what they take through the
    provider's allocator could be seen."""
    if not unmodelled:
        return []
    names = ", ".join(f"{op} ×{count}" for op, count in sorted(unmodelled.items()))
    return [f"{provider}: workspace not known, counted as 0: {names}"]


def _unknown_notes(unknown: Mapping[str, int], provider: str) -> list[str]:
    if not unknown:
        return []
    names = ", ".join(f"{op} ×{count}" for op, count in sorted(unknown.items()))
    return [
        f"operators never probed on {provider}: {names}: every output gets its own buffer, "
        "workspace unknown (counted as 0)"
    ]
