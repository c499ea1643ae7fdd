"""The memory that a step takes as a trainer runs it: state bound, guard and all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from memplan.errors import MemplanError
from memplan.proto.nodes import is_constant
from memplan.runtime.messages import RunRequest
from memplan.simulate.opened import on_devices, with_state
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import Timeline, simulate
from memplan.training.step_file import opened_step


@dataclass(frozen=True, slots=True)
class Predicted:
    """Bytes of every step, the first and later ones: ``resident`` are weights, state and inputs,
    second buffers among them; ``dynamic`` is what the run takes at its peak beside these."""

    resident_bytes: int
    dynamic_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Both."""
        return self.resident_bytes + self.dynamic_bytes


def predict(
    model: onnx.ModelProto,
    pairs: Mapping[str, str],
    reasons: Mapping[str, str],
    request: RunRequest,
    sizes: Mapping[str, int],
) -> Predicted:
    """Predict the peak of a step in a tuned session.

    Args:
        model: what the session loads.
        pairs: output → the input whose next value it is.
        reasons: outputs that have a second buffer, and why.
        request: the provider.
        sizes: of symbolic dimensions; others are small.

    Raises:
        ModelError: a shape stays unknown.
    """
    timeline = _timeline(model, pairs, reasons, request, sizes)
    return Predicted(timeline.resident_bytes, timeline.dynamic_peak_bytes)


def bytes_between(
    model: onnx.ModelProto,
    pairs: Mapping[str, str],
    reasons: Mapping[str, str],
    request: RunRequest,
) -> list[int] | None:
    """Dynamic bytes that are in use, at most, before each node of the graph; None where the session
    would run other nodes, or a shape is not known. Arguments as of :func:`predict`."""
    try:
        timeline = _timeline(model, pairs, reasons, request, request.dims)
    except MemplanError:
        return None
    count = sum(not is_constant(node) for node in model.graph.node)
    if count != len(timeline.graph.nodes):
        return None
    during = dict(zip(timeline.order, timeline.dynamic.tolist(), strict=True))
    each = [during[node] for node in range(count)]
    return [min(before, after) for before, after in zip([0, *each], each, strict=False)]


def _timeline(
    model: onnx.ModelProto,
    pairs: Mapping[str, str],
    reasons: Mapping[str, str],
    request: RunRequest,
    sizes: Mapping[str, int],
) -> Timeline:
    kind = session_kind("tuned", request.provider)
    found = opened_step(model, Path("step.onnx"), sizes)
    # What is made before the loss has its reason among the others, where it is guarded.
    bound = with_state(found, pairs, reasons, loss_first=False)
    placed = on_devices(bound, kind)
    return simulate(placed.graph, kind, placed.devices)
