"""``profile``: a file → measured seconds per node, beside the estimated ones."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from memplan.analysis import OpenModel, open_model
from memplan.errors import UsageError
from memplan.model.prepare import PreparedModel
from memplan.model.write import write_atomically, write_model
from memplan.ops.cost import device_for, node_costs
from memplan.runtime.inputs import load_inputs, synthesize
from memplan.runtime.measure import RunRequest, saved_inputs
from memplan.runtime.times import RunTimes, device_name, medians, steady, time_nodes

SCHEMA = "memplan.profile/1"
COSTS_SCHEMA = "memplan.costs/1"


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """How to profile: ``inputs`` is an .npz with one array per graph input; ``threads`` 0 leaves
    their number to the runtime."""

    provider: str = "cpu"
    runs: int = 5
    inputs: Path | None = None
    seed: int = 0
    threads: int = 0


@dataclass(frozen=True, slots=True)
class OpTime:
    """All measured nodes of one operator, in seconds per step."""

    op: str
    nodes: int
    measured_seconds: float
    estimated_seconds: float

    @property
    def ratio(self) -> float:
        """Measured over estimated; infinite where the estimate is 0 (views)."""
        if self.estimated_seconds:
            return self.measured_seconds / self.estimated_seconds
        return math.inf if self.measured_seconds else 1.0

    def as_json(self) -> dict[str, object]:
        """All fields; ``ratio`` is null where nothing was estimated."""
        return {
            "op": self.op,
            "nodes": self.nodes,
            "measured_seconds": self.measured_seconds,
            "estimated_seconds": self.estimated_seconds,
            "ratio": self.ratio if math.isfinite(self.ratio) else None,
        }


@dataclass(frozen=True, slots=True)
class Profile:
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
        return sum(row.estimated_seconds for row in self.by_op)

    @property
    def summary(self) -> str:
        """The answer in one line."""
        total = OpTime("", 0, self.measured_seconds, self.estimated_seconds)
        return (
            f"measured {1000 * self.measured_seconds:,.1f} ms in {len(self.seconds)} of "
            f"{self.nodes} nodes, {total.ratio:.2f} × the estimate"
        )

    def costs(self) -> dict[str, object]:
        """The JSON object of a costs file (see :func:`read_costs`)."""
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
        write_atomically(path, costs_text(self).encode(), force=force)

    def as_json(self) -> dict[str, object]:
        """The report as a JSON object."""
        return {
            "schema": SCHEMA,
            "model": {
                "path": str(self.path), "nodes": self.nodes, "fingerprint": self.fingerprint,
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
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Costs:
    """A costs file: seconds by node name, and what they were measured on where it says so."""

    path: Path
    seconds: Mapping[str, float]
    fingerprint: str | None = None
    provider: str | None = None
    dims: Mapping[str, object] | None = None


def profile(
    path: Path, options: ProfileOptions | None = None, *, dims: Mapping[str, int] | None = None
) -> Profile:
    """Measure the seconds that every node of the model in ``path`` takes.

    The model runs in a process of its own, in a tuned session, so that the nodes that run are
    those of the file; it needs its whole peak of memory.

    Args:
        path: an ONNX training graph.
        options: provider, number of runs, inputs.
        dims: values for symbolic dimensions.

    Raises:
        RuntimeUnavailableError: a run failed, or the provider is missing.
        ModelError, UsageError: a bad model, bad inputs or an unknown dimension.
    """
    return profile_open(open_model(path, dims), options or ProfileOptions())


def profile_open(model: OpenModel, options: ProfileOptions) -> Profile:
    """The same for a model that is already open."""
    prepared, graph = model.prepared, model.graph
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
        names = _write_numbered(prepared.proto, copy)
        runs = time_nodes(copy, request, archive, prepared.path.parent)
    kept = steady(runs)
    found = medians(kept)
    seconds = {name: found[number] for number, name in names.items() if number in found}
    others = found.keys() - names.keys()
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
        by_op=_by_op(model, options.provider, seconds),
        assumptions=tuple(_notes(options, runs, kept, len(graph.nodes) - len(seconds))),
    )


def _write_numbered(proto: onnx.ModelProto, path: Path) -> dict[str, str]:
    """Write the model with numbers for node names; node names by number.

    The profiler writes names into its JSON as they are, quotes and all, and tells a node inside a
    control-flow body from one outside by its name alone: those have none here.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    names = {}
    for index, node in enumerate(model.graph.node):
        names[f"n{index}"] = node.name
        node.name = f"n{index}"
        _forget_names(node)
    write_model(model, path)
    return names


def _forget_names(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                inner.name = ""
                _forget_names(inner)


def _by_op(model: OpenModel, provider: str, seconds: Mapping[str, float]) -> tuple[OpTime, ...]:
    """Measured and estimated seconds of the measured nodes, by operator."""
    estimates = node_costs(model.graph, device_for(provider), provider)
    rows: dict[str, OpTime] = {}
    for node in model.graph.nodes:
        if node.name in seconds:
            row = rows.get(node.op, OpTime(node.op, 0, 0.0, 0.0))
            rows[node.op] = OpTime(
                node.op,
                row.nodes + 1,
                row.measured_seconds + seconds[node.name],
                row.estimated_seconds + estimates[node.id],
            )
    # A ratio of tiny times misleads no plan: the worst estimate is off by the most seconds.
    return tuple(
        sorted(rows.values(), key=lambda row: -abs(row.measured_seconds - row.estimated_seconds))
    )


def _notes(
    options: ProfileOptions, runs: Sequence[RunTimes], kept: Sequence[RunTimes], missing: int
) -> list[str]:
    notes = []
    if len(kept) < len(runs):
        notes.append(
            f"{len(runs) - len(kept)} of {len(runs)} runs are left out: further from the median "
            "than 3 times the median distance"
        )
    if len(runs) < options.runs:
        notes.append(f"the profiler recorded {len(runs)} of {options.runs} runs completely")
    if missing:
        notes.append(f"{missing} nodes did not run under their own name and were not measured")
    if options.inputs is None:
        notes.append("inputs are made up; times that depend on values may differ (--inputs)")
    if options.provider == "cuda":
        notes.append(
            "cuda: every launch waits for its kernel, so that a node's time holds some "
            "microseconds of launching"
        )
    return notes


def costs_text(result: Profile) -> str:
    """A costs file's text."""
    return json.dumps(result.costs(), indent=1) + "\n"


def read_costs(path: Path) -> Costs:
    """A costs file: ``{"seconds": {node name: seconds}}``, from :func:`profile` or by hand.

    Raises:
        UsageError: unreadable, or of another shape.
    """
    try:
        data = json.loads(path.read_text())
        seconds = {str(name): float(value) for name, value in data["seconds"].items()}
        for name, value in seconds.items():
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} takes {value} seconds")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{path} is no costs file: {error}", 'expected {"seconds": {"node name": 1.2e-3}}'
        ) from None
    fingerprint, provider, dims = (data.get(k) for k in ("fingerprint", "provider", "dims"))
    return Costs(
        path,
        seconds,
        fingerprint if isinstance(fingerprint, str) else None,
        provider if isinstance(provider, str) else None,
        dims if isinstance(dims, dict) else None,
    )


def check_costs(costs: Costs, model: PreparedModel) -> None:
    """Refuse costs that were measured on another model; those without a fingerprint pass.

    Raises:
        UsageError: the fingerprint differs (the structure, or dimensions).
    """
    if costs.fingerprint is None or costs.fingerprint == model.fingerprint:
        return
    hint = f"measure this one: memplan profile {model.path} -o costs.json"
    if costs.dims is not None and dict(costs.dims) != dict(model.dims):
        raise UsageError(
            f"{costs.path} was measured with {_dims(costs.dims)}, but the model has "
            f"{_dims(model.dims)}",
            hint,
        )
    raise UsageError(
        f"{costs.path} was measured on another model (fingerprint {costs.fingerprint[:12]}, "
        f"{model.path} has {model.fingerprint[:12]})",
        hint,
    )


def _dims(dims: Mapping[str, object]) -> str:
    return ", ".join(f"--dim {name}={size}" for name, size in dims.items()) or "no --dim"
