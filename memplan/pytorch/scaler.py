"""The settings of a ``torch.amp.GradScaler``, and the clipping beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memplan.errors import UsageError
from memplan.pytorch.torch_step import TorchStep

_OPTIONS = {
    "scale": "init_scale",
    "growth_factor": "growth_factor",
    "backoff_factor": "backoff_factor",
    "growth_interval": "growth_interval",
    "_growth_tracker": "growth_tracker",
}
"""Torch's names of a scaler's state, and those of :mod:`memplan.autodiff.optimizers.scaling`."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """What is done to gradients before an optimizer sees them.

    ``scale`` are the options of a dynamic loss scale, as it stands now, or a text that says what
    it is; None: there is none.
    ``clip_norm`` bounds the norm of all gradients together, ``clip_value`` every element of them;
    0: no bound.
    """

    scale: Mapping[str, float] | str | None = None
    clip_norm: float = 0.0
    clip_value: float = 0.0


def read_treatment(step: TorchStep) -> Treatment:
    """Read a step's scaler and its clipping.

    Raises:
        UsageError: the scaler is of another kind, a bound is not positive, there are two, or there
            is no optimizer whose gradients they are for.
    """
    scale = _scale(step.scaler)
    norm, value = (_bound(n, getattr(step, n)) for n in ("clip_norm", "clip_value"))
    if norm and value:
        raise UsageError(
            "gradients are clipped by clip_norm or by clip_value", "leave one of them out"
        )
    asked = {"a loss scale": scale, "clip_norm": norm, "clip_value": value}
    found = next((what for what, given in asked.items() if given), None)
    if found is not None and step.optimizer is None:
        raise UsageError(
            f"the step has {found} and no optimizer: without an update the gradients are outputs, "
            "as they are",
            "give the optimizer, too; or unscale and clip in your own update",
        )
    return Treatment(scale, norm, value)


def _scale(scaler: Any) -> Mapping[str, float] | str | None:
    if isinstance(scaler, str | int | float):
        return None if scaler == "none" else str(scaler)
    if scaler is None:
        return None
    if not isinstance(scaler, torch.amp.GradScaler):
        raise UsageError(
            f"the scaler is {type(scaler).__name__}, not a torch.amp.GradScaler",
            "give torch.amp.GradScaler('cpu'), 'dynamic' or a number, or leave it out",
        )
    if not scaler.is_enabled():
        return None
    state = scaler.state_dict()
    return {own: state[name] for name, own in _OPTIONS.items()}


def _bound(name: str, given: Any) -> float:
    if given is None:
        return 0.0
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise UsageError(
            f"{name} is {given!r}, not a positive number", "leave it out, and nothing is clipped"
        )
    return number
