"""Gradients of one graph → updates of its parameters, each as early as it may be.

An update stands right behind the last node that reads its parameter. But where all gradients are
clipped to a norm of all of them together, none can be used before the last one is there: all
gradients are held, and the updates stand at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memplan.autodiff.build import GradientSink
from memplan.autodiff.emit.emitter import Emitter, Scope
from memplan.autodiff.emit.value import Value
from memplan.autodiff.optimizers.base import (
    CLIP_NORM,
    DOUBLE,
    FLOAT,
    SCALE,
    Member,
    Optimizer,
    UpdateBuilder,
    UpdateInputs,
)
from memplan.ir.graph import Phase
from memplan.proto.metadata import PHASE_KEY
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
    ) -> None:
        """Prepare for one graph.

        Args:
            members: how every parameter is updated, by name. Clipping is that of the first.
            types: of all parameters, by name.
            scaled: gradients are multiplied by an input first: they may be sums over batches.
        """
        super().__init__()
        self.members = members
        self.wide = any(types[name].dtype == DOUBLE for name in members)
        decays = {m.optimizer.weight_decay for m in members.values() if m.decays}
        self.inputs = UpdateInputs(feeds_decay=len(decays - {0.0}) == 1 and not self.wide)
        self.optimizer = next(iter(members.values())).optimizer
        self.scaled = scaled
        self.new_values: dict[str, str] = {}
        self.waiting: dict[str, Value] = {}
        self.squares: list[Value] = []

    def _builder(self, emitter: Emitter, name: str) -> UpdateBuilder:
        return UpdateBuilder(emitter, self.members[name], self.inputs)

    def take(self, emitter: Emitter, name: str, grad: Value) -> Mapping[str, Value]:
        """Update a parameter; or keep its gradient, if all are clipped together."""
        build = self._builder(emitter, name)
        with emitter.scope(_scope(name)):
            if self.scaled:
                grad = grad * build.number(SCALE, 1.0, grad.dtype)
            if self.optimizer.clip_value:
                bound = self.optimizer.clip_value
                grad = build.op("Clip", grad, -bound, bound)
            if not self.optimizer.clip_norm:
                return self._update(build, name, grad)
            wide = build.operations.cast(grad, self._norm_type)
            self.squares.append(build.op("ReduceSumSquare", wide, keepdims=0))
        self.waiting[name] = grad
        return {}

    def finish(self, emitter: Emitter) -> Mapping[str, Value]:
        """Make the updates that waited for all gradients, and the next step's number."""
        outputs: dict[str, Value] = {}
        if self.waiting:
            with emitter.scope(_scope("clip_norm")):
                factor = self._factor(self._builder(emitter, next(iter(self.waiting))))
            for name, grad in self.waiting.items():
                build = self._builder(emitter, name)
                with emitter.scope(_scope(name)):
                    outputs |= self._update(build, name, grad * build.cast(factor, grad))
        if self.inputs.counter is not None:
            outputs |= self._named(emitter, dict([self.inputs.counter]))
        return outputs

    @property
    def _norm_type(self) -> int:
        return DOUBLE if self.wide else FLOAT

    def _factor(self, build: UpdateBuilder) -> Value:
        """What all gradients are multiplied by: clip_norm / their norm, but at most 1."""
        total = build.op("Sqrt", build.op("Sum", *self.squares))
        most = self.optimizer.clip_norm
        bound = most if self.wide else build.number(CLIP_NORM, most, FLOAT)
        return build.op("Min", bound / (total + _EPSILON), 1.0)

    def _update(self, build: UpdateBuilder, name: str, grad: Value) -> dict[str, Value]:
        optimizer, weight = build.member.optimizer, build.emitter.tensor(name)
        build.rate(weight)  # the first of the inputs
        return self._named(build.emitter, optimizer.update(build, weight, grad))

    def _named(self, emitter: Emitter, found: Mapping[str, Value]) -> dict[str, Value]:
        outputs = {}
        for old, new in found.items():
            output = emitter.fresh(f"{old}_new")
            self.new_values[output] = old
            outputs[output] = new
        return outputs


def _scope(name: str) -> Scope:
    return Scope(f"{name}/update", {PHASE_KEY: Phase.UPDATE})
