"""What a file itself says of its inputs and outputs: a claim, which is held against the graph.

1. What speaks of names that the graph does not have says nothing of it (a note). What ``memplan
   rewrite --wrt`` removed is not missed.
2. A role of another side (an input that is a loss), two losses, a value that is no mapping of
   names, a pair of which one half is not there or that differ in type or shape, two outputs for one
   input, an output that is both a gradient and a next value, a loss that is a next value: these are
   contradictions. Sessions and trainers refuse such a file.
3. What is renewed is state, and a counter is a whole number or is named like one: a role that says
   otherwise is not believed (a note), and the role is found as in a file that does not say it.

What the graph alone cannot tell, names and data flow can (:mod:`memplan.ir.doubts`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field

from memplan.ir.graph import Graph, Tensor
from memplan.ir.naming import is_counter_name
from memplan.ir.roles import OF_INPUTS, OF_OUTPUTS, RENEWED, Role
from memplan.proto.metadata import GRADIENTS, NEW_VALUES, PREFIX, ROLES, Names, Unreadable
from memplan.shapes.tensor_type import FLOATS
from memplan.units import counted

_REMOVED = ("removed_inputs", "removed_outputs")
_ROLES = frozenset(Role)
_SHOWN = 2


@dataclass(frozen=True, slots=True)
class Stated:
    """By name: ``roles`` of inputs and outputs; ``new_values``, output → the input whose value it
    is in the next step; ``gradients``, gradient → the input that it is the gradient of. A gradient
    is an output, or in a graph of updates an input.

    ``removed``: inputs whose next value or gradient was an output, or is said to be another's.
    ``contradictions``: why the claims cannot all be true; ``notes``: what is not believed, and does
    no harm.
    """

    roles: Mapping[str, Role] = field(default_factory=dict)
    new_values: Mapping[str, str] = field(default_factory=dict)
    gradients: Mapping[str, str] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    contradictions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

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
    if not any(key in metadata for key in (ROLES, NEW_VALUES, GRADIENTS)):
        return NOTHING
    return _Reader(graph, metadata, asked).run()


def alike(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have one type and shape."""
    return (first.dtype, first.shape) == (second.dtype, second.shape)


def some(names: Collection[str]) -> str:
    """The first names, and how many more there are."""
    first = ", ".join(f"'{name}'" for name in list(names)[:_SHOWN])
    return first + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")


class _Reader:
    """Works on names of inputs and outputs."""

    def __init__(
        self, graph: Graph, metadata: Mapping[str, object], asked: Collection[str]
    ) -> None:
        tensors = graph.tensors
        self.asked = asked
        self.metadata = metadata
        self.inputs = {tensors[t].name: tensors[t] for t in graph.inputs}
        self.outputs = {tensors[t].name: tensors[t] for t in graph.outputs}
        self.known = self.inputs | self.outputs
        lists = (metadata.get(key) for key in _REMOVED)
        self.gone = {x for names in lists if isinstance(names, list) for x in map(str, names)}
        self.gone -= self.known.keys()
        self.removed: set[str] = set()
        self.foreign = 0
        self.first_foreign: dict[str, None] = {}
        self.contradictions: list[str] = []
        self.notes: list[str] = []

    def run(self) -> Stated:
        roles = self._roles()
        new_values = self._pairs(NEW_VALUES, self.outputs, "the next value")
        gradients = self._pairs(GRADIENTS, self.known, "the gradient")
        for name in [name for name in gradients if name in new_values]:
            self._refuse(f"'{name}' is both a gradient and a next value")
            del gradients[name]
        self._believe(roles, new_values)
        if self.foreign:
            entries = counted(self.foreign, "entry", "entries")
            self.notes.append(
                f"no input or output for {entries} of the file's metadata: "
                f"'{next(iter(self.first_foreign))}'"
            )
        return Stated(
            roles,
            new_values,
            gradients,
            frozenset(self.removed),
            tuple(self.contradictions),
            tuple(self.notes),
        )

    def _refuse(self, what: str) -> None:
        self.contradictions.append(what)

    def _mapping(self, key: str) -> Names:
        """A mapping of names to names or words."""
        value = self.metadata.get(key, {})
        if isinstance(value, Names):
            return value
        if isinstance(value, Unreadable):
            self._refuse(f"{PREFIX}{key} {value}")
        elif isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
            return Names(value)
        else:
            self._refuse(f"{PREFIX}{key} is not a mapping of names")
        return Names({})

    def _miss(self, said: Names, here: Set[str]) -> None:
        """Count what speaks of names that are not there."""
        missed = len(said) - len(here) - len(said.keys() & (self.gone - here))
        if missed:
            self.foreign += missed
            names = (name for name in said if name not in here and name not in self.gone)
            self.first_foreign[next(names)] = None

    def _roles(self) -> dict[str, Role]:
        said = self._mapping(ROLES)
        here = {name: word for name in self.known if (word := said.get(name)) is not None}
        self._miss(said, here.keys())
        roles = {name: Role(word) for name, word in here.items() if word in _ROLES}
        unknown = {name: word for name, word in here.items() if word not in _ROLES}
        if unknown:
            name, word = next(iter(unknown.items()))
            self.notes.append(
                f"{counted(len(unknown), 'role')} that memplan does not know: '{word}' of '{name}'"
            )
        for name in self.asked:
            roles.pop(name, None)
        for name, role in list(roles.items()):
            kinds = (OF_INPUTS if name in self.inputs else set()) | (
                OF_OUTPUTS if name in self.outputs else set()
            )
            if role not in kinds:
                side = "input" if name in self.inputs else "output"
                self._refuse(f"the {side} '{name}' has the role '{role}'")
                del roles[name]
        losses = [name for name, role in roles.items() if role is Role.LOSS]
        if len(losses) > 1:
            self._refuse(f"'{losses[0]}' and '{losses[1]}' are both the loss")
        for name in losses:
            tensor = self.outputs[name]
            if tensor.dtype not in FLOATS or math.prod(tensor.shape) != 1:
                self._refuse(f"the loss '{name}' is not a floating-point number")
        return roles

    def _pairs(self, key: str, made: Mapping[str, Tensor], what: str) -> dict[str, str]:
        said = self._mapping(key)
        ends = said.keys() & self.known.keys()
        if not {x for x in self.inputs if x in said.told} <= {said[out] for out in ends}:
            ends |= {out for out, given in said.items() if given in self.inputs}
        pairs: dict[str, str] = {}
        of: dict[str, str] = {}
        for out in [*(out for out in self.known if out in ends), *sorted(ends - self.known.keys())]:
            given = said[out]
            if out in self.asked or out in self.gone or given in self.gone:
                self.removed |= {given} & self.inputs.keys()
                continue
            missing = out if out not in made else given if given not in self.inputs else None
            if missing is not None:
                self._refuse(f"'{out}' is {what} of '{given}', but '{missing}' does not exist")
            elif not alike(made[out], self.inputs[given]) or out == given:
                self._refuse(f"'{out}' is {what} of '{given}', of another type or shape")
            elif given in of:
                self._refuse(f"outputs '{of[given]}' and '{out}' are both {what} of '{given}'")
            else:
                of[given] = out
                pairs[out] = given
        self._miss(said, ends)
        return pairs

    def _believe(self, roles: dict[str, Role], new_values: Mapping[str, str]) -> None:
        """Take back the roles that what is renewed, and what can be counted, speaks against."""
        renewed = {*new_values.values()}
        wrong: dict[str, str] = {}
        for name, role in roles.items():
            if name in new_values and role is Role.LOSS:
                self._refuse(f"the loss '{name}' is the next value of '{new_values[name]}'")
            elif name in new_values and role is not Role.NEW_VALUE and name not in self.inputs:
                wrong[name] = f"it is the next value of '{new_values[name]}'"
            elif name in renewed and role not in RENEWED:
                wrong[name] = "it has a next value, so it is state"
            elif role is Role.STEP_COUNTER and not self._counts(name, name in renewed):
                wrong[name] = "it does not count steps"
            elif role is Role.HYPERPARAMETER and math.prod(self.inputs[name].shape) != 1:
                wrong[name] = "it is not a number"
        for name, why in wrong.items():
            self.notes.append(f"the role '{roles.pop(name)}' of '{name}' is not believed: {why}")

    def _counts(self, name: str, renewed: bool) -> bool:
        """Whether an input may be a step counter: a number that is whole, or is named like one.
        One that nothing renews is counted by the trainer, and must be named like one."""
        tensor = self.inputs[name]
        if math.prod(tensor.shape) != 1:
            return False
        return is_counter_name(name) or (renewed and tensor.dtype not in FLOATS)
