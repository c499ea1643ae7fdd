"""Checkpoints for a training graph in memory: ``grad --checkpoints``.

What gradient-checkpointing for TensorFlow decides while it builds the backward part is decided here
on the finished graph, by the strategies of ``rewrite`` that bear its names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from memplan.api.analysis import analyze_open
from memplan.ops.cost import device_for
from memplan.planning.apply import apply_plan
from memplan.planning.costs import NodeCosts
from memplan.planning.planner import make_plan, plan_request, prepare
from memplan.planning.verify import ensure
from memplan.shapes.prepare import prepare as prepare_model
from memplan.simulate.opened import opened
from memplan.simulate.session import session_kind
from memplan.solver.strategies.builtin import parse_strategy

TIME_LIMIT = 10.0
"""Seconds, for strategies that look at a clock; those of checkpoints do not search."""
KINDS = ("memory", "speed", "collection")
Checkpoints = str | Sequence[str]


def with_checkpoints(
    model: onnx.ModelProto,
    path: Path,
    checkpoints: Checkpoints,
    dims: Mapping[str, int],
    loss: str | None,
) -> onnx.ModelProto:
    """``model`` with everything but the checkpoints recomputed in the backward part.

    Args:
        model: a training graph.
        path: what its external data is relative to.
        checkpoints: ``memory``, ``speed``, ``collection``, or names of tensors that stay, in which
            ``*`` stands for any letters; a text has ``+`` between them.
        dims: values for symbolic dimensions, which a plan depends on.
        loss: the loss, if it is known.

    Raises:
        InfeasibleError: the graph would need more memory than without checkpoints.
        ModelError: a symbolic dimension is not bound.
        UsageError: there is no tensor of a name, no mark, or no bottleneck.
    """
    strategy = parse_strategy(_strategy(checkpoints))
    source = opened(prepare_model(model, path, dims), loss)
    session = session_kind("tuned", "cpu")
    budget = analyze_open(source, session).timeline.peak_with_workspace_bytes
    costs = NodeCosts("estimate", device_for("cpu"), "cpu")
    request = plan_request(source, session, costs, budget)
    plan = make_plan(prepare(request), strategy, TIME_LIMIT)
    result = apply_plan(source.prepared.proto, plan, source.prepared.dims)
    ensure(source.prepared.proto, result, plan, source.prepared.types, session)
    return result


def _strategy(checkpoints: Checkpoints) -> str:
    if isinstance(checkpoints, str) and checkpoints in KINDS:
        return checkpoints
    names = checkpoints if isinstance(checkpoints, str) else "+".join(checkpoints)
    return f"list{{names={names}}}"
