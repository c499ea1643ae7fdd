"""The training contract: what every graph input and output of a training step is.

A file says it in its metadata (:mod:`memplan.proto.metadata`), where ``memplan grad`` and the
capture from PyTorch write it. For any other file it is found, one input or output at a time:

1. Somebody says so: ``--state OUT=IN``.
2. By name: ``X_new``, ``X.new`` and their like are the next value of ``X``; ``X_grad`` and
   ``X.grad`` its gradient.
3. By data flow: an output without such a name is the next value of ``X`` if the node that makes it
   is arithmetic that reads ``X``, has its type and shape, and no other output claims ``X``.
4. The loss, parameters and phases are those of :mod:`memplan.ir.phases`. An input that nobody
   renews is a hyperparameter if it is a number that only the update reads, else part of the batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from memplan.errors import UsageError
from memplan.ir.graph import Graph, Phase, Tensor
from memplan.ir.phases import Phases
from memplan.ir.stated import alike, read_stated
from memplan.proto.metadata import GRADIENTS, NEW_VALUES, ROLES
from memplan.shapes.tensor_type import FLOATS

NEW_SUFFIXES = ("_new", ".new", "_next", ".next", "_updated", ".updated")
GRADIENT_SUFFIXES = ("_grad", ".grad")
_STEP_NAME = re.compile(r"(^|[._/])([a-z]+_)?(step|t|iteration|iter)$", re.IGNORECASE)
_RATE_NAME = re.compile(r"(^|[._/])(lr|learning_rate|eta)$", re.IGNORECASE)
# Arithmetic that an update ends with.
_ENDS = frozenset({":Add", ":Sub", ":Sum", ":Mul", ":Div", ":Where"})


class Role(StrEnum):
    """What a graph input or output is to a training step."""

    PARAMETER = "parameter"
    OPTIMIZER_STATE = "optimizer-state"
    RUNNING_STATISTIC = "running-statistic"
    STEP_COUNTER = "step-counter"
    BATCH = "batch"
    HYPERPARAMETER = "hyperparameter"
    LOSS = "loss"
    GRADIENT = "gradient"
    NEW_VALUE = "new-value"
    OUTPUT = "output"


STATE = frozenset({Role.PARAMETER, Role.OPTIMIZER_STATE, Role.RUNNING_STATISTIC, Role.STEP_COUNTER})
"""The roles of inputs that live from one step to the next."""


@dataclass(frozen=True, slots=True)
class Contract:
    """What every graph input and output is, by name.

    ``new_values`` maps an output to the input whose value it is in the next step, ``gradients`` one
    to the input that it is the gradient of (an input, in a graph of updates). ``stated``: the file
    itself says what it renews; else ``notes`` say what was concluded from less than a name.
    """

    roles: Mapping[str, Role]
    new_values: Mapping[str, str]
    gradients: Mapping[str, str]
    stated: bool = False
    notes: tuple[str, ...] = ()

    def named(self, *roles: Role) -> tuple[str, ...]:
        """The inputs or outputs that have one of these roles, in the order of the graph."""
        return tuple(name for name, role in self.roles.items() if role in roles)

    @property
    def loss(self) -> str | None:
        """The loss output, if there is one."""
        return next(iter(self.named(Role.LOSS)), None)

    @property
    def state(self) -> tuple[str, ...]:
        """The inputs that live from one step to the next, those that nothing renews among them."""
        return self.named(*STATE)

    def as_metadata(self) -> dict[str, object]:
        """What :func:`memplan.proto.metadata.set_metadata` stores of it."""
        return {
            ROLES: {name: str(role) for name, role in self.roles.items()},
            NEW_VALUES: dict(self.new_values),
            GRADIENTS: dict(self.gradients),
        }


def find_contract(
    graph: Graph,
    phases: Phases,
    metadata: Mapping[str, object],
    asked: Mapping[str, str] | None = None,
) -> Contract:
    """The contract of a training step.

    Args:
        graph: the graph.
        phases: its phases.
        metadata: the file's (:func:`memplan.proto.metadata.get_metadata`); what does not fit the
            graph is not believed.
        asked: output → the input whose next value it is (``--state``); an empty input says that
            the output is nobody's.

    Raises:
        UsageError: ``asked`` names what is not there, or a pair of different types.
    """
    return _Finder(graph, phases, metadata, asked or {}).run()


class _Finder:
    """Works on names of inputs and outputs."""

    def __init__(
        self,
        graph: Graph,
        phases: Phases,
        metadata: Mapping[str, object],
        asked: Mapping[str, str],
    ) -> None:
        self.graph = graph
        self.phases = phases
        tensors = graph.tensors
        self.inputs = {tensors[t].name: tensors[t] for t in graph.inputs}
        self.outputs = {tensors[t].name: tensors[t] for t in graph.outputs}
        said = read_stated(graph, metadata)
        self.roles = said.roles
        self.new_values = dict(said.new_values)
        self.stated = bool(self.new_values or self.roles)
        self.gradients = dict(said.gradients)
        self.notes: list[str] = []
        self.denied: set[str] = set()
        self.new_of: dict[str, Tensor] = {}
        self.behind_loss = _behind_loss(graph, phases)
        self._ask(asked)

    def run(self) -> Contract:
        if not self.stated:
            self._by_name()
            self._by_flow()
        self.new_of = {given: self.outputs[out] for out, given in self.new_values.items()}
        roles = {name: self._input_role(tensor) for name, tensor in self.inputs.items()}
        roles |= {name: self._output_role(tensor) for name, tensor in self.outputs.items()}
        return Contract(roles, self.new_values, self.gradients, self.stated, tuple(self.notes))

    def _fits(self, out: str, given: str) -> bool:
        """Whether two names are an output and an input of one type and shape."""
        made, taken = self.outputs.get(out), self.inputs.get(given)
        return made is not None and taken is not None and alike(made, taken)

    def _ask(self, asked: Mapping[str, str]) -> None:
        for out, given in asked.items():
            if out not in self.outputs:
                raise UsageError(f"--state {out}={given}: the graph has no such output")
            self.new_values.pop(out, None)
            self.gradients.pop(out, None)
            self.denied.add(out)
            if not given:
                continue
            if given not in self.inputs:
                raise UsageError(f"--state {out}={given}: the graph has no such input")
            if not self._fits(out, given):
                raise UsageError(
                    f"--state {out}={given}: they have different types or shapes",
                    "the next value of an input has its type and shape",
                )
            self.new_values[out] = given

    def _by_name(self) -> None:
        for out in self.outputs:
            if out in self.new_values or out in self.gradients or out in self.denied:
                continue
            for suffixes, found in (
                (NEW_SUFFIXES, self.new_values),
                (GRADIENT_SUFFIXES, self.gradients),
            ):
                given = _without_suffix(out, suffixes)
                if given is not None and self._fits(out, given):
                    found[out] = given
                    break

    def _by_flow(self) -> None:
        """Rule 3. Only for what the loss depends on or what only the update reads."""
        taken = {*self.new_values.values(), *self.gradients.values()}
        claims: dict[str, list[str]] = {}
        for out, tensor in self.outputs.items():
            if out in self.new_values or out in self.gradients or out in self.denied:
                continue
            if tensor.id == self.phases.loss or tensor.producer < 0:
                continue
            node = self.graph.nodes[tensor.producer]
            if node.key not in _ENDS or self.phases.of[node.id] in (Phase.FORWARD, Phase.LOSS):
                continue
            read = {self.graph.tensors[t].name for t in node.reads}
            near = [x for x in read if x in self.inputs and x not in taken and self._fits(out, x)]
            if len(near) == 1 and tensor.dtype in FLOATS:
                claims.setdefault(near[0], []).append(out)
        for given, outs in claims.items():
            if len(outs) == 1:
                self.new_values[outs[0]] = given
                self.notes.append(
                    f"'{outs[0]}' is taken for the next value of '{given}', from the data flow; "
                    f"--state {outs[0]}=NAME says otherwise"
                )

    def _input_role(self, tensor: Tensor) -> Role:
        said = self.roles.get(tensor.name)
        if said in set(Role):
            return Role(said)
        renewed = tensor.name in self.new_of
        number = math.prod(tensor.shape) == 1
        if number and _STEP_NAME.search(tensor.name):
            return Role.STEP_COUNTER
        if tensor.id in self.phases.parameters or tensor.name in self.gradients.values():
            return Role.PARAMETER
        if renewed:
            made = self.new_of[tensor.name].producer
            return Role.OPTIMIZER_STATE if made in self.behind_loss else Role.RUNNING_STATISTIC
        if number and tensor.dtype in FLOATS and (_RATE_NAME.search(tensor.name)):
            return Role.HYPERPARAMETER
        phases = {self.phases.of[reader] for reader in tensor.readers}
        if number and phases == {Phase.UPDATE}:
            return Role.HYPERPARAMETER
        return Role.BATCH

    def _output_role(self, tensor: Tensor) -> Role:
        said = self.roles.get(tensor.name)
        if tensor.name in self.new_values:
            return Role.NEW_VALUE
        if tensor.id == self.phases.loss:
            return Role.LOSS
        if tensor.name in self.gradients:
            return Role.GRADIENT
        kinds = (Role.LOSS, Role.GRADIENT, Role.NEW_VALUE)
        return Role(said) if said in set(Role) and said not in kinds else Role.OUTPUT


def _behind_loss(graph: Graph, phases: Phases) -> set[int]:
    """The nodes that depend on what the loss is made from: gradients, and what is made of them."""
    tensors: set[int] = set()
    found: set[int] = set()
    for node in graph.nodes:
        if phases.of[node.id] is Phase.LOSS:
            tensors.update(t for t in node.reads if graph.tensors[t].producer >= 0)
            tensors.update(node.writes)
    for node in graph.nodes:
        if not tensors.isdisjoint(node.reads):
            found.add(node.id)
            tensors.update(node.writes)
    return found


def _without_suffix(name: str, suffixes: tuple[str, ...]) -> str | None:
    for suffix in suffixes:
        if name.endswith(suffix) and len(name) > len(suffix):
            return name.removesuffix(suffix)
    return None
