"""The memory that a step takes as a trainer runs it: state bound, guard and all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from memplan.runtime.messages import RunRequest
from memplan.shapes.prepare import prepare
from memplan.simulate.opened import on_devices, opened, with_state
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate
from memplan.training.placing import Placing
from memplan.training.step_file import StepFile


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
    step: StepFile, placing: Placing, request: RunRequest, sizes: Mapping[str, int]
) -> Predicted:
    """Predict the peak of a step in a tuned session.

    Args:
        step: the step.
        placing: where its new values go.
        request: the provider.
        sizes: of symbolic dimensions that a batch decides.

    Raises:
        ModelError: a shape stays unknown.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(placing.model)
    kind = session_kind("tuned", request.provider)
    model = opened(prepare(copy, step.path, {**step.dims, **sizes}, partly=True))
    pairs = {**placing.in_place, **placing.second}
    placed = on_devices(with_state(model, pairs, placing.reasons), kind)
    timeline = simulate(placed.graph, kind, placed.devices)
    return Predicted(timeline.resident_bytes, timeline.dynamic_peak_bytes)
