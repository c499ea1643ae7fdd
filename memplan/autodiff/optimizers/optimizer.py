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
from dataclasses import dataclass, field, fields, make_dataclass
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import helper

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
Formula = Callable[..., Value]
"""The new value of a parameter, of an :class:`UpdateBuilder` and the options of its own."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Options that all optimizers have; :func:`optimizer_class` adds those of a formula.

    Fields are options (``sgd{weight_decay=0.1}``). ``lr`` is the default of the learning rate.
    ``no_decay`` are globs, joined by ``+``, of parameters whose weights do not decay. ``clip_norm``
    bounds the norm of all gradients together, ``clip_value`` every element of them; 0: no bound.
    ``maximize`` (0 or 1) climbs instead of descending: gradients are negated before they are used.
    ``by_element``: a new value depends on elements of the same index and on scalars alone, which
    all parameters share, so several may be joined. ``otherwise`` is the optimizer that
    updates what is no matrix, where this one is for matrices alone. ``check`` raises a UsageError
    for options of a formula that do not go together.
    """

    name: ClassVar[str] = ""
    formula: ClassVar[Formula]
    by_element: ClassVar[bool] = False
    otherwise: ClassVar[type[Any] | None] = None
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    check: ClassVar[Callable[[Any], None]]
    lr: float = 1e-3
    weight_decay: float = 0.0
    no_decay: str = ""
    clip_norm: float = 0.0
    clip_value: float = 0.0
    maximize: bool = False

    def __post_init__(self) -> None:
        """Check what options say together.

        Raises:
            UsageError: an option has no effect or a value that it cannot have, or two contradict
                each other.
        """
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(item.default, bool) and value not in (0, 1):
                given = f"{item.name}={value}"
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
        type(self).check(self)

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
        """What updates a parameter of that type: this, unless it is for matrices alone."""
        if self.otherwise is None or len(parameter.sizes or ()) == 2:
            return self
        shared = {item.name: getattr(self, item.name) for item in fields(Optimizer)}
        other: Optimizer = self.otherwise(**{**shared, "no_decay": ""})
        return other

    def new_weight(self, build: UpdateBuilder) -> Value:
        """The new value of a parameter, by the formula; it gives that of every state to
        ``build``."""
        shared = {item.name for item in fields(Optimizer)}
        names = [item.name for item in fields(self) if item.name not in shared]
        return type(self).formula(build, **{name: getattr(self, name) for name in names})


def optimizer_class(
    formula: Formula,
    *,
    name: str = "",
    by_element: bool = False,
    otherwise: type[Any] | None = None,
    words: Mapping[str, tuple[str, ...]] | None = None,
    check: Callable[[Any], None] = lambda made: None,
    **defaults: float,
) -> type[Any]:
    """The class of a formula: its further parameters are options, beside those that all have.

    Args:
        formula: makes the new value; its text is that of the class.
        name: what messages call it; by default as the formula.
        by_element: see :class:`Optimizer`, as of ``otherwise`` and ``check``.
        otherwise: the optimizer of what is no matrix.
        words: the values of options that are words.
        check: looks at an object of the class.
        defaults: of options that all optimizers have.
    """
    _, *given = signature(formula).parameters.values()
    options = {**defaults, **{item.name: item.default for item in given}}
    namespace = {
        "__doc__": formula.__doc__,
        "name": name or formula.__name__,
        "formula": staticmethod(formula),
        "by_element": by_element,
        "otherwise": otherwise,
        "words": words or {},
        "check": staticmethod(check),
    }
    return make_dataclass(
        formula.__name__,
        [(name, type(default), default) for name, default in options.items()],
        bases=(Optimizer,),
        namespace=namespace,
        frozen=True,
        slots=True,
    )


def update_scope(name: str) -> Scope:
    """Of the nodes that update a parameter, or do something else of the update; parameters share
    its scalars."""
    return Scope(f"{name}/update", {PHASE_KEY: Phase.UPDATE}, scalars_once=True)


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

    def number(
        self,
        emitter: Emitter,
        name: str,
        default: float,
        dtype: int = FLOAT,
        *,
        is_state: bool = False,
    ) -> Value:
        """A scalar that may be fed: an input with a default, made when it is first asked for."""

        def made() -> Value:
            array = np.asarray(default, helper.tensor_dtype_to_np_dtype(dtype))
            given = emitter.input(name, TensorType(dtype, ()), array)
            if is_state:
                self.states.append(given.name)
            else:
                self.hyperparameters[given.name] = default
            return given

        return emitter.once(name, made)


class UpdateBuilder:
    """What a formula builds with: a parameter, its gradient and state, and scalars that parameters
    share.

    Several short vectors are built as one parameter: end to end, and what comes out is cut.
    """

    def __init__(
        self,
        emitter: Emitter,
        member: Member,
        inputs: UpdateInputs,
        gradients: Mapping[str, Value],
        skipped: Value | None = None,
    ) -> None:
        """Prepare for one parameter, or for several vectors.

        Args:
            emitter: gets the nodes.
            member: how the parameter is updated.
            inputs: those that were made for the parameters before it; grows.
            gradients: the gradient of each of them.
            skipped: a bool scalar, where a step may keep all old values.
        """
        self.emitter = emitter
        self.operations = Operations(emitter)
        self.op = emitter.op
        self.member = member
        self.inputs = inputs
        self.skipped = skipped
        self._chosen: set[str] = set()
        self._parts: dict[str, list[Value]] = {}
        self._states: dict[str, Value] = {}
        self.parameters = [emitter.tensor(name) for name in gradients]
        self.weight = self._joined(self.parameters)
        self.gradient = self._joined(list(gradients.values()))

    # -- scalars ---------------------------------------------------------------------------------

    def cast(self, value: Value) -> Value:
        """``value`` in the element type of the parameter."""
        return self.operations.cast(value, self.weight.dtype)

    def own_cast(self, value: Value, dtype: int) -> Value:
        """``value`` in an element type, by a node that no other parameter shares."""
        if value.dtype == dtype:
            return value
        return self.emitter.ops("Cast", value, outputs=1, to=dtype)[0]

    def double(self, content: Value | Number) -> Value:
        """A number, or a tensor, in float64."""
        if isinstance(content, Value):
            return self.operations.cast(content, DOUBLE)
        return self.emitter.const(content, DOUBLE)

    def rate(self) -> Value:
        """The learning rate of the parameter."""
        shared = self.cast(self.inputs.number(self.emitter, RATE, self.member.optimizer.lr))
        return shared if self.member.factor == 1 else shared * self.member.factor

    def decay(self) -> Value | None:
        """How much the parameter decays; None if it does not."""
        share = self.member.optimizer.weight_decay
        if not share or not self.member.decays:
            return None
        if not self.inputs.feeds_decay:
            return self.emitter.const(share, self.weight.dtype)
        return self.cast(self.inputs.number(self.emitter, DECAY, share))

    def step(self) -> Value:
        """The number of this step as a float64: 1 - β₂ᵗ loses four digits in float32.

        A fed 0 counts as 1. The counter counts itself.
        """

        def build() -> Value:
            name = f"{STEP}.{owner}" if owner else STEP
            given = self.emitter.input(name, TensorType(INT64, ()), np.asarray(1, np.int64))
            number = self.op("Max", given, 1)
            self.inputs.counters[owner] = given.name, self.renewed(given, number + 1)
            return self.double(number)

        owner = self.member.owner
        return self.emitter.once((STEP, owner), build)

    def first(self) -> Value:
        """Whether this is the first step, a bool scalar: state that does not begin at 0 is made
        then."""
        return self.op("Equal", self.step(), 1.0)

    def missing(self, beta: float) -> Value:
        """1 - betaᵗ, what a moving average that began at 0 lacks."""
        return self.cast(1 - self.op("Pow", self.double(beta), self.step()))

    # -- tensors ---------------------------------------------------------------------------------

    def decayed(self) -> Value:
        """The gradient of the loss and of the weights' squares: g + weight_decay·w."""
        decay = self.decay()
        return self.gradient if decay is None else self.gradient + self.weight * decay

    def shrunk(self, value: Value | None = None) -> Value:
        """The parameter, or another value, where it decays by itself: w·(1 - lr·weight_decay)."""
        value, decay = self.weight if value is None else value, self.decay()
        return value if decay is None else value * (1 - self.rate() * decay)

    def state(self, name: str, shape: Shape | None = None, dtype: int | None = None) -> Value:
        """A state tensor, of the parameter's shape and element type unless others are given."""
        made = []
        for weight in self.parameters:
            own = TensorType(dtype or weight.dtype, weight.type.shape if shape is None else shape)
            made.append(self.emitter.input(f"{weight.name}.{name}", own))
            self.inputs.states.append(made[-1].name)
        whole = self._joined(made)
        self._states[whole.name] = whole
        return whole

    def renew(self, state: Value, new: Value) -> Value:
        """Give the next value of a state tensor."""
        self._states[state.name] = self.renewed(state, new)
        return self._states[state.name]

    def average(self, state: Value, new: Value, share: float) -> Value:
        """Renew a moving average: ``share`` of the old one, the rest of ``new``."""
        return self.renew(state, state * share + new * (1 - share))

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

    def new_values(self) -> dict[str, Value]:
        """Build the update: new values by the names of the inputs whose next value they are."""
        optimizer = self.member.optimizer
        self.rate()  # the first of the inputs
        self.gradient = self.cast(self.gradient)
        if optimizer.maximize:
            self.gradient = -self.gradient
        new = self.renewed(self.weight, optimizer.new_weight(self))
        return {
            name: value
            for old, whole in {self.weight.name: new, **self._states}.items()
            for name, value in self._apart(old, whole)
        }

    def _joined(self, parts: list[Value]) -> Value:
        """Vectors end to end, in the order of the parameters."""
        whole = parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)
        self._parts[whole.name] = parts
        return whole

    def _apart(self, old: str, new: Value) -> list[tuple[str, Value]]:
        """The new value of joined inputs as those of the inputs, by their names."""
        parts = self._parts[old]
        if len(parts) == 1:
            return [(old, new)]
        results = tuple(part.type for part in parts)
        sizes = self.emitter.const([part.type.elements or 0 for part in parts])
        cut = self.emitter.ops("Split", new, sizes, outputs=len(parts), results=results, axis=0)
        return [(part.name, piece) for part, piece in zip(parts, cut, strict=True)]
