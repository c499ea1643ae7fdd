"""The training contract: what every graph input and output of a training step is.

A file says it in its metadata (:mod:`memplan.ir.stated`), where ``memplan grad`` and the capture
from PyTorch write it. For any other file it is found, one input or output at a time:

1. Somebody says so: ``--state OUT=IN``.
2. By name (:mod:`memplan.ir.naming`): ``X_new``, ``X.new`` and their like are the next value of
   ``X``; ``X_grad``, ``X.grad`` and ``adj_X`` its gradient.
3. By data flow: an output without such a name is the next value of ``X`` if the node that makes it
   is arithmetic that reads ``X``, has its type and shape, and no other output claims ``X``. Of
   moments, which only the update reads, a chain of arithmetic may lie between.
4. By order: where no gradient has a name, outputs of the backward part that have the types and
   shapes of a run of inputs are the gradients of these.
5. The loss, parameters and phases are those of :mod:`memplan.ir.phases`. An input that nobody
   renews is a hyperparameter if it is a number that only the backward part and the update read (a
   learning rate, a loss scale, the gradient of the loss), else part of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from memplan.errors import ModelError, UsageError
from memplan.ir.graph import Graph, Phase, Tensor
from memplan.ir.naming import differentiated_names, is_counter_name, is_rate_name, renewed_names
from memplan.ir.phases import Phases
from memplan.ir.reach import dependent_nodes
from memplan.ir.roles import (
    OF_INPUTS,
    OF_OUTPUTS,
    RENEWED,
    STATE,
    Role,
    averaged_by,
)
from memplan.ir.stated import alike, read_stated
from memplan.proto.metadata import BROKEN, GRADIENTS, NEW_VALUES, ROLES, SEAL, Names
from memplan.shapes.tensor_type import FLOATS
from memplan.units import counted

# Arithmetic that an update ends with, and what may lie before that.
_ENDS = frozenset({":Add", ":Sub", ":Sum", ":Mul", ":Div", ":Where"})
_ARITHMETIC = _ENDS | {":Neg", ":Max", ":Min", ":Pow", ":Sqrt", ":Cast", ":Identity"}
_AHEAD = frozenset({Phase.FORWARD, Phase.LOSS})
_EDITED = (
    "the file has changed since memplan wrote it (memplan.seal): what its metadata says of inputs "
    "and outputs is ignored, and names and data flow decide"
)
# With the loss in them, they scale it.
_PRODUCTS = frozenset({":Mul", ":Div"})


@dataclass(frozen=True, slots=True)
class Contract:
    """What every graph input and output is, by name.

    ``new_values`` maps an output to the input whose value it is in the next step, ``gradients`` one
    to the input that it is the gradient of (an input, in a graph of updates). ``stated``: the file
    itself says what it renews; else ``notes`` say what was concluded from less than a name.
    ``refused``: what the file says and cannot be.
    """

    roles: Mapping[str, Role]
    new_values: Mapping[str, str]
    gradients: Mapping[str, str]
    stated: bool = False
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

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
        metadata: the file's (:func:`memplan.proto.metadata.get_metadata`).
        asked: output → the input whose next value it is (``--state``); an empty input says that
            the output is nobody's.

    Raises:
        UsageError: ``asked`` names what is not there, or a pair of different types.
    """
    return _Finder(graph, phases, metadata, asked or {}).run()


def sound_contract(
    model: Path,
    graph: Graph,
    phases: Phases,
    metadata: Mapping[str, object],
    asked: Mapping[str, str] | None = None,
) -> Contract:
    """The contract of a step that is to be trained; ``model`` is the file, for messages, all others
    as for :func:`find_contract`.

    Raises:
        ModelError: the file contradicts itself.
        UsageError: ``asked`` does not fit; or two outputs are the next value of one input.
    """
    contract = find_contract(graph, phases, metadata, asked)
    if contract.refused:
        more = f" (and {len(contract.refused) - 1:,} more)" if len(contract.refused) > 1 else ""
        raise ModelError(
            f"{model}: what it says of its inputs and outputs cannot be true: "
            f"{contract.refused[0]}{more}",
            "mend its metadata (memplan.new_values, memplan.gradients), or say whose next value an "
            "output is: --state OUT=IN; OUT= if it is no state",
        )
    claimed: dict[str, str] = {}
    for output, given in contract.new_values.items():
        if given in claimed:
            raise UsageError(
                f"outputs '{claimed[given]}' and '{output}' are both the next value of '{given}'",
                f"say whose next value '{output}' is: state={{'{output}': NAME}} or --state "
                f"{output}=NAME; '' says that it is no state",
            )
        claimed[given] = output
    return contract


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
        said = read_stated(graph, metadata, asked)
        self.roles = said.roles
        self.new_values = dict(said.new_values)
        listed = isinstance(metadata.get(NEW_VALUES), Names)
        self.stated = bool(said.new_values or (said.roles and listed))
        self.gradients = dict(said.gradients)
        self.refused = said.refused
        self.notes = [_EDITED] if metadata.get(SEAL) == BROKEN else []
        self.denied: set[str] = set()
        self.new_of: dict[str, Tensor] = {}
        self.behind_loss = _behind_loss(graph, phases)
        self._ask(asked)

    def run(self) -> Contract:
        if not self.stated:
            self._by_name()
            self._by_flow()
            self._by_order()
        self.new_of = {given: self.outputs[out] for out, given in self.new_values.items()}
        roles = {name: self._input_role(tensor) for name, tensor in self.inputs.items()}
        roles |= {name: self._output_role(tensor) for name, tensor in self.outputs.items()}
        notes = tuple(self.notes)
        return Contract(roles, self.new_values, self.gradients, self.stated, notes, self.refused)

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
        turned: dict[str, str] = {}
        for out in self.outputs:
            if out in self.new_values or out in self.gradients or out in self.denied:
                continue
            new = next((x for x in renewed_names(out) if self._fits(out, x)), None)
            of = [x for x in differentiated_names(out) if x in self.inputs]
            if new is not None:
                self.new_values[out] = new
            elif fitting := [x for x in of if self._fits(out, x)]:
                self.gradients[out] = fitting[0]
            elif of:
                turned[out] = of[0]
        if turned:
            first, given = next(iter(turned.items()))
            self.notes.append(
                f"{counted(len(turned), 'output')} named as gradients have other types or shapes "
                f"than the inputs, and are not taken for gradients: '{first}' of '{given}'"
            )

    def _by_flow(self) -> None:
        """Rule 3: first what a node reads itself, then what only the update reads, further away."""
        found: dict[str, str] = {}
        for near in (self._read_by, self._renewed_by):
            claims = self._claims(near)
            self.new_values |= claims
            found |= claims
        if found:
            out, given = next(iter(found.items()))
            more = f", and {len(found) - 1:,} more alike" if len(found) > 1 else ""
            self.notes.append(
                f"'{out}' is taken for the next value of '{given}', from the data flow{more}; "
                f"--state {out}=NAME says otherwise"
            )

    def _claims(self, near: Callable[[str], list[str]]) -> dict[str, str]:
        """Outputs that alone seem to be the next value of one input."""
        claims: dict[str, list[str]] = {}
        for out in self._unclaimed():
            found = near(out)
            if len(found) == 1:
                claims.setdefault(found[0], []).append(out)
        return {outs[0]: given for given, outs in claims.items() if len(outs) == 1}

    def _unclaimed(self) -> list[str]:
        """Float outputs behind the loss that arithmetic makes and that belong to no input yet."""
        found = []
        for out, tensor in self.outputs.items():
            if out in self.new_values or out in self.gradients or out in self.denied:
                continue
            if tensor.id == self.phases.loss or tensor.producer < 0 or tensor.dtype not in FLOATS:
                continue
            node = self.graph.nodes[tensor.producer]
            ahead = self.phases.of[node.id] in _AHEAD
            scaled = node.key in _PRODUCTS and self.phases.loss in node.reads
            if node.key in _ENDS and not ahead and not scaled:
                found.append(out)
        return found

    def _fitting(self, out: str, tensors: Iterable[int]) -> list[str]:
        """Inputs among some tensors that an output may renew and that nothing claims yet."""
        taken = {*self.new_values.values(), *self.gradients.values()}
        taken |= {x for x, role in self.roles.items() if role in OF_INPUTS - RENEWED}
        names = dict.fromkeys(self.graph.tensors[t].name for t in tensors)
        return [x for x in names if x in self.inputs and x not in taken and self._fits(out, x)]

    def _read_by(self, out: str) -> list[str]:
        """Inputs that the node which makes an output reads."""
        return self._fitting(out, self.graph.nodes[self.outputs[out].producer].reads)

    def _renewed_by(self, out: str) -> list[str]:
        """The nearest inputs behind arithmetic that neither the forward part nor the loss reads:
        moments, which are scaled before a gradient is added."""
        graph, of = self.graph, self.phases.of
        frontier, seen = {self.outputs[out].producer}, set[int]()
        while frontier:
            reads = {t for node in frontier for t in graph.nodes[node].reads} - set(graph.outputs)
            state = [
                x
                for x in self._fitting(out, reads)
                if all(of[r] in (Phase.BACKWARD, Phase.UPDATE) for r in self.inputs[x].readers)
            ]
            if state:
                return state
            seen |= frontier
            makers = {graph.tensors[t].producer for t in reads} - seen
            frontier = {
                node
                for node in makers
                if node >= 0
                and graph.nodes[node].key in _ARITHMETIC
                and of[node] is not Phase.FORWARD
            }
        return []

    def _by_order(self) -> None:
        """Rule 4: what the phases paired by type, shape and order, where nothing has a name."""
        if self.gradients:
            return
        tensors = self.graph.tensors
        found = {
            tensors[out].name: tensors[given].name
            for out, given in self.phases.pairs.items()
            if tensors[out].producer >= 0
            and self.phases.of[tensors[out].producer] is Phase.BACKWARD
        }
        taken = {*self.new_values.values()}
        for out, given in found.items():
            free = out not in self.new_values and out not in self.denied and given not in taken
            if free and self._fits(out, given):
                self.gradients[out] = given
        if self.gradients:
            first, given = next(iter(self.gradients.items()))
            self.notes.append(
                f"{counted(len(self.gradients), 'output')} without a telling name are taken for "
                f"gradients, in the order of the inputs: '{first}' of '{given}'"
            )

    def _input_role(self, tensor: Tensor) -> Role:
        said = self.roles.get(tensor.name)
        renewed = tensor.name in self.new_of
        if said in OF_INPUTS and (said in RENEWED or not renewed):
            return said
        number = math.prod(tensor.shape) == 1
        phases = {self.phases.of[reader] for reader in tensor.readers}
        # A time step that the model itself reads (of a diffusion, say) is fed.
        counted = renewed or phases.isdisjoint(_AHEAD)
        if number and counted and is_counter_name(tensor.name):
            return Role.STEP_COUNTER
        if tensor.id in self.phases.parameters or tensor.name in self.gradients.values():
            return Role.PARAMETER
        if renewed and averaged_by(tensor.name) in self.inputs:
            return Role.AVERAGE
        if renewed:
            made = self.new_of[tensor.name].producer
            return Role.OPTIMIZER_STATE if made in self.behind_loss else Role.RUNNING_STATISTIC
        if number and tensor.dtype in FLOATS and is_rate_name(tensor.name):
            return Role.HYPERPARAMETER
        if number and phases and phases <= {Phase.BACKWARD, Phase.UPDATE}:
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
        return said if said in OF_OUTPUTS and said not in kinds else Role.OUTPUT


def _behind_loss(graph: Graph, phases: Phases) -> set[int]:
    """The nodes that depend on what the loss is made from: gradients, and what is made of them."""
    tensors: set[int] = set()
    for node in graph.nodes:
        if phases.of[node.id] is Phase.LOSS:
            tensors.update(t for t in node.reads if graph.tensors[t].producer >= 0)
            tensors.update(node.writes)
    return dependent_nodes(graph, tensors)
