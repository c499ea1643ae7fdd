"""Foreign gradients by the rules of ``grad``: a node that stands for the forward one, and its rule.

``ConvGrad(dY, X, W)`` is what the rule of ``Conv`` makes of X, W and dY. The forward node itself is
not needed, only what its rule reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import entry_for
from memplan.autodiff.emit.value import Value
from memplan.errors import ModelError
from memplan.shapes.tensor_type import TensorType
from memplan.shapes.training_ops import differentiated


@dataclass(frozen=True, slots=True)
class Forward:
    """A forward node as its rule sees it.

    ``grad`` is the gradient of its first output. ``outputs`` stand for those that the rule reads;
    one of which only the shape matters may be any tensor of that shape, such as its own gradient.
    ``name`` is the node behind which what belongs to the forward part is placed. ``attributes``
    come on top of the foreign node's.
    """

    op: str
    grad: Value
    inputs: Sequence[Value | None]
    outputs: Sequence[Value]
    name: str = ""
    attributes: Sequence[onnx.AttributeProto] = field(default=())


def gradients(
    ctx: Context,
    forward: Forward,
    wanted: Sequence[bool] = (True,),
) -> list[Value | None]:
    """Gradients of the inputs of ``forward`` that are ``wanted``; None for the others.

    Args:
        ctx: the foreign node, whose attributes are the forward node's.
        forward: the node that it is the gradient of.
        wanted: which inputs a gradient is wanted of.
    """
    node = onnx.NodeProto(op_type=forward.op, name=forward.name or ctx.node.name)
    node.input.extend(value.name if value is not None else "" for value in forward.inputs)
    node.output.extend(value.name for value in forward.outputs)
    stated = {item.name for item in forward.attributes}
    node.attribute.extend(item for item in ctx.node.attribute if item.name not in stated)
    node.attribute.extend(forward.attributes)
    entry = entry_for(node)
    assert entry is not None
    assert entry.rule is not None
    inner = Context(ctx.emitter, node, (forward.grad,), tuple(wanted))
    inner.outputs = tuple(forward.outputs)
    inner.inputs = tuple(forward.inputs)
    parts = entry.rule(inner)
    assert isinstance(parts, Sequence)
    found: list[Value | None] = []
    for slot, want in enumerate(wanted):
        part = parts[slot] if want and slot < len(parts) else None
        grad = part() if callable(part) else part
        target = forward.inputs[slot]
        if grad is not None and target is not None:
            grad = inner.sum_to(grad, inner.y, target) if entry.elementwise else grad
            grad = inner.expand_like(grad, target)
        found.append(grad)
    return found


def source(ctx: Context, shape: Value | None, output: int = 0) -> Value:
    """The tensor that output ``output`` of a foreign node is the gradient of.

    Gradients of gathers and slices are not given it but its ``shape``. It is a stand-in that must
    not be read where nothing but a constant tells the shape.

    Raises:
        ModelError: nothing in the file tells which one it is.
    """
    name = differentiated(ctx.node.output[output])
    if name is not None and ctx.emitter.types.get(name) is not None:
        return ctx.tensor(name)
    made = ctx.maker(shape) if shape is not None else None
    if made is not None and made.op_type == "Shape" and not made.attribute:
        return ctx.tensor(made.input[0])
    known = ctx.constant(shape)
    result = ctx.outputs[output]
    sizes = tuple(int(size) for size in known) if known is not None else None
    if sizes is None and result is not None:
        sizes = result.type.sizes
    if sizes is None:
        raise ModelError(
            f"{ctx.node.op_type} '{ctx.node.name}': the shape of what it is the gradient of is "
            "computed at run time",
            "add value_info for its output",
        )
    stand_in = ctx.emitter.fresh(f"{ctx.node.name}/x")
    ctx.emitter.types[stand_in] = TensorType(ctx.tensors[0].dtype, sizes)
    return ctx.tensor(stand_in)


def wanted(ctx: Context, count: int) -> list[bool]:
    """Which of the first ``count`` outputs somebody reads."""
    return [k < len(ctx.outputs) and ctx.outputs[k] is not None for k in range(count)]
