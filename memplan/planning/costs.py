"""Seconds per node that a plan counts with: measured ones from a file, the rest estimated."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from memplan.errors import UsageError
from memplan.ir.graph import Graph
from memplan.ops.cost import Device, node_costs
from memplan.ops.kernels import COPY_OPS
from memplan.proto.paths import MOST_TEXT, file_problem, read_bytes
from memplan.shapes.prepare import PreparedModel

COSTS_SCHEMA = "memplan.costs/1"


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
class Costs:
    """A costs file: seconds by node name, and what they were measured on where it says so."""

    path: Path
    seconds: Mapping[str, float]
    fingerprint: str | None = None
    provider: str | None = None
    dims: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """What a plan takes for the seconds of nodes.

    ``seconds`` are measured, by node name. The others are the estimates of ``device``, times the
    ratio that the measured nodes of their operator have (``scale``), or all of them (``rest``):
    beside measured seconds, a roofline that is wrong by a factor would make them look too cheap
    or too dear. ``source`` is ``estimate`` or the name of the costs file.
    """

    source: str
    device: Device
    provider: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    scale: Mapping[str, float] = field(default_factory=dict)
    rest: float = 1.0

    def estimate(self, graph: Graph) -> list[float]:
        """Seconds of every node by id, as if none was measured."""
        plain = node_costs(graph, self.device, self.provider)
        return [plain[node.id] * self._scale(node.op) for node in graph.nodes]

    def _scale(self, op: str) -> float:
        """What measured kernels say of an estimate. They say nothing of the link to the host."""
        return self.scale.get(op, 1.0 if op in COPY_OPS else self.rest)

    def measured_nodes(self, graph: Graph) -> int:
        """How many nodes of the graph have measured seconds."""
        return sum(node.name in self.seconds for node in graph.nodes)


def measured_costs(
    source: str, graph: Graph, device: Device, provider: str, seconds: Mapping[str, float]
) -> NodeCosts:
    """Costs from seconds that were measured on ``graph``, with the estimates scaled to them."""
    rows = by_operator(graph, device, provider, seconds)
    whole = total(rows)
    # Views are estimated at 0: there is nothing to scale.
    scale = {row.op: row.ratio for row in rows if row.estimated_seconds}
    rest = whole.ratio if whole.estimated_seconds else 1.0
    return NodeCosts(source, device, provider, seconds, scale, rest)


def by_operator(
    graph: Graph, device: Device, provider: str, seconds: Mapping[str, float]
) -> tuple[OpTime, ...]:
    """Measured and estimated seconds of the measured nodes, by operator, worst estimate first."""
    estimates = node_costs(graph, device, provider)
    rows: dict[str, OpTime] = {}
    for node in graph.nodes:
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


def total(rows: Iterable[OpTime]) -> OpTime:
    """The sum of all rows."""
    rows = tuple(rows)
    return OpTime(
        "total",
        sum(row.nodes for row in rows),
        sum(row.measured_seconds for row in rows),
        sum(row.estimated_seconds for row in rows),
    )


def costs_text(costs: Mapping[str, object]) -> str:
    """A costs file's text."""
    return json.dumps(costs, indent=1) + "\n"


def read_costs(path: Path) -> Costs:
    """A costs file: ``{"seconds": {node name: seconds}}``, from ``profile`` or by hand.

    Raises:
        UsageError: unreadable, or of another shape.
    """
    try:
        data = json.loads(read_bytes(path, MOST_TEXT))
        seconds = {str(name): float(value) for name, value in data["seconds"].items()}
        for name, value in seconds.items():
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} takes {value} seconds")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {file_problem(error)}") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a costs file: {error}", 'expected {"seconds": {"node name": 1.2e-3}}'
        ) from None
    fingerprint, provider, dims = (data.get(k) for k in ("fingerprint", "provider", "dims"))
    return Costs(
        path,
        seconds,
        fingerprint if isinstance(fingerprint, str) else None,
        provider if isinstance(provider, str) else None,
        dims if isinstance(dims, dict) else None,
    )


def check_costs(costs: Costs, model: PreparedModel, provider: str) -> None:
    """Refuse costs that were measured on another model or provider.

    Costs that name neither, written by hand, pass.

    Raises:
        UsageError: the provider differs, or the fingerprint does: another structure, or other
            dimensions.
    """
    if costs.provider not in (None, provider):
        raise UsageError(
            f"{costs.path} was measured on {costs.provider}, the plan is for {provider}",
            f"plan with --provider {costs.provider}, or measure on {provider}",
        )
    if costs.fingerprint is None or costs.fingerprint == model.fingerprint:
        return
    hint = f"measure this one: memplan profile {model.path} -o FILE"
    if costs.dims is not None and dict(costs.dims) != dict(model.dims):
        raise UsageError(
            f"{costs.path} was measured with {_dims(costs.dims)}, this run has {_dims(model.dims)}",
            hint,
        )
    raise UsageError(
        f"{costs.path} was measured on another model: its fingerprint is "
        f"{costs.fingerprint[:12]}, that of {model.path} is {model.fingerprint[:12]}",
        hint,
    )


def _dims(dims: Mapping[str, object]) -> str:
    return ", ".join(f"--dim {name}={size}" for name, size in dims.items()) or "no --dim"
