"""Elementwise functions of one tensor whose gradient is one formula.

A table: from the output ``y`` where that is enough, else from the input ``x``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.autodiff.emit.value import Value

_Op = Callable[..., Value]
_GRADIENTS: Mapping[str, Callable[[_Op, Value, Value, Value], Value]] = {
    "Neg": lambda op, dy, x, y: -dy,
    "Abs": lambda op, dy, x, y: dy * op("Sign", x),
    "Reciprocal": lambda op, dy, x, y: -dy * y * y,
    "Sqrt": lambda op, dy, x, y: dy * 0.5 / y,
    "Exp": lambda op, dy, x, y: dy * y,
    "Log": lambda op, dy, x, y: dy / x,
    "Erf": lambda op, dy, x, y: dy * (2 / math.sqrt(math.pi)) * op("Exp", -(x * x)),
    "Sin": lambda op, dy, x, y: dy * op("Cos", x),
    "Cos": lambda op, dy, x, y: -dy * op("Sin", x),
    "Tan": lambda op, dy, x, y: dy * (y * y + 1),
    "Asin": lambda op, dy, x, y: dy / op("Sqrt", 1 - x * x),
    "Acos": lambda op, dy, x, y: -dy / op("Sqrt", 1 - x * x),
    "Atan": lambda op, dy, x, y: dy / (x * x + 1),
    "Sinh": lambda op, dy, x, y: dy * op("Cosh", x),
    "Cosh": lambda op, dy, x, y: dy * op("Sinh", x),
    "Tanh": lambda op, dy, x, y: dy * (1 - y * y),
    "Asinh": lambda op, dy, x, y: dy / op("Sqrt", x * x + 1),
    "Acosh": lambda op, dy, x, y: dy / op("Sqrt", x * x - 1),
    "Atanh": lambda op, dy, x, y: dy / (1 - x * x),
    "Sigmoid": lambda op, dy, x, y: dy * y * (1 - y),
    "Softplus": lambda op, dy, x, y: dy * op("Sigmoid", x),  # as 1 - e⁻ʸ would cancel
}


@gradient(*_GRADIENTS, elementwise=True)
def function(ctx: Context) -> Gradients:
    """See the table."""
    return (_GRADIENTS[ctx.node.op_type](ctx.op, ctx.dy, ctx.tensors[0], ctx.y),)
