"""Original and rewritten graph in both kinds of session: peaks, times, equality."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.gpu.bench import Bench, GraphFile
    from memplan.runtime.messages import Measurement

Rows = Iterator[tuple[dict[str, Any], Callable[[], Mapping[str, Any]]]]


def run(
    bench: Bench, path: Path, dims: Mapping[str, int], session: str, folder: Path, name: str
) -> Measurement:
    """Measure one file on inputs that are the same for every file of equal inputs."""
    import numpy as np

    from memplan.runtime.inputs import synthesize
    from memplan.runtime.measure import measure
    from memplan.runtime.messages import RunRequest
    from memplan.simulate.opened import open_model

    inputs = folder / "inputs.npz"
    feeds = synthesize(open_model(path, dims).graph)
    np.savez(inputs, **feeds)  # type: ignore[arg-type]
    request = RunRequest(session, bench.provider, dims, bench.options.runs)
    return measure(path, request, inputs, folder / f"{name}.npz")


def figures(
    bench: Bench,
    graph: GraphFile,
    batch: int,
    session: str,
    measured: Measurement,
    path: Path | None = None,
) -> dict[str, Any]:
    """What was measured of a file, and what memplan predicts for it.

    ``path`` is what memplan made of the graph: there the runtime finds nothing left to fuse.
    """
    from memplan.api.analysis import analyze_open, analyze_session
    from memplan.errors import MemplanError
    from memplan.simulate.opened import on_devices, open_model
    from memplan.simulate.session import session_kind

    kind = session_kind(session, bench.provider)
    model = open_model(path or graph.path, graph.dims(batch))
    try:
        if session == "default" and path is None:
            found = analyze_session(model, kind)
        else:
            found = analyze_open(on_devices(model, kind), kind)
    except MemplanError as error:
        return {"error": error.message}
    timeline = found.timeline
    cuda = measured.cuda
    return {
        "predicted_peak_bytes": timeline.peak_bytes,
        "predicted_with_workspace_bytes": timeline.peak_with_workspace_bytes,
        "measured_peak_bytes": timeline.resident_bytes + measured.dynamic_bytes,
        "resident_bytes": timeline.resident_bytes,
        "dynamic_bytes": measured.dynamic_bytes,
        "later_dynamic_bytes": measured.second_run_dynamic_bytes,
        "counted_peak_bytes": cuda.counted_peak_bytes if cuda else None,
        "arena_bytes": measured.arena_bytes,
        "tight_arena_bytes": cuda.tight_arena_bytes if cuda else None,
        "device_taken_bytes": cuda.device_taken_bytes if cuda else None,
        "step_seconds": measured.seconds_median,
        "nodes_on_cpu": sum(n.provider == "CPUExecutionProvider" for n in measured.nodes),
    }


def fixed(graph: GraphFile, batch: int, folder: Path) -> GraphFile:
    """The graph with its batch bound in the file; the same where it was fixed before."""
    from dataclasses import replace

    from memplan.proto.write import write_model
    from memplan.shapes.prepare import load

    if graph.dim is None:
        return graph
    target = folder / f"{graph.path.stem}_bs{batch}.onnx"
    write_model(load(graph.path, graph.dims(batch)).bound, target)
    return replace(graph, path=target, dim=None, batch=batch)


def session_rows(bench: Bench, graph: GraphFile, batch: int, folder: Path) -> Rows:
    """The original, then every share, in every kind of session."""
    for session in bench.options.session:
        key = {"kind": "session", "net": graph.family, "batch": batch, "session": session}
        original: dict[str, Any] = {}
        first = {**key, "share": "original"}
        yield first, lambda s=session, o=original: _original(bench, graph, batch, s, folder, o)
        for share in bench.options.share:
            yield (
                {**key, "share": share},
                lambda s=session, o=original, p=share: _rewritten(
                    bench, graph, batch, s, p, folder, o
                ),
            )


def _original(
    bench: Bench, graph: GraphFile, batch: int, session: str, folder: Path, kept: dict[str, Any]
) -> dict[str, Any]:
    dims = graph.dims(batch)
    measured = run(bench, graph.path, dims, session, folder, f"original_{session}")
    kept["measured"] = measured
    kept["figures"] = figures(bench, graph, batch, session, measured)
    return {"graph": graph.path.name, **kept["figures"]}


def _rewritten(
    bench: Bench,
    graph: GraphFile,
    batch: int,
    session: str,
    share: str,
    folder: Path,
    kept: dict[str, Any],
) -> dict[str, Any]:
    """Rewrite to a share of the original's measured dynamic peak in this kind of session."""
    import time

    from memplan.api.rewrite.rewriting import RewriteOptions, rewrite
    from memplan.runtime.compare_outputs import compare_outputs
    from memplan.units import parse_size

    if not kept:
        _original(bench, graph, batch, session, folder, kept)
    before = kept["figures"]
    part = float(share.rstrip("%")) / 100
    budget = before["resident_bytes"] + int(part * before["dynamic_bytes"])
    target = folder / f"{session}_{share.rstrip('%')}.onnx"
    options = RewriteOptions(
        parse_size(str(budget)),
        session=session,
        provider=bench.provider,
        time_limit=bench.options.plan_seconds,
    )
    begun = time.perf_counter()
    result = rewrite(graph.path, options, target, dims=graph.dims(batch), force=True)
    planned = time.perf_counter() - begun
    after = run(bench, target, graph.dims(batch), session, folder, "rewritten")
    reference = kept["measured"]
    equal = compare_outputs(
        folder / f"original_{session}.npz", folder / "rewritten.npz", after.output_names
    )
    found = figures(bench, graph, batch, session, after, target)
    return {
        **found,
        "budget_bytes": budget,
        "within_budget": found["measured_peak_bytes"] <= budget,
        "recomputed_nodes": result.plan.clones,
        "extra_cost_percent": 100 * result.plan.extra_cost_fraction,
        "time_ratio": after.seconds_median / reference.seconds_median,
        "equal": "bitwise" if equal.bitwise else f"relative difference {equal.max_rel_diff:.1e}",
        "plan_seconds": round(planned, 2),
    }
