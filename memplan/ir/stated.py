"""What a file itself says of its inputs and outputs.

memplan wrote it (:mod:`memplan.proto.metadata`), so it is believed as far as the graph has such
names: ``memplan rewrite --wrt`` removes some. A file whose interface or metadata were edited says
nothing any more, as its seal is broken. Two things are refused whoever wrote them, as a step would
train something else than its author meant: a pair of different types or shapes, and two outputs
for one input.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from memplan.ir.graph import Graph, Tensor
from memplan.ir.roles import OF_INPUTS, OF_OUTPUTS, Role
from memplan.proto.metadata import GRADIENTS, NEW_VALUES, ROLES, Names

_ROLES = {role.value: role for role in Role}
_SHOWN = 2
_NUMBERS = frozenset({Role.HYPERPARAMETER, Role.STEP_COUNTER})


@dataclass(frozen=True, slots=True)
class Stated:
    """By name: ``roles`` of inputs and outputs; ``new_values``, output → the input whose value it
    is in the next step; ``gradients``, gradient → the input that it is the gradient of. A gradient
    is an output, or in a graph of updates an input. ``refused``: why pairs are none.
    """

    roles: Mapping[str, Role] = field(default_factory=dict)
    new_values: Mapping[str, str] = field(default_factory=dict)
    gradients: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()

    @property
    def pairs(self) -> Mapping[str, str]:
        """Outputs that belong to an input, and that input."""
        return {**self.gradients, **self.new_values}


NOTHING = Stated()
"""Of a file that says nothing."""


def read_stated(
    graph: Graph, metadata: Mapping[str, object], asked: Collection[str] = ()
) -> Stated:
    """What the metadata of a file (:func:`memplan.proto.metadata.get_metadata`) says of a graph,
    but of the outputs in ``asked``, of which the user says it."""
    inputs = {graph.tensors[t].name: graph.tensors[t] for t in graph.inputs}
    outputs = {graph.tensors[t].name: graph.tensors[t] for t in graph.outputs}
    known = inputs | outputs
    refused: list[str] = []

    def pairs(key: str, made: Mapping[str, Tensor], what: str) -> dict[str, str]:
        said, found, of = _names(metadata, key), dict[str, str](), dict[str, str]()
        for out in made:
            given = said.get(out)
            if given is None or given not in inputs or out in asked:
                continue
            if not alike(made[out], inputs[given]) or out == given:
                refused.append(f"'{out}' is {what} of '{given}', of another type or shape")
            elif given in of:
                refused.append(f"outputs '{of[given]}' and '{out}' are both {what} of '{given}'")
            else:
                found[out], of[given] = given, out
        return found

    roles: dict[str, Role] = {}
    said = _names(metadata, ROLES)
    for name, tensor in known.items():
        role = _ROLES.get(said.get(name, ""))
        kinds = (OF_INPUTS if name in inputs else set()) | (
            OF_OUTPUTS if name in outputs else set()
        )
        number = math.prod(tensor.shape) == 1
        if role is None or role not in kinds or name in asked:
            continue
        if number or role not in _NUMBERS:
            roles[name] = role
    new_values = pairs(NEW_VALUES, outputs, "the next value")
    gradients = pairs(GRADIENTS, known, "the gradient")
    own = {out: given for out, given in gradients.items() if out not in new_values}
    return Stated(roles, new_values, own, tuple(refused))


def _names(metadata: Mapping[str, object], key: str) -> Mapping[str, str]:
    """A mapping of names to names or words."""
    found = metadata.get(key)
    return found if isinstance(found, Names) else {}


def alike(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have one type and shape."""
    return (first.dtype, first.shape) == (second.dtype, second.shape)


def some(names: Collection[str]) -> str:
    """The first names, and how many more there are."""
    first = ", ".join(f"'{name}'" for name in list(names)[:_SHOWN])
    return first + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")
