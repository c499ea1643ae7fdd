"""Models run by the CUDA provider, and held step by step against their simulation."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from memplan.ops.kernels import COPY_OPS
from memplan.planning.plain.as_loaded import as_loaded
from memplan.runtime.inputs import synthesize
from memplan.runtime.measure import measure, saved_inputs
from memplan.runtime.messages import Measurement, RunRequest
from memplan.simulate.opened import OpenModel, on_devices, open_model
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import Timeline, later_runs, simulate


@dataclass(frozen=True)
class Ran:
    """One model, run and simulated."""

    model: OpenModel
    timeline: Timeline
    measured: Measurement


def run(path: Path, session: str = "tuned", dims: Mapping[str, int] | None = None) -> Ran:
    kind = session_kind(session, "cuda")
    opened = open_model(path, dims)
    with saved_inputs(synthesize(opened.graph)) as (folder, archive):
        request = RunRequest(session, "cuda", dims or {}, runs=1)
        measured = measure(path, request, archive, folder / "outputs.npz")
    if session == "default":
        loaded = as_loaded(opened, kind)
        opened, kind = loaded.model, loaded.kind
    placed = on_devices(opened, kind)
    return Ran(placed, simulate(placed.graph, kind, placed.devices), measured)


def check(ran: Ran) -> None:
    """Order, provider of every node, bytes on the device at every step, later runs, resident."""
    graph, timeline, devices = ran.model.graph, ran.timeline, ran.model.devices
    assert devices is not None
    planned = [graph.nodes[index] for index in timeline.order]
    assert [n.op if n.op in COPY_OPS else n.name for n in planned] == [
        n.op if n.op in COPY_OPS else n.name for n in ran.measured.nodes
    ]
    on_host = [n.provider == "CPUExecutionProvider" for n in ran.measured.nodes]
    assert [n.id in devices.host_nodes for n in planned] == on_host
    base = ran.measured.base_bytes
    seen = [
        (step, node.nbytes - base)
        for step, node in enumerate(ran.measured.nodes)
        if not on_host[step]
    ]
    assert [(step, int(timeline.dynamic[step])) for step, _ in seen] == seen
    assert timeline.dynamic_peak_bytes == ran.measured.dynamic_bytes
    later = timeline.dynamic_peak_bytes
    if ran.timeline.session.reuse:
        later = later_runs(timeline).dynamic_peak_bytes
    assert later == ran.measured.second_run_dynamic_bytes
    assert timeline.resident_bytes == base
