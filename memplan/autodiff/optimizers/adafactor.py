"""Adafactor: the second moment of a matrix is kept as that of its rows and that of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import onnx

from memplan.autodiff.emit.value import Value
from memplan.autodiff.optimizers.optimizer import Optimizer, UpdateBuilder

_EPSILONS: Mapping[int, float] = {
    onnx.TensorProto.FLOAT: 2.0**-23,
    onnx.TensorProto.DOUBLE: 2.0**-52,
    onnx.TensorProto.FLOAT16: 2.0**-10,
    onnx.TensorProto.BFLOAT16: 2.0**-7,
}
"""Machine epsilons."""


@dataclass(frozen=True, slots=True)
class Adafactor(Optimizer):
    """Shazeer and Stern 2018 (arXiv:1804.04235), algorithm 4, as ``torch.optim.Adafactor``.

    β₂ is 1 - t^-decay_rate, ``eps1`` bounds the second moment from below (0: the machine epsilon of
    the element type; its square is what is compared) and ``eps2`` the size of the weights, by which
    steps are scaled; ``d`` is the largest root mean square of a step before that. The learning rate
    is bounded by 1/√t. Tensors of two and more dimensions are factored along the last two.
    """

    name: ClassVar[str] = "adafactor"
    lr: float = 1e-2
    decay_rate: float = 0.8
    eps1: float = 0.0
    eps2: float = 1e-3
    d: float = 1.0

    def update(self, build: UpdateBuilder, weight: Value, grad: Value) -> Mapping[str, Value]:
        """See the class."""
        size = build.op("Max", self._size(build, weight, weight), self.eps2)
        rate = size * self._bounded_rate(build, weight)
        least = self.eps1 or _EPSILONS[weight.dtype]
        if weight.rank > 1:
            second, states = self._factored(build, weight, grad, least)
        else:
            second, states = self._whole(build, weight, grad)
        second = build.op("Max", second, least * least)
        step = grad / build.op("Sqrt", second)
        norm = build.op("Max", self._size(build, step, weight) / self.d, 1.0)
        return {weight.name: build.shrunk(weight) - step * (rate / norm), **states}

    def _size(self, build: UpdateBuilder, value: Value, like: Value) -> Value:
        """The root mean square of a tensor."""
        square = build.op("ReduceSumSquare", value, keepdims=0)
        count = build.operations.count(like, range(like.rank), like.dtype)
        return build.op("Sqrt", square / count)

    def _bounded_rate(self, build: UpdateBuilder, weight: Value) -> Value:
        def bounded() -> Value:
            bound = build.cast(1 / build.op("Sqrt", build.step()), weight)
            return build.op("Min", build.rate(weight), bound)

        return build.once("bounded", weight, bounded)

    def _shares(self, build: UpdateBuilder, weight: Value) -> tuple[Value, Value]:
        """β₂ and 1 - β₂."""

        def new() -> Value:
            return build.op("Pow", build.step(), build.double(-self.decay_rate))

        share = build.emitter.once("share", new)
        kept = build.once("kept share", weight, lambda: build.cast(1 - share, weight))
        return kept, build.once("new share", weight, lambda: build.cast(share, weight))

    def _averaged(self, build: UpdateBuilder, weight: Value, state: Value, square: Value) -> Value:
        kept, new = self._shares(build, weight)
        return build.renewed(state, state * kept + square * new)

    def _whole(
        self, build: UpdateBuilder, weight: Value, grad: Value
    ) -> tuple[Value, dict[str, Value]]:
        state = build.state(weight, "variance")
        second = self._averaged(build, weight, state, grad * grad)
        return second, {state.name: second}

    def _factored(
        self, build: UpdateBuilder, weight: Value, grad: Value, least: float
    ) -> tuple[Value, dict[str, Value]]:
        """The product of rows and columns, over the mean of the rows."""
        row, column = weight.rank - 2, weight.rank - 1
        shape = list(weight.shape)
        found: list[Value] = []
        states: dict[str, Value] = {}
        for axis, kind in ((column, "row_var"), (row, "col_var")):
            own = tuple(1 if k == axis else dim for k, dim in enumerate(shape))
            state = build.state(weight, kind, own)
            square = build.operations.reduce("ReduceSumSquare", grad, [axis])
            mean = square / build.operations.count(weight, [axis], weight.dtype)
            found.append(self._averaged(build, weight, state, mean))
            states[state.name] = found[-1]
        rows, columns = found
        mean = build.operations.reduce("ReduceMean", rows, [row])
        return rows * columns / build.op("Max", mean, least), states
