"""``profile``: a file → measured seconds per node, beside the estimated ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from memplan.api.source import Model, as_file, shown_path
from memplan.api.summary import Summary
from memplan.ops.cost import device_for
from memplan.options import ProfileOptions
from memplan.planning.costs import COSTS_SCHEMA, OpTime, by_operator, costs_text, total
from memplan.proto.external import settle_links
from memplan.proto.model_checks import require_device
from memplan.proto.write import write_atomically, write_model
from memplan.runtime.inputs import load_inputs, synthesize
from memplan.runtime.measure import saved_inputs
from memplan.runtime.messages import RunRequest, RunTimes
from memplan.runtime.times import device_name, medians, steady, time_nodes
from memplan.shapes.prepare import PreparedModel
from memplan.simulate.opened import OpenModel, open_model
from memplan.simulate.session import session_kind
from memplan.simulate.unrunnable import require_runs
from memplan.units import counted

SCHEMA = "memplan.profile/1"
_INNER = "memplan.inner."


@dataclass(frozen=True, slots=True, repr=False)
class Profile(Summary):
    """The answer of ``profile``.

    ``seconds`` has every node of the file that ran, by name; ``nodes`` says how many there are.
    ``kept_runs`` of ``runs`` runs were not disturbed and count. ``step_seconds`` is the median of
    the whole step under the profiler; ``other_seconds`` of it went to ``other_nodes`` nodes that
    the runtime added (casts, copies). ``by_op`` stands worst estimate first.
    """

    path: Path
    fingerprint: str
    provider: str
    device: Mapping[str, object]
    dims: Mapping[str, int]
    nodes: int
    runs: int
    kept_runs: int
    seconds: Mapping[str, float]
    step_seconds: float
    other_nodes: int
    other_seconds: float
    by_op: tuple[OpTime, ...]
    assumptions: tuple[str, ...]

    @property
    def measured_seconds(self) -> float:
        """Sum over the measured nodes."""
        return sum(self.seconds.values())

    @property
    def estimated_seconds(self) -> float:
        """What the roofline gives for the same nodes."""
        return total(self.by_op).estimated_seconds

    @property
    def summary(self) -> str:
        """The answer in one line."""
        return (
            f"measured {1000 * self.measured_seconds:,.1f} ms in {len(self.seconds)} of "
            f"{counted(self.nodes, 'node')}, {total(self.by_op).ratio:.2f} × the estimate"
        )

    def costs(self) -> dict[str, object]:
        """The JSON object of a costs file (see :func:`memplan.planning.costs.read_costs`)."""
        return {
            "schema": COSTS_SCHEMA,
            "fingerprint": self.fingerprint,
            "provider": self.provider,
            "device": dict(self.device),
            "runs": self.runs,
            "dims": dict(self.dims),
            "seconds": dict(self.seconds),
        }

    def save(self, path: Path, *, force: bool = False) -> None:
        """Write the costs file.

        Raises:
            UsageError: it exists and ``force`` is not given, or it cannot be written.
        """
        write_atomically(path, costs_text(self.costs()).encode(), force=force)

    def as_json(self) -> dict[str, object]:
        """The report as a JSON object."""
        return {
            "schema": SCHEMA,
            "model": {
                "path": str(self.path),
                "nodes": self.nodes,
                "fingerprint": self.fingerprint,
            },
            "provider": self.provider,
            "device": dict(self.device),
            "dims": dict(self.dims),
            "runs": self.runs,
            "kept_runs": self.kept_runs,
            "measured_nodes": len(self.seconds),
            "measured_seconds": self.measured_seconds,
            "estimated_seconds": self.estimated_seconds,
            "step_seconds": self.step_seconds,
            "other_nodes": self.other_nodes,
            "other_seconds": self.other_seconds,
            "by_op": [row.as_json() for row in self.by_op],
            "assumptions": list(self.assumptions),
        }


def profile(
    path: Model, options: ProfileOptions | None = None, *, dims: Mapping[str, int] | None = None
) -> Profile:
    """Measure the seconds that every node of the model in ``path`` takes.

    The model runs in a process of its own, in a tuned session, so that the nodes that run are
    those of the file; it needs its whole peak of memory.

    Args:
        path: an ONNX training graph: a path or a ``ModelProto``.
        options: provider, number of runs, inputs.
        dims: values for symbolic dimensions.

    Raises:
        RuntimeUnavailableError: a run failed, or the provider is missing.
        ModelError, UsageError: a bad model, bad inputs or an unknown dimension.
    """
    options = options or ProfileOptions()
    session_kind("tuned", options.provider)
    with as_file(path) as file:
        return replace(_profile(open_model(file, dims), options), path=shown_path(path))


def _profile(model: OpenModel, options: ProfileOptions) -> Profile:
    """The same for a model that is already open."""
    prepared, graph = model.prepared, model.graph
    require_device(prepared.proto, options.provider)
    require_runs(graph, options.provider)
    feeds = (
        load_inputs(options.inputs, graph)
        if options.inputs is not None
        else synthesize(graph, options.seed)
    )
    request = RunRequest(
        "tuned", options.provider, prepared.dims, options.runs, options.seed, options.threads
    )
    with saved_inputs(feeds) as (folder, archive):
        copy = folder / f"{prepared.path.stem}.onnx"
        names, weights = _write_numbered(prepared, copy)
        runs = time_nodes(copy, request, archive, weights, options.time_limit)
    kept = steady(runs)
    found = medians(kept)
    seconds = {name: found[number] for number, name in names.items() if number in found}
    others = {name for name in found if name not in names and not name.startswith(_INNER)}
    return Profile(
        path=prepared.path,
        fingerprint=prepared.fingerprint,
        provider=options.provider,
        device={"name": device_name(options.provider), "threads": options.threads},
        dims=prepared.dims,
        nodes=len(graph.nodes),
        runs=len(runs),
        kept_runs=len(kept),
        seconds=seconds,
        step_seconds=statistics.median(run.step for run in kept),
        other_nodes=len(others),
        other_seconds=sum(found[name] for name in others),
        by_op=by_operator(graph, device_for(options.provider), options.provider, seconds),
        assumptions=tuple(_notes(options, runs, kept, len(graph.nodes) - len(seconds))),
    )


def _write_numbered(prepared: PreparedModel, path: Path) -> tuple[dict[str, str], Path]:
    """Write the model with numbers for node names; node names by number, and the model beside which
    its external data lies.

    The profiler writes names into its JSON as they are, quotes and all, and tells a node inside a
    control-flow body from one outside by its name alone. Its time is in that of the node around
    it.
    """
    model = onnx.ModelProto()
    model.CopyFrom(prepared.proto)
    names = {}
    for index, node in enumerate(model.graph.node):
        names[f"n{index}"] = node.name
        node.name = f"n{index}"
    for index, node in enumerate(_inner_nodes(model.graph)):
        node.name = f"{_INNER}{index}"
    weights = settle_links(model, prepared.beside)
    write_model(model, path)
    return names, weights


def _inner_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes in control-flow bodies, at any depth."""
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from body.node
                yield from _inner_nodes(body)


def _notes(
    options: ProfileOptions, runs: Sequence[RunTimes], kept: Sequence[RunTimes], missing: int
) -> list[str]:
    notes = []
    if len(kept) < len(runs):
        notes.append(
            f"left out: {len(runs) - len(kept)} of {len(runs)} runs, further from the median "
            "than 3 times the median distance, and than 5%"
        )
    if len(runs) < options.runs:
        notes.append(f"the profiler recorded {len(runs)} of {options.runs} runs completely")
    if missing:
        notes.append(
            f"not measured: {counted(missing, 'node')}, which did not run under the file's names"
        )
    if options.inputs is None:
        notes.append("inputs are generated; times that depend on values may differ (--inputs)")
    if options.provider == "cuda":
        notes.append(
            "cuda: every launch waits for its kernel, so that a node's time holds some "
            "microseconds of launching"
        )
    return notes
