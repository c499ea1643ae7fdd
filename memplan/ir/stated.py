"""What a file itself says of its inputs and outputs, as far as it fits the graph.

Metadata is the author's: what names something that is not there, or pairs tensors of different
types, is not believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memplan.ir.graph import Graph, Tensor
from memplan.proto.metadata import GRADIENTS, NEW_VALUES, ROLES


@dataclass(frozen=True, slots=True)
class Stated:
    """By name: ``roles`` of inputs and outputs; ``new_values``, output → the input whose value it
    is in the next step; ``gradients``, gradient → the input that it is the gradient of. A gradient
    is an output, or in a graph of updates an input."""

    roles: Mapping[str, str] = field(default_factory=dict)
    new_values: Mapping[str, str] = field(default_factory=dict)
    gradients: Mapping[str, str] = field(default_factory=dict)

    @property
    def pairs(self) -> Mapping[str, str]:
        """Outputs that belong to an input, and that input."""
        return {**self.gradients, **self.new_values}


NOTHING = Stated()
"""Of a file that says nothing."""


def read_stated(graph: Graph, metadata: Mapping[str, object]) -> Stated:
    """What the metadata of a file (:func:`memplan.proto.metadata.get_metadata`) says of a graph."""
    tensors = graph.tensors
    inputs = {tensors[t].name: tensors[t] for t in graph.inputs}
    outputs = {tensors[t].name: tensors[t] for t in graph.outputs}
    known = inputs | outputs
    roles = {name: role for name, role in _strings(metadata.get(ROLES)) if name in known}
    new_values = {
        out: given
        for out, given in _strings(metadata.get(NEW_VALUES))
        if out in outputs and given in inputs and alike(outputs[out], inputs[given])
    }
    gradients = {
        grad: given
        for grad, given in _strings(metadata.get(GRADIENTS))
        if grad in known and given in inputs and alike(known[grad], inputs[given])
        if grad not in new_values and grad != given
    }
    return Stated(roles, new_values, gradients)


def alike(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have one type and shape."""
    return (first.dtype, first.shape) == (second.dtype, second.shape)


def _strings(value: object) -> list[tuple[str, str]]:
    """A mapping of strings, as a file may say; what is not one is left out."""
    if not isinstance(value, dict):
        return []
    return [
        (key, each) for key, each in value.items() if isinstance(key, str) and isinstance(each, str)
    ]
