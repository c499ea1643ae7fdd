"""A copy of the user's optimizer, which takes a step with given gradients.

What unscales, skips and changes the scale is PyTorch's own ``GradScaler``, not a rule of memplan's.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from memplan.pytorch.torch_optimizer import read_optimizer
from memplan.pytorch.update_settings import Treatment


class Twin:
    """An optimizer like the user's, or several, over parameters of its own, and a scaler."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        names: Mapping[int, str],
        treatment: Treatment,
        scale: Mapping[str, float] | None = None,
    ) -> None:
        """Copy optimizers with their state.

        Args:
            optimizer: these.
            names: those of their parameters, by ``id``.
            treatment: how gradients are clipped.
            scale: the options of a loss scale, ``init_scale`` alone of one that stays; None: there
                is none.
        """
        several = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        self.optimizers: list[Any] = copy.deepcopy(several)
        for each in self.optimizers:
            # A scheduler leaves a step of its own in the instance, bound to the original.
            vars(each).pop("step", None)
        self.treatment = treatment
        self.scaler, self.constant = None, None  # the second is a scale that stays
        if scale is not None:
            self.scaler = _scaler(scale)
            self.constant = None if "growth_factor" in scale else float(scale["init_scale"])
        own, ours = _parameters(several), _parameters(self.optimizers)
        pairs = zip(own, ours, strict=True)
        self.parameters: dict[str, nn.Parameter] = {names[id(p)]: copied for p, copied in pairs}
        self.seconds = 0.0

    @property
    def state_bytes(self) -> int:
        """Of all state tensors."""
        states = [s for each in self.optimizers for s in each.state.values()]
        held = [value for entries in states for value in entries.values()]
        return sum(v.numel() * v.element_size() for v in held if isinstance(v, Tensor))

    def step(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Take a step; parameters and state afterwards, by their names in the graph.

        Args:
            gradients: of the scaled loss, by parameter; they may be written over.
        """
        begin = time.perf_counter()
        for name, gradient in gradients.items():
            parameter = self.parameters[name]
            parameter.grad = gradient.to(parameter.dtype).reshape(parameter.shape)
        held = {id(self.parameters[name]) for name in gradients}
        several = [o for o in self.optimizers if held & {id(p) for p in _parameters([o])}]
        if self.scaler is not None:
            for each in several:
                self.scaler.unscale_(each)
        clipped = [self.parameters[name] for name in gradients]
        if self.treatment.clip_norm:
            nn.utils.clip_grad_norm_(clipped, self.treatment.clip_norm)
        if self.treatment.clip_value:
            nn.utils.clip_grad_value_(clipped, self.treatment.clip_value)
        for each in several:
            if self.scaler is None:
                each.step()
            else:
                self.scaler.step(each)
        if self.scaler is not None:
            self.scaler.update(self.constant)
        self.seconds = time.perf_counter() - begin
        for parameter in self.parameters.values():
            parameter.grad = None
        for name, parameter in self.parameters.items():
            if name not in gradients:
                for each in self.optimizers:
                    each.state.pop(parameter, None)  # it has not taken this step
        names = {id(p): name for name, p in self.parameters.items()}
        values: dict[str, Tensor] = {n: self.parameters[n].detach() for n in gradients}
        for each in self.optimizers:  # one by one: they may have taken different numbers of steps
            state: Mapping[str, Any] = read_optimizer(each, names).state
            values |= {n: t for n, t in state.items() if isinstance(t, Tensor)}
        return values

    @property
    def taken(self) -> dict[int, int]:
        """How many steps each optimizer has taken, where it counts them."""
        found = {}
        for number, each in enumerate(self.optimizers):
            counts = [int(s["step"]) for s in each.state.values() if "step" in s]
            if counts:
                found[number] = max(counts)
        return found

    @property
    def scaled_by(self) -> tuple[float, int]:
        """The scale of the next step, and the steps since it changed without one that was
        skipped."""
        if self.scaler is None:
            return 1.0, 0
        return float(self.scaler.get_scale()), int(self.scaler.state_dict()["_growth_tracker"])


class _Scaler(torch.amp.GradScaler):
    """Also of parameters in float16, which PyTorch's does not unscale."""

    def _unscale_grads_(
        self, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


def _scaler(options: Mapping[str, float]) -> _Scaler:
    """PyTorch's own, where these options put it."""
    given = {name: value for name, value in options.items() if name != "growth_tracker"}
    scaler = _Scaler("cpu", **given)
    scaler.load_state_dict(
        {**scaler.state_dict(), "_growth_tracker": int(options.get("growth_tracker", 0))}
    )
    scaler.scale(torch.ones(()))  # makes its tensors
    return scaler


def _parameters(optimizers: Sequence[Any]) -> list[nn.Parameter]:
    return [p for each in optimizers for group in each.param_groups for p in group["params"]]
