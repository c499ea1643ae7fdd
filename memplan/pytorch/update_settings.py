"""What a step asks for around its optimizer: a loss scale, clipping, moving averages of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from memplan.errors import UsageError
from memplan.ir.roles import Averages
from memplan.pytorch.prepared_step import PreparedStep, first_names, user_name
from memplan.pytorch.torch_step import Ema, TorchStep

_OPTIONS = {
    "scale": "init_scale",
    "growth_factor": "growth_factor",
    "backoff_factor": "backoff_factor",
    "growth_interval": "growth_interval",
    "_growth_tracker": "growth_tracker",
}
"""Torch's names of a scaler's state, and those of :mod:`memplan.autodiff.optimizers.scaling`."""
NO_SCALE = "none"


@dataclass(frozen=True, slots=True)
class Treatment:
    """What is done to gradients before an optimizer sees them.

    ``scale`` is the loss scale, as it stands now and as ``grad --loss-scale`` takes it.
    ``clip_norm`` bounds the norm of all gradients together, ``clip_value`` every element of them;
    0: no bound.
    """

    scale: str = NO_SCALE
    clip_norm: float = 0.0
    clip_value: float = 0.0


def read_treatment(step: TorchStep) -> Treatment:
    """Read a step's scaler and its clipping.

    Raises:
        UsageError: the scaler is of another kind, a bound is not positive, there are two, or there
            is no optimizer whose gradients they are for.
    """
    scale = _scale(step.scaler)
    given = {name: getattr(step, name) for name in ("clip_norm", "clip_value")}
    hint = "leave it out, and nothing is clipped"
    norm, value = (
        0.0 if v is None else _number(n, v, lambda v: 0 < v < math.inf, "a positive number", hint)
        for n, v in given.items()
    )
    if norm and value:
        raise UsageError(
            "gradients are clipped by clip_norm or by clip_value", "leave one of them out"
        )
    asked = {"a loss scale": scale != NO_SCALE, "clip_norm": norm, "clip_value": value}
    found = next((what for what, given in asked.items() if given), None)
    if found is not None and step.optimizer is None:
        raise UsageError(
            f"the step has {found} and no optimizer: without an update the gradients are outputs, "
            "as they are",
            "give the optimizer, too; or unscale and clip in your own update",
        )
    return Treatment(scale, norm, value)


def _scale(scaler: Any) -> str:
    if isinstance(scaler, str | int | float):
        return str(scaler)
    if scaler is None:
        return NO_SCALE
    if not isinstance(scaler, torch.amp.GradScaler):
        raise UsageError(
            f"the scaler is {type(scaler).__name__}, not a torch.amp.GradScaler",
            "give torch.amp.GradScaler('cpu'), 'dynamic' or a number, or leave it out",
        )
    if not scaler.is_enabled():
        return NO_SCALE
    state = scaler.state_dict()
    return f"dynamic{{{','.join(f'{own}={state[name]}' for name, own in _OPTIONS.items())}}}"


def read_averages(
    step: TorchStep, prepared: PreparedStep, trained: Collection[str]
) -> Averages | None:
    """Read a step's averages, under the names of the graph.

    Args:
        step: the step.
        prepared: its model.
        trained: the parameters that are trained.

    Raises:
        UsageError: there is no optimizer, the decay is no share, a module or its parameter is not
            there, or what is to be an average is trained.
    """
    if step.ema is None:
        return None
    ema = step.ema if isinstance(step.ema, Ema) else Ema(step.ema)
    what = "ema: the decay", "a number from 0 to 1", "0.999 is usual"
    decay = _number(what[0], ema.decay, lambda v: 0 <= v <= 1, *what[1:])
    if step.optimizer is None:
        raise UsageError(
            "the step has an average of its weights and no optimizer that renews them",
            "give the optimizer, too; or leave ema out",
        )
    if ema.modules is None:
        return Averages(decay)
    names = {user_name(n): user_name(first) for n, first in first_names(prepared.module).items()}
    parameters = dict(prepared.parameters())
    sources = dict(_pairs(ema.modules, names, parameters))
    for target in sources:
        if target in trained:
            raise UsageError(
                f"'{target}' is to be an average, and the optimizer trains it, too",
                "requires_grad_(False) on it, and leave it out of the optimizer",
            )
    return Averages(decay, sources)


def _pairs(
    modules: Mapping[str, str], names: Mapping[str, str], held: Mapping[str, Tensor]
) -> Iterator[tuple[str, str]]:
    """The tensors of modules, and those of the same names in the modules that they follow."""
    for target, source in modules.items():
        found = [n for n in names if n == target or n.startswith(f"{target}.")]
        if not found:
            raise UsageError(f"ema: the model has no module '{target}'", "names are module paths")
        for name in found:
            if names[name] not in held:
                continue
            other = source + name[len(target) :]
            follows = held.get(names.get(other, ""))
            if follows is None:
                raise UsageError(
                    f"ema: '{name}' has no counterpart '{other}'",
                    f"'{target}' and '{source}' are to be alike",
                )
            if follows.shape != held[names[name]].shape:
                raise UsageError(f"ema: '{name}' and '{other}' differ in shape")
            if names[name] != names[other]:
                yield names[name], names[other]


def _number(what: str, given: Any, fits: Callable[[float], bool], wanted: str, hint: str) -> float:
    """A number that fits.

    Raises:
        UsageError: it does not, or is none.
    """
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not fits(number):
        raise UsageError(f"{what} is {given!r}, not {wanted}", hint)
    return number
