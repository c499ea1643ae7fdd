"""A copy of the user's optimizer, which takes a step with given gradients."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from memplan.pytorch.scaler import Treatment
from memplan.pytorch.torch_optimizer import read_optimizer


class Twin:
    """An optimizer like the user's, or several, over parameters of its own.

    The scale of a loss is that of the caller, for each step; clipping is the step's.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        names: Mapping[int, str],
        treatment: Treatment,
    ) -> None:
        """Copy optimizers with their state; ``names`` are those of its parameters, by ``id``."""
        several = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        self.optimizers: list[Any] = copy.deepcopy(several)
        for each in self.optimizers:
            # A scheduler leaves a step of its own in the instance, bound to the original.
            vars(each).pop("step", None)
        self.treatment = treatment
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

    def step(
        self, gradients: Mapping[str, Tensor], trained: Sequence[str], scale: float = 1.0
    ) -> dict[str, Tensor]:
        """Take a step; parameters and state afterwards, by their names in the graph.

        Args:
            gradients: of the scaled loss, by parameter.
            trained: the parameters that have one.
            scale: by which they are divided first; where one is not finite, nothing is done.
        """
        begin = time.perf_counter()
        found = [_wide(gradients[name]) / scale for name in trained]
        finite = all(bool(torch.isfinite(g).all()) for g in found)
        if self.treatment.scale is None or finite:
            for parameter in self.parameters.values():
                parameter.grad = None
            for name, gradient in zip(trained, found, strict=True):
                parameter = self.parameters[name]
                parameter.grad = gradient.to(parameter.dtype).reshape(parameter.shape)
            held = [self.parameters[name] for name in trained]
            if self.treatment.clip_norm:
                nn.utils.clip_grad_norm_(held, self.treatment.clip_norm)
            if self.treatment.clip_value:
                nn.utils.clip_grad_value_(held, self.treatment.clip_value)
            for each in self.optimizers:
                type(each).step(each)
        self.seconds = time.perf_counter() - begin
        for name, parameter in self.parameters.items():
            if name not in trained:
                for each in self.optimizers:
                    each.state.pop(parameter, None)  # it has not taken this step
        names = {id(p): name for name, p in self.parameters.items()}
        state: Mapping[str, Any] = read_optimizer(self.optimizers, names).state
        values: dict[str, Tensor] = {n: self.parameters[n].detach() for n in trained}
        return {**values, **{n: t for n, t in state.items() if isinstance(t, Tensor)}}


def _parameters(optimizers: Sequence[Any]) -> list[nn.Parameter]:
    return [p for each in optimizers for group in each.param_groups for p in group["params"]]


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
