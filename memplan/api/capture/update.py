"""The update of a captured step: one torch.optim group after the other, with memplan's formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.value import Value
from memplan.autodiff.optimizers import KINDS, RATE, STEP, Momentum, Optimizer
from memplan.pytorch.optimizer import Group, OptimizerSettings


@dataclass(frozen=True, slots=True)
class Nesterov(Momentum):
    """v = momentum·v + g + weight_decay·w; w - lr·(g + momentum·v), as torch.optim.SGD has it."""

    name = "nesterov"

    def update(self, emitter: Emitter, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        if self.weight_decay:
            grad = grad + weight * self.weight_decay
        state = self.state(emitter, weight, "momentum")
        speed = state * self.momentum + grad
        change = grad + speed * self.momentum
        rate = self.rate(emitter, weight)
        return {f"{weight.name}_new": weight - change * rate, f"{state.name}_new": speed}


_KINDS: dict[str, type[Any]] = {**KINDS, Nesterov.name: Nesterov}


@dataclass(frozen=True, slots=True)
class GroupedUpdate:
    """Called with every gradient; the new graph outputs."""

    settings: OptimizerSettings

    def __call__(self, emitter: Emitter, name: str, grad: Value) -> Mapping[str, Value]:
        """Update one parameter as its group says."""
        group = self.settings.groups[name]
        optimizer: Optimizer = _KINDS[group.kind](**dict(group.options))
        return optimizer(cast(Emitter, _Of(emitter, group)), name, grad)


class _Of:
    """An emitter that keeps what is made once for a group apart from that of other groups."""

    def __init__(self, emitter: Emitter, group: Group) -> None:
        self._emitter = emitter
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._emitter, name)

    def once(self, key: object, build: Callable[[], Value]) -> Value:
        """See :meth:`Emitter.once`; learning rates are scaled by the group's factor."""
        if key in (RATE, STEP):
            return self._emitter.once(key, build)
        if isinstance(key, tuple) and key[0] == RATE:
            shared = self._emitter.once(key, build)
            if self._group.factor == 1:
                return shared
            return self._emitter.once((self._group, key), lambda: shared * self._group.factor)
        return self._emitter.once((self._group, key), build)
