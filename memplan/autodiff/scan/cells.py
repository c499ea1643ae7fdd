"""The arithmetic of one step of LSTM, GRU and RNN, as the body of a ``Scan``.

Equations, gate order and the defaults of activations are those of ONNX's operator documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.emitter import Scope
from memplan.autodiff.emit.value import Value
from memplan.autodiff.loop_bodies import BodyWriter
from memplan.errors import ModelError

Activation = Callable[[Value], Value]
_ACTIVATIONS = ("Sigmoid", "Tanh", "Relu", "HardSigmoid")


@dataclass(frozen=True, slots=True)
class CellWeights:
    """Of one direction: ``recurrent`` [gates·hidden, hidden], ``input_bias`` and ``bias``
    [gates·hidden] or None."""

    recurrent: Value
    input_bias: Value | None
    bias: Value | None


class RecurrentCell:
    """The arithmetic of one step, in a body."""

    def __init__(
        self,
        ctx: Context,
        writer: BodyWriter,
        weights: CellWeights,
        activations: Sequence[Activation],
        stem: str,
    ) -> None:
        self.emitter = writer.emitter
        self.ctx = ctx
        self.stem = stem
        self.activations = activations
        self.recurrent = writer.captured(weights.recurrent)
        self.bias = writer.captured(weights.bias) if weights.bias is not None else None

    @classmethod
    def keeps_bias(cls, ctx: Context) -> bool:
        """Whether the recurrent bias is added within the step."""
        return False

    def step(self, x: Value, *states: Value) -> list[Value]:
        """The new states; the first is the output."""
        raise NotImplementedError

    def named(self, what: str) -> AbstractContextManager[None]:
        """Nodes made inside are named after a part of the cell."""
        return self.emitter.scope(Scope(f"{self.stem}/{what}"))

    def product(self, h: Value, weight: Value, added: Value | None) -> Value:
        """h·weightᵀ + added."""
        return self.emitter.op("Gemm", h, weight, added, transB=1)

    def split(self, value: Value, sizes: list[int]) -> tuple[Value, ...]:
        """Pieces along the last axis."""
        return self.emitter.ops(
            "Split", value, self.emitter.const(sizes), outputs=len(sizes), axis=-1
        )

    @property
    def hidden(self) -> int:
        """Units."""
        size = self.recurrent.shape[1]
        assert isinstance(size, int)
        return size


class Rnn(RecurrentCell):
    """Hₜ = f(Xₜ·Wᵀ + Hₜ₋₁·Rᵀ + b)."""

    def step(self, x: Value, *states: Value) -> list[Value]:
        """See the class."""
        with self.named("h"):
            return [self.activations[0](self.product(states[0], self.recurrent, x))]


class Lstm(RecurrentCell):
    """Gates in the order input, output, forget, candidate."""

    def step(self, x: Value, *states: Value) -> list[Value]:
        """See the class."""
        h, c = states
        gate, inner, outer = self.activations
        with self.named("gates"):
            parts = self.split(self.product(h, self.recurrent, x), [self.hidden] * 4)
        i, o, f, new = parts
        with self.named("input"):
            i = gate(i)
        with self.named("forget"):
            f = gate(f)
        with self.named("candidate"):
            new = inner(new)
        with self.named("c"):
            after = f * c + i * new
        with self.named("output"):
            o = gate(o)
        with self.named("h"):
            return [o * outer(after), after]


class Gru(RecurrentCell):
    """Gates in the order update, reset, candidate."""

    @classmethod
    def keeps_bias(cls, ctx: Context) -> bool:
        """Where the reset gate acts on the product, its bias is inside."""
        return bool(ctx.attribute("linear_before_reset", 0))

    def step(self, x: Value, *states: Value) -> list[Value]:
        """See the class."""
        h, size = states[0], self.hidden
        gate, inner = self.activations
        with self.named("gates"):
            if self.keeps_bias(self.ctx):
                old = self.split(self.product(h, self.recurrent, self.bias), [size] * 3)
                z, r, fresh = self.split(x, [size] * 3)
                z, r = z + old[0], r + old[1]
            else:
                first, last = self._rows(2 * size)
                both, fresh = self.split(x, [2 * size, size])
                z, r = self.split(self.product(h, first, both), [size] * 2)
        with self.named("update"):
            z = gate(z)
        with self.named("reset"):
            r = gate(r)
        with self.named("candidate"):
            if self.keeps_bias(self.ctx):
                new = inner(fresh + r * old[2])
            else:
                new = inner(self.product(r * h, last, fresh))
        with self.named("h"):  # written so that its gradient reads z, h and the candidate alone
            return [z * h + (new - z * new)]

    def _rows(self, count: int) -> tuple[Value, Value]:
        """The recurrent weight of the two gates, and of the candidate: cut outside the loop."""
        whole = self.ctx.tensor(self.recurrent.name)
        parts = (
            self.ctx.slice(whole, [0], [count], [0]),
            self.ctx.slice(whole, [count], [count + self.hidden], [0]),
        )
        for part in parts:
            self.emitter.types[part.name] = part.type
        first, last = (self.emitter.tensor(part.name) for part in parts)
        return first, last


def activations(ctx: Context, defaults: tuple[str, ...], directions: int) -> list[list[Activation]]:
    """The functions of each direction.

    Raises:
        ModelError: one is not known.
    """
    given = ctx.attribute("activations", list[Any]())
    names = [str(each.decode() if isinstance(each, bytes) else each) for each in given]
    names = names or list(defaults) * directions
    # alphas and betas are lists for those functions that take one, in order.
    alphas = list(ctx.attribute("activation_alpha", list[float]()))
    betas = list(ctx.attribute("activation_beta", list[float]()))
    found: list[Activation] = []
    known = {name.lower(): name for name in _ACTIVATIONS}
    for name in names:
        op = known.get(name.lower())
        if op is None:
            raise ModelError(
                f"{ctx.node.op_type} '{ctx.node.name}' has an activation '{name}' that is not "
                "known",
                f"{', '.join(_ACTIVATIONS)} have a gradient within a layer",
            )
        options: dict[str, float] = {}
        if op == "HardSigmoid":
            options["alpha"] = alphas.pop(0) if alphas else 0.2
            options["beta"] = betas.pop(0) if betas else 0.5
        found.append(partial(_activated, op, options))
    count = len(defaults)
    return [found[k * count : (k + 1) * count] for k in range(directions)]


def _activated(op: str, options: Mapping[str, Any], x: Value) -> Value:
    return x.emitter.op(op, x, **options)
