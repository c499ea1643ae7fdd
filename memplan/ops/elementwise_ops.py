"""Operators that compute every element from those that broadcasting lays on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod

from memplan.ops.facets import WHOLE, Operator, Use, aligned
from memplan.ops.instance import Instance, broadcast, item_bytes


def by_element(instance: Instance) -> Iterator[Use]:
    """Any axis of the result; operands that repeat along it are read whole."""
    shapes = [tensor.shape if tensor is not None else () for tensor in instance.inputs]
    result = broadcast(*shapes)
    for axis, size in enumerate(result):
        reads = tuple(aligned(shape, len(result), axis, size) for shape in shapes)
        if any(read != WHOLE for read in reads):
            yield Use(reads, (axis,))


def _where(instance: Instance) -> int | None:
    """Two masked copies, one per branch: |condition x X| + |condition x Y| elements.

    Source: where_op.cc selects each branch into a tensor of its own, then merges the two.
    """
    condition, x, y = instance.inputs[0], instance.inputs[1], instance.inputs[2]
    if condition is None or x is None or y is None:
        return None
    return sum(prod(broadcast(condition.shape, side.shape)) * item_bytes(x) for side in (x, y))


def _variadic(instance: Instance) -> int | None:
    """Partial results of three or more operands folded from the left; the last one is the output.

    Two neighbouring partial results live at a time: max(t[i] + t[i+1]) - output.
    Source: element_wise_ops.cc, UntypedBroadcastVariadic.
    """
    operands = [tensor for tensor in instance.inputs if tensor is not None]
    if len(operands) < 3:
        return 0
    size = item_bytes(operands[0])
    shape: tuple[int, ...] = tuple(operands[0].shape)
    partial = [0]
    for tensor in operands[1:]:
        shape = broadcast(shape, tensor.shape)
        partial.append(prod(shape) * size)
    peak = max(first + second for first, second in pairwise(partial))
    return max(0, peak - partial[-1])


def _once_output(instance: Instance) -> int | None:
    """One tensor like the output."""
    y = instance.output(0)
    return None if y is None else y.nbytes


def _bias_once_output(instance: Instance) -> int | None:
    """One tensor like the output when there is a bias (the biased input), else none."""
    return 0 if instance.input(1) is None else _once_output(instance)


_PLAIN = (
    *("Pow", "Abs", "Sign", "Exp", "Log", "Sqrt", "Reciprocal", "Tanh", "Sigmoid", "Relu", "Elu"),
    *("LeakyRelu", "Selu", "Celu", "HardSigmoid", "Softplus", "Softsign", "Erf", "Gelu", "PRelu"),
    *("Sin", "Cos", "Floor", "Ceil", "Round", "Cast", "Clip", "Mod", "IsNaN", "IsInf"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or", "Xor"),
)
# What they overwrite is tried in tests/ort/test_state.py.
_VARIADIC = Operator(
    axes=by_element,
    alone=True,
    overwrites=(0, 1),
    in_passes=True,
    scratch=_variadic,
)

OPERATORS: Mapping[str, Operator] = {
    **dict.fromkeys((f":{op}" for op in _PLAIN), Operator(axes=by_element)),
    **dict.fromkeys((":Add", ":Sub", ":Mul", ":Div"), Operator(axes=by_element, overwrites=(0, 1))),
    **dict.fromkeys((":Sum", ":Max", ":Min"), _VARIADIC),
    ":Mean": Operator(axes=by_element, scratch=_variadic),
    ":Neg": Operator(axes=by_element, overwrites=(0,)),
    # A copy of a buffer onto itself, which kernels leave out.
    ":Identity": Operator(axes=by_element, moves=True, overwrites=(0,)),
    # It computes into temporaries before it writes.
    ":Where": Operator(axes=by_element, overwrites=(1, 2), scratch=_where),
    **dict.fromkeys(("com.microsoft:Gelu", "com.microsoft:QuickGelu"), Operator(axes=by_element)),
    "com.microsoft:BiasGelu": Operator(axes=by_element, scratch=_once_output),
    "com.microsoft:FastGelu": Operator(axes=by_element, scratch=_bias_once_output),
}
