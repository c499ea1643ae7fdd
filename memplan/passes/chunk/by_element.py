"""Uses of operators that compute every element, or every row, from those at the same place."""

from __future__ import annotations

from collections.abc import Iterator

from memplan.ir.graph import ABSENT, Node
from memplan.passes.chunk.uses import WHOLE, Facts, Use, aligned, int_attribute, rule

_BY_ELEMENT = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Neg", "Abs", "Sign", "Exp", "Log", "Sqrt", "Reciprocal"),
    *("Tanh", "Sigmoid", "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "Softplus"),
    *("Softsign", "Erf", "Gelu", "Sin", "Cos", "Floor", "Ceil", "Round", "Min", "Max", "Sum"),
    *("Mean", "Where", "Cast", "Identity", "Equal", "Less", "LessOrEqual", "Greater", "And"),
    *("GreaterOrEqual", "Not", "Or", "Xor", "IsNaN", "IsInf", "Clip", "PRelu", "Mod"),
)
_BY_ELEMENT_OF_RUNTIME = ("Gelu", "FastGelu", "BiasGelu", "QuickGelu")


@rule(*(f":{op}" for op in _BY_ELEMENT), *(f"com.microsoft:{op}" for op in _BY_ELEMENT_OF_RUNTIME))
def by_element(facts: Facts, node: Node) -> Iterator[Use]:
    """Any axis of the result; operands that repeat along it are read whole."""
    result = facts.shape(node.outputs[0])
    for axis, size in enumerate(result):
        reads = tuple(aligned(facts.shape(t), len(result), axis, size) for t in node.inputs)
        if any(read != WHOLE for read in reads):
            yield Use(reads, (axis,))


@rule(":Softmax", ":LogSoftmax")
def softmax(facts: Facts, node: Node) -> Iterator[Use]:
    """Any axis but the one that it normalizes."""
    rank = len(facts.shape(node.inputs[0]))
    normalized = int_attribute(node, "axis", -1) % max(rank, 1)
    for axis in range(rank):
        if axis != normalized:
            yield Use((axis,), (axis,))


@rule(":LayerNormalization", ":SimplifiedLayerNormalization", ":RMSNormalization")
def layer_norm(facts: Facts, node: Node) -> Iterator[Use]:
    """The axes that it does not normalize; scale and bias are read whole."""
    rank = len(facts.shape(node.inputs[0]))
    first = int_attribute(node, "axis", -1)
    for axis in range(first + rank if first < 0 else first):
        reads = (axis, *(WHOLE for _ in node.inputs[1:]))
        makes = tuple(WHOLE if t == ABSENT else axis for t in node.outputs)
        if all(len(facts.shape(t)) < rank for t in node.inputs[1:]):
            yield Use(reads, makes)


@rule("com.microsoft:SkipLayerNormalization")
def skip_layer_norm(facts: Facts, node: Node) -> Iterator[Use]:
    """All axes but the last, if both summands have the whole shape."""
    shape = facts.shape(node.inputs[0])
    if facts.shape(node.inputs[1]) != shape:
        return
    for axis in range(len(shape) - 1):
        reads = (axis, axis, *(WHOLE for _ in node.inputs[2:]))
        yield Use(reads, tuple(WHOLE if t == ABSENT else axis for t in node.outputs))
