"""Loss scaling: gradients that begin at the loss scale, and steps that are skipped.

Small gradients vanish in float16. So the backward part begins with the loss scale in place of 1,
and the gradients are divided by it, in float32, before anything else is done with them. If one of
them is not finite, the step is skipped: parameters, optimizer state and the step counter keep their
values, by ``Where(found_inf, old, new)``. Of several optimizers each skips for its own gradients;
the scale, which they have in common, becomes smaller where any does. The rules are those of
``torch.amp.GradScaler`` and its kernels (``aten/src/ATen/native/AmpKernels.cpp``), the arithmetic
on the scale is theirs, in float64, digit by digit.

Whether all gradients are finite is known when the last one is there, so all are held until then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import onnx

from memplan.autodiff.backward import GradientSink
from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.operations import INT64, Operations
from memplan.autodiff.emit.value import Value
from memplan.autodiff.optimizers.optimizer import (
    DOUBLE,
    FLOAT,
    SCALE,
    UpdateInputs,
    update_scope,
)
from memplan.errors import UsageError
from memplan.ir.roles import LOSS_SCALE, Role
from memplan.solver.strategies.spec import build, split_spec

GROWTH_TRACKER = "growth_tracker"
"""An int64 scalar: steps without a skipped one since the scale changed last."""
_BOOL = onnx.TensorProto.BOOL
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class LossScale:
    """A number that stays, unless another is fed."""

    name: ClassVar[str] = "fixed"
    init_scale: float = 65536.0

    def __post_init__(self) -> None:
        """Check the number.

        Raises:
            UsageError: it is not positive, or not a float32.
        """
        possible = 0 < self.init_scale <= _LARGEST
        _require(possible, "init_scale", self.init_scale, "above 0 that float32 can hold")

    @property
    def text(self) -> str:
        """As ``--loss-scale`` takes it."""
        return f"{self.init_scale:g}"


@dataclass(frozen=True, slots=True)
class DynamicScale(LossScale):
    """``torch.amp.GradScaler``: a skipped step multiplies the scale by ``backoff_factor``, and
    ``growth_interval`` steps in a row that are not skipped multiply it by ``growth_factor``.

    ``growth_tracker`` is how many of the latter there were before the first step.
    """

    name: ClassVar[str] = "dynamic"
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    growth_tracker: int = 0

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UsageError: one has a value with which the scale does not do what it is for.
        """
        LossScale.__post_init__(self)
        growth, backoff, interval = self.growth_factor, self.backoff_factor, self.growth_interval
        _require(1 < growth < math.inf, "growth_factor", growth, "above 1")
        _require(0 < backoff < 1, "backoff_factor", backoff, "between 0 and 1")
        _require(interval >= 1, "growth_interval", interval, "of at least 1")

    @property
    def text(self) -> str:
        """As ``--loss-scale`` takes it, with what is not the default."""
        usual = {item.name: item.default for item in fields(self)}
        own = {name: getattr(self, name) for name in usual}
        parts = [f"{name}={value:g}" for name, value in own.items() if value != usual[name]]
        return f"{self.name}{{{','.join(parts)}}}" if parts else self.name


def _require(holds: bool, option: str, value: float, wanted: str) -> None:
    if not holds:
        usual = next(item.default for item in fields(DynamicScale) if item.name == option)
        raise UsageError(
            f"the loss scale's {option} is {value:g}, not a number {wanted}",
            f"the default is {usual:g}",
        )


def parse_loss_scale(text: str) -> LossScale | None:
    """``none``, ``dynamic``, ``dynamic{init_scale=1024}`` or a number.

    Raises:
        UsageError: it is none of these.
    """
    spec = split_spec(text)
    if spec is not None and spec.name == "none" and not spec.options:
        return None
    if spec is not None and spec.name == DynamicScale.name:
        return build(DynamicScale, spec, "scale", "--loss-scale: ")
    try:
        return LossScale(float(text))
    except ValueError:
        raise UsageError(
            f"--loss-scale {text}: not a loss scale",
            "give none, dynamic, a number, or options as in dynamic{init_scale=1024}",
        ) from None


class ScaledGradients(GradientSink):
    """Gradients as outputs, times the loss scale, if there is one: another graph unscales and uses
    them; and the test of gradients and the next scale, for the graph that does. ``inputs`` are
    those that were made; they are complete when the graph is."""

    def __init__(self, scale: LossScale | None, *, feeds_decay: bool = False) -> None:
        super().__init__()
        self.inputs = UpdateInputs(feeds_decay)
        self.scale = scale
        self.tracker = ""
        self._zeros: dict[int, list[Value]] = {}

    def roles(self) -> Mapping[str, Role]:
        """Of hyperparameters, optimizer state and step counters."""
        return self.inputs.roles()

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        """Those that were made."""
        return self.inputs.hyperparameters

    def value(self, emitter: Emitter) -> Value:
        """The scale, an input: a float32 scalar."""
        assert self.scale is not None
        changes = isinstance(self.scale, DynamicScale)
        return self.inputs.number(emitter, LOSS_SCALE, self.scale.init_scale, is_state=changes)

    def seed(self, emitter: Emitter, y: Value) -> Value:
        """The gradient of the loss: 1, or the scale in the loss's element type."""
        if self.scale is None:
            return super().seed(emitter, y)
        return Operations(emitter).cast(self.value(emitter), y.dtype)

    def unscaled(self, emitter: Emitter, grad: Value, owner: int, *, scaled: bool) -> Value:
        """A gradient without the scale, in float32 or wider, after a look at whether it is finite.

        Args:
            emitter: gets the nodes.
            grad: the gradient.
            owner: what is skipped where it is not finite.
            scaled: the input ``gradient_scale`` multiplies it, too.
        """
        operations = Operations(emitter)
        grad = operations.cast(grad, DOUBLE if grad.dtype == DOUBLE else FLOAT)
        zero = emitter.op("ReduceSum", grad * 0, keepdims=0)  # 0·inf is not a number
        self._zeros.setdefault(owner, []).append(operations.cast(zero, FLOAT))
        with emitter.scope(update_scope(LOSS_SCALE)):
            inverse = operations.cast(1 / self._wide(emitter), FLOAT)
            inverse = operations.cast(inverse, grad.dtype)
            if scaled:
                more = self.inputs.number(emitter, SCALE, 1.0)
                inverse = inverse * operations.cast(more, grad.dtype)
        return grad * inverse

    def _wide(self, emitter: Emitter) -> Value:
        return Operations(emitter).cast(self.value(emitter), DOUBLE)

    def find_infs(self, emitter: Emitter) -> tuple[Mapping[int, Value], Value]:
        """Whether a gradient so far is not finite, bool scalars: by owner, and of all."""
        with emitter.scope(update_scope(LOSS_SCALE)):
            found = {
                owner: emitter.op("IsNaN", emitter.op("Sum", *zeros))
                for owner, zeros in self._zeros.items()
            }
            any_inf, *others = found.values()
            for other in others:
                any_inf = emitter.op("Or", any_inf, other)
        return found, any_inf

    def next_values(self, emitter: Emitter, found_inf: Value) -> Mapping[str, Value]:
        """What the next step begins with, by the names of inputs."""
        scale = self.scale
        if not isinstance(scale, DynamicScale):
            return {}
        operations = Operations(emitter)
        count_from = (GROWTH_TRACKER, scale.growth_tracker, INT64)
        tracker = self.inputs.number(emitter, *count_from, is_state=True)
        self.tracker = tracker.name
        now, wide = self.value(emitter), self._wide(emitter)
        count = tracker + 1
        due = emitter.op("Equal", count, scale.growth_interval)
        grown = operations.cast(wide * scale.growth_factor, FLOAT)
        fits = emitter.op("Less", grown, math.inf)  # the scale does not grow out of float32
        grown = emitter.op("Where", emitter.op("And", due, fits), grown, now)
        smaller = operations.cast(wide * scale.backoff_factor, FLOAT)
        begun = emitter.op("Or", found_inf, due)
        return {
            now.name: emitter.op("Where", found_inf, smaller, grown),
            tracker.name: emitter.op("Where", begun, emitter.const(0, INT64), count),
        }
