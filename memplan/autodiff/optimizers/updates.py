"""Gradients of one graph → updates of its parameters, each as early as it may be.

An update stands right behind the last node that reads its parameter; that of small vectors, which
are updated together (:mod:`memplan.autodiff.optimizers.joined`), at the end. But where all
gradients are clipped to a norm of all of them together, or the loss is scaled and one that is not
finite skips the step, none can be used before the last one is there: all gradients are held, and
all updates stand at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from memplan.autodiff.backward import GradientSink
from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.value import Value
from memplan.autodiff.optimizers.averages import Following
from memplan.autodiff.optimizers.joined import VECTORS, JoinedBuilder, joined_names
from memplan.autodiff.optimizers.optimizer import (
    CLIP_NORM,
    DOUBLE,
    FLOAT,
    SCALE,
    Member,
    Optimizer,
    UpdateBuilder,
    UpdateInputs,
    update_scope,
)
from memplan.autodiff.optimizers.scaling import LossScale, Scaling
from memplan.ir.roles import FOUND_INF, LOSS_SCALE, Role
from memplan.shapes.tensor_type import TensorType

_EPSILON = 1e-6
"""``torch.nn.utils.clip_grad_norm_`` adds it to the norm that it divides by."""


def members_of(optimizer: Optimizer, parameters: Sequence[str]) -> dict[str, Member]:
    """All parameters updated by one optimizer; those that its ``no_decay`` names do not decay.

    Raises:
        UsageError: ``no_decay`` names a parameter that is not there.
    """
    fixed = set(optimizer.not_decayed(parameters))
    return {name: Member(optimizer, decays=name not in fixed) for name in parameters}


class Updates(GradientSink):
    """Makes the updates of one graph.

    ``new_values`` maps graph outputs to the inputs whose next value they are; ``inputs`` are those
    that were made. Both are complete when the graph is.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        types: Mapping[str, TensorType],
        *,
        scaled: bool = False,
        scale: LossScale | None = None,
        averages: Following | None = None,
    ) -> None:
        """Prepare for one graph.

        Args:
            members: how every parameter is updated, by name. Clipping is that of the first.
            types: of all parameters, by name.
            scaled: gradients are multiplied by an input first: they may be sums over batches.
            scale: the loss scale, by which gradients are divided first; None: there is none.
            averages: what follows the parameters; None: nothing does.
        """
        super().__init__()
        self.members = {
            name: replace(member, optimizer=member.optimizer.suited(types[name]))
            for name, member in members.items()
        }
        self.joined = joined_names(self.members, types)
        self.wide = any(types[name].dtype == DOUBLE for name in members)
        decays = {m.optimizer.weight_decay for m in self.members.values() if m.decays}
        self.inputs = UpdateInputs(feeds_decay=len(decays - {0.0}) == 1 and not self.wide)
        self.optimizer = next(iter(self.members.values())).optimizer
        self.scaled = scaled
        self.scaling = Scaling(scale, self.inputs) if scale is not None else None
        self.found_infs: Mapping[int, Value] = {}
        self.averages = averages
        self.latest: dict[str, Value] = {}
        self.new_values: dict[str, str] = {}
        self.waiting: dict[str, Value] = {}
        self.squares: list[Value] = []

    def _builder(self, emitter: Emitter, name: str) -> UpdateBuilder:
        member = self.members[name]
        skipped = self.found_infs.get(member.owner)
        return UpdateBuilder(emitter, member, self.inputs, skipped)

    def seed(self, emitter: Emitter, y: Value) -> Value:
        """1, or the loss scale."""
        return super().seed(emitter, y) if self.scaling is None else self.scaling.seed(emitter, y)

    def roles(self) -> Mapping[str, Role]:
        """Of hyperparameters, optimizer state and the step counter."""
        averages = () if self.averages is None else self.averages.names(self.members)
        return {**self.inputs.roles(), **dict.fromkeys(averages, Role.AVERAGE)}

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        """Those that the updates brought."""
        return self.inputs.hyperparameters

    def take(self, emitter: Emitter, name: str, grad: Value) -> Mapping[str, Value]:
        """Update a parameter; or keep its gradient, if all are clipped together."""
        build = self._builder(emitter, name)
        with emitter.scope(update_scope(name)):
            grad = self._unscaled(build, grad)
            if self.optimizer.clip_value:
                bound = self.optimizer.clip_value
                grad = build.op("Clip", grad, -bound, bound)
            if self.optimizer.clip_norm:
                wide = build.operations.cast(grad, self._norm_type)
                self.squares.append(build.op("ReduceSumSquare", wide, keepdims=0))
            elif self.scaling is None and name not in self.joined:
                return self._update(build, grad, build.emitter.tensor(name))
        self.waiting[name] = grad
        return {}

    def finish(self, emitter: Emitter) -> Mapping[str, Value]:
        """Make the updates that waited for all gradients, the next step's number, and the next loss
        scale."""
        outputs: dict[str, Value] = {}
        scaling = self.scaling
        if scaling is not None:
            self.found_infs = scaling.found_infs(emitter)
            found_inf = scaling.any_inf(emitter, self.found_infs.values())
            outputs[emitter.fresh(FOUND_INF)] = found_inf
        if self.squares:
            with emitter.scope(update_scope("clip_norm")):
                factor = self._factor(self._builder(emitter, next(iter(self.waiting))))
        for names in dict.fromkeys(self.joined.get(name, (name,)) for name in self.waiting):
            with emitter.scope(update_scope(names[0] if len(names) == 1 else VECTORS)):
                build, grad, weight = self._waited(emitter, names)
                clipped = grad * build.cast(factor, grad) if self.squares else grad
                outputs |= self._update(build, clipped, weight)
        outputs |= self._named(emitter, self.inputs.counter_values)
        if scaling is not None:
            with emitter.scope(update_scope(LOSS_SCALE)):
                found = scaling.next_values(emitter, found_inf)
            outputs |= self._named(emitter, found)
        if self.averages is not None:
            found = self.averages.next_values(emitter, self.inputs, self.latest)
            outputs |= self._named(emitter, found)
        return outputs

    def _waited(self, emitter: Emitter, names: Sequence[str]) -> tuple[UpdateBuilder, Value, Value]:
        """The builder, gradient and parameter of an update; those of several, joined."""
        names = [name for name in names if name in self.waiting]
        grads = [self.waiting[name] for name in names]
        if len(names) == 1:
            return self._builder(emitter, names[0]), grads[0], emitter.tensor(names[0])
        member = self.members[names[0]]
        skipped = self.found_infs.get(member.owner)
        build = JoinedBuilder(emitter, member, self.inputs, skipped, names)
        return build, build.joined(grads), build.weight

    def _unscaled(self, build: UpdateBuilder, grad: Value) -> Value:
        """A gradient as the optimizer is to see it, but for clipping."""

        def share(dtype: int) -> Value | None:
            return build.number(SCALE, 1.0, dtype) if self.scaled else None

        if self.scaling is not None:
            return self.scaling.unscaled(build.emitter, grad, share, build.member.owner)
        factor = share(grad.dtype)
        return grad if factor is None else grad * factor

    @property
    def _norm_type(self) -> int:
        return DOUBLE if self.wide else FLOAT

    def _factor(self, build: UpdateBuilder) -> Value:
        """What all gradients are multiplied by: clip_norm / their norm, but at most 1."""
        total = build.op("Sqrt", build.op("Sum", *self.squares))
        most = self.optimizer.clip_norm
        bound = most if self.wide else build.number(CLIP_NORM, most, FLOAT)
        return build.op("Min", bound / (total + _EPSILON), 1.0)

    def _update(self, build: UpdateBuilder, grad: Value, weight: Value) -> dict[str, Value]:
        optimizer = build.member.optimizer
        build.rate(weight)  # the first of the inputs
        grad = build.cast(grad, weight)
        found = optimizer.update(build, weight, -grad if optimizer.maximize else grad)
        renewed = {old: build.renewed(build.emitter.tensor(old), n) for old, n in found.items()}
        renewed = build.apart(renewed)
        self.latest |= {name: new for name, new in renewed.items() if name in self.members}
        return self._named(build.emitter, renewed)

    def _named(self, emitter: Emitter, found: Mapping[str, Value]) -> dict[str, Value]:
        outputs = {}
        for old, new in found.items():
            output = emitter.fresh(f"{old}_new")
            self.new_values[output] = old
            outputs[output] = new
        return outputs
