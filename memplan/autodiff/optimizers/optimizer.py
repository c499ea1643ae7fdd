"""What an optimizer is, and what its update is built with.

Parameters, optimizer state and the step counter come in as graph inputs and go out under the same
name and ``_new``. What may change from step to step by somebody's will (the learning rate, weight
decay, the norm that gradients are clipped to) is an input with a default. Formulas, their order and
the defaults are those of ``torch.optim``, where it has the optimizer.

Every new value is made by arithmetic on the old one, index by index, behind everything else that
reads the old one; so a session may write the one over the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import ClassVar

import numpy as np
import onnx

from memplan.autodiff.emit.emitter import Emitter, Scope
from memplan.autodiff.emit.operations import INT64, Operations
from memplan.autodiff.emit.value import Number, Value
from memplan.errors import UsageError
from memplan.ir.graph import Phase
from memplan.ir.roles import Role
from memplan.proto.metadata import PHASE_KEY
from memplan.shapes.tensor_type import Shape, TensorType

FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
RATE, STEP = "lr", "step"
"""Graph inputs with a default: a float32 scalar, and an int64 scalar of which the first is 1."""
DECAY, CLIP_NORM, SCALE = "weight_decay", "clip_norm", "gradient_scale"
"""Further float32 scalars with a default, in graphs that have a use for them."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Makes the update of one parameter after the other; subclasses are the kinds.

    Fields are options (``sgd{weight_decay=0.1}``). ``lr`` is the default of the learning rate.
    ``no_decay`` are globs, joined by ``+``, of parameters whose weights do not decay. ``clip_norm``
    bounds the norm of all gradients together, ``clip_value`` every element of them; 0: no bound.
    ``maximize`` (0 or 1) climbs instead of descending: gradients are negated before they are used.
    ``flags`` are the options that are 0 or 1. ``by_element``: a new value depends on elements of
    the same index and on scalars alone, which all parameters share, so several may be joined.
    """

    name: ClassVar[str] = ""
    by_element: ClassVar[bool] = False
    flags: ClassVar[tuple[str, ...]] = ("maximize",)
    lr: float = 1e-3
    weight_decay: float = 0.0
    no_decay: str = ""
    clip_norm: float = 0.0
    clip_value: float = 0.0
    maximize: int = 0

    def __post_init__(self) -> None:
        """Check what options say together.

        Raises:
            UsageError: an option has no effect or a value that it cannot have, or two contradict
                each other.
        """
        for flag in self.flags:
            if getattr(self, flag) not in (0, 1):
                given = f"{flag}={getattr(self, flag)}"
                raise UsageError(f"--optimizer {self.name}{{{given}}}: expected 0 or 1")
        if self.no_decay and not self.weight_decay:
            raise UsageError(
                f"--optimizer {self.name}{{no_decay={self.no_decay}}}: no weights decay anyway",
                "give weight_decay, too",
            )
        if self.clip_norm and self.clip_value:
            raise UsageError(
                f"--optimizer {self.name}: gradients are clipped by clip_norm or by clip_value",
                "leave one of them out",
            )

    def not_decayed(self, parameters: Sequence[str]) -> tuple[str, ...]:
        """The parameters that ``no_decay`` names.

        Raises:
            UsageError: one of its globs names none.
        """
        patterns = [pattern for pattern in self.no_decay.split("+") if pattern]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in parameters):
                raise UsageError(
                    f"--optimizer {self.name}{{no_decay={pattern}}}: no trained tensor of that "
                    "name",
                    f"there are: {', '.join(parameters[:8])}",
                )
        return tuple(n for n in parameters if any(fnmatchcase(n, p) for p in patterns))

    def suited(self, parameter: TensorType) -> Optimizer:
        """What updates a parameter of that type: this, unless it is for some types alone."""
        return self

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """Build the update of one parameter.

        The new values, by the names of the graph inputs whose next value they are.
        """
        raise NotImplementedError

    def decayed(self, build: UpdateBuilder, weight: Value, grad: Value) -> Value:
        """The gradient of the loss and of the weights' squares: g + weight_decay·w."""
        decay = build.decay(weight)
        return grad if decay is None else grad + weight * decay


def update_scope(name: str) -> Scope:
    """Of the nodes that update a parameter, or do something else of the update."""
    return Scope(f"{name}/update", {PHASE_KEY: Phase.UPDATE})


@dataclass(frozen=True, slots=True)
class Member:
    """How one parameter is updated: ``factor`` is its learning rate over that of the graph.

    ``owner`` tells parameters apart that skip a step for themselves: those of one PyTorch optimizer
    of several, of which each has a counter of its own, too.
    """

    optimizer: Optimizer
    factor: float = 1.0
    decays: bool = True
    owner: int = 0


@dataclass(slots=True)
class UpdateInputs:
    """The inputs that all updates of one graph share, as they are made.

    ``hyperparameters`` maps those with a default to it, ``states`` are optimizer state,
    ``counters`` are the step counters, by owner, with their next values. ``feeds_decay``: weight
    decay is one number for all, and an input; it is not where a parameter is float64, as float32
    would take digits from it.
    """

    feeds_decay: bool
    hyperparameters: dict[str, float] = field(default_factory=dict)
    states: list[str] = field(default_factory=list)
    counters: dict[int, tuple[str, Value]] = field(default_factory=dict)

    def roles(self) -> dict[str, Role]:
        """What each of them is to training."""
        found = dict.fromkeys(self.hyperparameters, Role.HYPERPARAMETER)
        found |= dict.fromkeys(self.states, Role.OPTIMIZER_STATE)
        return found | dict.fromkeys(self.counter_values, Role.STEP_COUNTER)

    @property
    def counter_values(self) -> dict[str, Value]:
        """Every step counter's next value."""
        return dict(self.counters.values())


class UpdateBuilder:
    """What the update of a parameter is built with: nodes, shared scalars, state."""

    def __init__(
        self,
        emitter: Emitter,
        member: Member,
        inputs: UpdateInputs,
        skipped: Value | None = None,
    ) -> None:
        """Prepare for one parameter.

        Args:
            emitter: gets the nodes.
            member: how the parameter is updated.
            inputs: those that were made for the parameters before it; grows.
            skipped: a bool scalar, where a step may keep all old values.
        """
        self.emitter = emitter
        self.operations = Operations(emitter)
        self.member = member
        self.inputs = inputs
        self.skipped = skipped
        self._chosen: set[str] = set()

    def op(self, op: str, *inputs: Value | Number, keepdims: int | None = None) -> Value:
        """A node with one output."""
        return self.emitter.op(op, *inputs, keepdims=keepdims)

    def once(self, name: str, like: Value, build: Callable[[], Value]) -> Value:
        """A scalar that all parameters share which have one element type and the same options."""
        member = self.member
        key = (name, like.dtype, member.optimizer, member.factor, member.owner)
        return self.emitter.once(key, build)

    def cast(self, value: Value, like: Value) -> Value:
        """``value`` in the element type of another tensor."""
        return self.operations.cast(value, like.dtype)

    def number(self, name: str, default: float, dtype: int) -> Value:
        """A scalar that may be fed, in an element type."""
        return self.emitter.once(
            (name, dtype), lambda: self.operations.cast(self._input(name, default), dtype)
        )

    def _input(self, name: str, default: float) -> Value:
        def build() -> Value:
            scalar = TensorType(FLOAT, ())
            made = self.emitter.input(name, scalar, np.asarray(default, np.float32))
            self.inputs.hyperparameters[made.name] = default
            return made

        return self.emitter.once(name, build)

    def rate(self, like: Value) -> Value:
        """The learning rate of the parameter, in its element type."""
        shared = self.number(RATE, self.member.optimizer.lr, like.dtype)
        factor = self.member.factor
        return shared if factor == 1 else self.once("rate", like, lambda: shared * factor)

    def decay(self, weight: Value) -> Value | None:
        """How much the parameter decays, in its element type; None if it does not."""
        share = self.member.optimizer.weight_decay
        if not share or not self.member.decays:
            return None
        if not self.inputs.feeds_decay:
            return self.emitter.const(share, weight.dtype)
        return self.number(DECAY, share, weight.dtype)

    def shrunk(self, weight: Value) -> Value:
        """A parameter that decays by itself: w·(1 - lr·weight_decay)."""
        decay = self.decay(weight)
        if decay is None:
            return weight
        rate = self.rate(weight)
        return weight * self.once("kept", weight, lambda: 1 - rate * decay)

    def double(self, content: float) -> Value:
        """A float64 constant."""
        return self.emitter.const(content, DOUBLE)

    def step(self) -> Value:
        """The number of this step as a float64: 1 - β₂ᵗ loses four digits in float32.

        A fed 0 counts as 1. The counter counts itself.
        """

        def build() -> Value:
            name = f"{STEP}.{owner}" if owner else STEP
            given = self.emitter.input(name, TensorType(INT64, ()), np.asarray(1, np.int64))
            number = self.op("Max", given, 1)
            self.inputs.counters[owner] = given.name, self.renewed(given, number + 1)
            return self.operations.cast(number, DOUBLE)

        owner = self.member.owner
        return self.emitter.once((STEP, owner), build)

    def first(self) -> Value:
        """Whether this is the first step, a bool scalar: state that does not begin at 0 is made
        then."""
        key = ("first", self.member.owner)
        return self.emitter.once(key, lambda: self.op("Equal", self.step(), 1.0))

    def missing(self, like: Value, beta: float) -> Value:
        """1 - betaᵗ, what a moving average that began at 0 lacks, in an element type."""

        def build() -> Value:
            return self.cast(1 - self.op("Pow", self.double(beta), self.step()), like)

        return self.once(f"missing {beta}", like, build)

    def averaged(self, state: Value, new: Value, share: float) -> Value:
        """The next value of a moving average: ``share`` of the old one, the rest of ``new``."""
        return self.renewed(state, state * share + new * (1 - share))

    def renewed(self, old: Value, new: Value) -> Value:
        """The next value of an input: the old one, if the step is skipped.

        What reads the next value behind this reads it instead of ``new``, of which no memory is
        then left.
        """
        if self.skipped is None or new.name in self._chosen:
            return new
        found = self.op("Where", self.skipped, old, new)
        self._chosen.add(found.name)
        return found

    def apart(self, found: Mapping[str, Value]) -> dict[str, Value]:
        """New values by the names of the inputs whose next value they are."""
        return dict(found)

    def state(self, weight: Value, kind: str, shape: Shape | None = None) -> Value:
        """A state tensor of a parameter, of its shape unless another is given."""
        found = weight.type if shape is None else TensorType(weight.dtype, shape)
        return self._state(weight, kind, found)

    def scalar_state(self, weight: Value, kind: str) -> Value:
        """A float32 scalar of a parameter, as PyTorch keeps it whatever the parameter's type."""
        return self._state(weight, kind, TensorType(FLOAT, ()))

    def _state(self, weight: Value, kind: str, found: TensorType) -> Value:
        made = self.emitter.input(f"{weight.name}.{kind}", found)
        self.inputs.states.append(made.name)
        return made
