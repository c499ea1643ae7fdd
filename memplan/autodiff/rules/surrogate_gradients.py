"""Values whose gradient goes elsewhere (:mod:`memplan.proto.surrogates`)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.emitter import Emitter
from memplan.autodiff.emit.gradient_registry import Gradients, gradient, no_gradient
from memplan.autodiff.emit.value import Value
from memplan.errors import ModelError
from memplan.proto.nodes import captured_names
from memplan.proto.surrogates import DOMAIN, GRADIENT_OF, OP, WITH_GRADIENT

no_gradient(GRADIENT_OF, domain=DOMAIN)


@gradient(OP, domain=DOMAIN, broadcast=True, inputs=(1,))
def backward_through(ctx: Context) -> Gradients:
    """To the surrogate, if there is one, and nothing to the value."""
    return (None, ctx.dy)


@gradient(WITH_GRADIENT, domain=DOMAIN)
def with_gradient(ctx: Context) -> Gradients:
    """The recorded backward once more, with the real gradients in the place of those that stood for
    them.

    Raises:
        ModelError: the node is not one that capture makes.
    """
    ys, xs = ctx.attribute("ys", 0), ctx.attribute("xs", 0)
    if ys < 1 or xs < 1 or len(ctx.tensors) != ys + 2 * xs or len(ctx.outputs) != ys:
        raise ModelError(
            f"{WITH_GRADIENT} '{ctx.node.name}' has other inputs than it states", "capture it again"
        )
    values = ctx.tensors[:ys]
    grads = [
        ctx.full_like(value) if grad is None else grad
        for value, grad in zip(values, ctx.grads, strict=True)
    ]
    spliced = _Spliced(ctx.emitter, ctx.attribute("number", -1), grads)
    wanted = zip(ctx.tensors[ys : ys + xs], ctx.tensors[ys + xs :], strict=True)
    made = [lambda name=dx.name: spliced.tensor(name) for _, dx in wanted]
    return (*(None for _ in values), *made)


class _Spliced:
    """A recorded backward: ``nodes`` are those that depend on what stood for gradients."""

    def __init__(self, emitter: Emitter, number: int, grads: Sequence[Value]) -> None:
        self.emitter = emitter
        self.names: dict[str, str] = {}
        self.nodes: dict[str, onnx.NodeProto] = {}
        for name, node in emitter.makers.items():
            if node.domain == DOMAIN and node.op_type == GRADIENT_OF:
                stated = {item.name: item.i for item in node.attribute}
                slot = int(stated.get("slot", -1))
                if stated.get("number") == number and 0 <= slot < len(grads):
                    self.names[name] = grads[slot].name
            elif any(n in self.names or n in self.nodes for n in _reads(node)):
                self.nodes[name] = node

    def tensor(self, name: str) -> Value:
        """A tensor of the recorded backward, of the real gradients."""
        todo, needed = [name], dict[str, onnx.NodeProto]()
        while todo:
            node = self.nodes.get(each := todo.pop())
            if node is not None and each not in self.names and node.name not in needed:
                needed[node.name] = node
                todo += _reads(node)
        for node in self.nodes.values():  # in the order of the graph
            if needed.pop(node.name, None) is not None:
                self.names |= self.emitter.again(node, self.names)
        return self.emitter.tensor(self.names.get(name, name))


def _reads(node: onnx.NodeProto) -> list[str]:
    return [*node.input, *captured_names(node)]
