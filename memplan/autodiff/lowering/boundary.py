"""``YieldOp``: what ORTModule handed to PyTorch between forward and backward, and got back.

Its inputs are the outputs of the PyTorch module, its outputs their gradients, which PyTorch's own
autograd brought. In a file of its own there is nobody to bring them:

- one output that is a scalar is a loss, and its gradient is 1;
- where the loss is named, its gradient is 1 and those of the others are 0;
- else every gradient becomes a graph input: whoever runs the file brings them.
"""

from __future__ import annotations

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.value import Value
from memplan.autodiff.lowering.lowering_registry import LoweringEntry, Results

YIELD = "YieldOp"


class Boundary:
    """The lowering of ``YieldOp``, and what it found."""

    def __init__(self, loss: str | None) -> None:
        self.wanted = loss
        self.outputs: list[str] = []
        """What the forward part hands out."""
        self.seeded: str | None = None
        """The output whose gradient is 1."""
        self.fed: list[str] = []
        """Gradients that are graph inputs."""

    @property
    def entry(self) -> LoweringEntry:
        """What the walk takes it for."""
        return LoweringEntry(self.lower, 1)

    def lower(self, ctx: Context) -> Results:
        """A value for each gradient; outputs that have none are left out of the operator's."""
        constant = set(ctx.attribute("non_differentiable_outputs", list[int]()))
        self.outputs += [value.name for value in ctx.tensors]
        moving = [value for k, value in enumerate(ctx.tensors) if k not in constant]
        names = [value.name for value in moving]
        if self.wanted in names:
            self.seeded = self.wanted
        elif self.wanted is None and len(moving) == 1 and _is_number(moving[0]):
            self.seeded = names[0]
        return [self._gradient(ctx, value) for value in moving]

    def _gradient(self, ctx: Context, value: Value) -> Value:
        if self.seeded is not None:
            return ctx.full_like(value, 1 if value.name == self.seeded else 0)
        fed = ctx.emitter.input(f"{value.name}_grad", value.type)
        self.fed.append(fed.name)
        return fed


def _is_number(value: Value) -> bool:
    shape = value.type.shape
    return value.type.is_float and shape is not None and all(dim == 1 for dim in shape)
