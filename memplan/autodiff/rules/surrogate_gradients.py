"""Values whose gradient goes elsewhere (:mod:`memplan.proto.surrogates`)."""

from __future__ import annotations

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradients, gradient
from memplan.proto.surrogates import DOMAIN, OP


@gradient(OP, domain=DOMAIN, broadcast=True, inputs=(1,))
def backward_through(ctx: Context) -> Gradients:
    """To the surrogate, if there is one, and nothing to the value."""
    return (None, ctx.dy)
