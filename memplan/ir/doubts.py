"""Whether what is known of a training step can be true: roles and next values against each other,
against names and against the data flow.

:mod:`memplan.ir.stated` holds the file's claims against its inputs and outputs. Here:

1. Two outputs are not the next value of one input.
2. What looks like a next value is one: an output named like the next value of an input that nothing
   else renews, or whose role says so. It may be another's (``x_next`` is what a model predicts)
   where the file says that the input is part of the batch, and has no value for it.
3. Where a step trains, what has a gradient is trained, and optimizer state, averages and statistics
   are renewed.
4. A next value has not the name of another's, and does not read what another output renews in its
   place: names decide, then arithmetic that leads back to an input.

Against any of these a step would train something else than its author meant: the file is refused.
What is only odd is said: parameters that nothing renews, an output that data flow alone would call
a next value, a next value for which neither name nor data flow speaks, a learning rate or a step
counter in a batch, and a role that the use of an input speaks against.

Pairs that the user names (``--state OUT=IN``) are no claims.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from memplan.errors import ModelError, UsageError
from memplan.ir.contract import Contract, find_contract
from memplan.ir.graph import Graph, Phase, Tensor, TensorKind
from memplan.ir.naming import differentiated_names, is_counter_name, is_rate_name, renewed_names
from memplan.ir.phases import Phases
from memplan.ir.roles import RENEWED, Role, averaged_by
from memplan.ir.stated import alike, some
from memplan.proto.metadata import ASKED

# Elementwise operators that lead from an old value to a new one.
_ELEMENTWISE = frozenset(
    {":Add", ":Sub", ":Sum", ":Mul", ":Div", ":Where", ":Neg", ":Max", ":Min", ":Pow", ":Sqrt"}
    | {":Cast", ":Identity", ":Sign", ":Abs", ":Clip", ":Exp", ":Log", ":Reciprocal"}
)
_FARTHEST = 200  # nodes that are looked at behind one output
_NEVER = 1 << 30  # farther than any input
_ADJUSTED = frozenset({Role.BATCH, Role.FROZEN, Role.HYPERPARAMETER})


def sound_contract(
    model: Path,
    graph: Graph,
    phases: Phases,
    metadata: Mapping[str, object],
    asked: Mapping[str, str] | None = None,
) -> Contract:
    """The contract of a step that is to be trained, and in its ``notes`` what is odd about it.

    Args:
        model: the file, for messages.
        graph: see :func:`memplan.ir.contract.find_contract`, as for the others.
        phases: see there.
        metadata: see there.
        asked: see there.

    Raises:
        ModelError: the file contradicts itself.
        UsageError: ``asked`` does not fit; or two outputs are the next value of one input.
    """
    contract = find_contract(graph, phases, metadata, asked)
    _one_to_one(contract)
    weighed, refused = weigh(graph, phases, metadata, contract, asked or ())
    if refused:
        more = f" (and {len(refused) - 1:,} more)" if len(refused) > 1 else ""
        raise ModelError(
            f"{model}: what it says of its inputs and outputs cannot be true: {refused[0]}{more}",
            "mend its metadata (memplan.roles, memplan.new_values, memplan.gradients), or say whose"
            " next value an output is: --state OUT=IN; OUT= if it is no state",
        )
    return weighed


def weigh(
    graph: Graph,
    phases: Phases,
    metadata: Mapping[str, object],
    contract: Contract,
    asked: Collection[str] = (),
) -> tuple[Contract, list[str]]:
    """A contract with what is odd about it in its ``notes``, and why it cannot be true."""
    before = metadata.get(ASKED)
    outputs = {*asked, *(map(str, before) if isinstance(before, list) else ())}
    found = _Doubts(graph, phases, contract, outputs)
    found.look()
    refused = [*contract.claims.contradictions, *found.refused]
    return replace(contract, notes=(*contract.notes, *found.notes)), refused


def _one_to_one(contract: Contract) -> None:
    claimed: dict[str, str] = {}
    for output, given in contract.new_values.items():
        if given in claimed:
            raise UsageError(
                f"outputs '{claimed[given]}' and '{output}' are both the next value of '{given}'",
                f"say whose next value '{output}' is: state={{'{output}': NAME}} or --state "
                f"{output}=NAME; '' says that it is no state",
            )
        claimed[given] = output


@dataclass(slots=True)
class _Doubts:
    """Works on names of inputs and outputs. ``refused`` and ``notes`` are what is found."""

    graph: Graph
    phases: Phases
    contract: Contract
    asked: Collection[str]
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    maker: dict[str, str] = field(default_factory=dict)

    def look(self) -> None:
        tensors = self.graph.tensors
        self.inputs = {tensors[t].name: tensors[t] for t in self.graph.inputs}
        self.outputs = {tensors[t].name: tensors[t] for t in self.graph.outputs}
        self.maker = {given: out for out, given in self.contract.new_values.items()}
        self._missing_values()
        if self.contract.stated:
            self._lost_values()
            self._names()
            self._flow()
        self._untrained()
        self._roles()

    def _fit(self, out: str, given: str) -> bool:
        taken = self.inputs.get(given)
        return taken is not None and alike(self.outputs[out], taken)

    def _is_fed(self, name: str) -> bool:
        """Whether the file says that an input is fed, and has no value for it."""
        said = self.contract.claims.roles.get(name)
        return said is Role.BATCH and self.inputs[name].kind is TensorKind.INPUT

    def _missing_values(self) -> None:
        """Roles that speak of pairs that are not there."""
        pairs = {
            Role.NEW_VALUE: self.contract.new_values,
            Role.GRADIENT: self.contract.gradients,
        }
        for name, role in self.contract.claims.roles.items():
            if role in pairs and name not in pairs[role] and name not in self.asked:
                self.refused.append(f"'{name}' has the role '{role}', and belongs to no input")

    def _lost_values(self) -> None:
        """Rule 2, and what looks like a next value to data flow alone."""
        free = [
            out
            for out in self.outputs
            if out not in self.contract.new_values
            and out not in self.contract.gradients
            and out not in self.asked
        ]
        for out in free:
            given = next((x for x in renewed_names(out) if self._fit(out, x)), None)
            if given is None or self._is_fed(given):
                continue
            other = self.maker.get(given)
            if other is None:
                self.refused.append(f"'{out}' is not the next value of '{given}', as its name says")
            elif other not in self.asked and given not in renewed_names(other):
                self.notes.append(
                    f"'{out}' is named as the next value of '{given}', and the file says that "
                    f"'{other}' is"
                )
        likely = {out: x for out, x in self.contract.likely.items() if not any(renewed_names(out))}
        if likely:
            pairs = [f"{out} of {given}" for out, given in likely.items()]
            self.notes.append(f"made like next values, and not kept: {some(pairs)}")

    def _names(self) -> None:
        """Rule 4 by name."""
        for pairs, named, what in (
            (self.contract.new_values, renewed_names, "next value"),
            (self.contract.gradients, differentiated_names, "gradient"),
        ):
            for out, given in pairs.items():
                if out in self.asked or out not in self.outputs:
                    continue
                owners = [x for x in named(out) if self._fit(out, x)]
                if owners and given not in owners:
                    self.refused.append(
                        f"'{out}' is the {what} of '{given}', and named as that of '{owners[0]}'"
                    )

    def _flow(self) -> None:
        """Rule 4 by data flow, for next values whose names say nothing."""
        pairs = self.contract.new_values
        silent = {
            out: given
            for out, given in pairs.items()
            if out not in self.asked and given not in renewed_names(out)
        }
        if not silent:
            return
        free = [x for x in self.outputs if x not in pairs and x not in self.contract.gradients]
        far = {out: self._distances(out) for out in (*silent, *free)}
        unread: list[str] = []
        for out, given in silent.items():
            own = far[out].get(given, _NEVER)
            rival = next((o for o in far if o != out and self._nearer(o, out, far)), None)
            if rival is not None:
                self.refused.append(
                    f"'{out}' is the next value of '{given}', which '{rival}' is made of"
                )
            elif own == _NEVER:
                unread.append(f"{out} of {given}")
        if unread:
            self.notes.append(
                f"next values, as the file says, and not made of the old ones: {some(unread)}"
            )

    def _nearer(self, rival: str, out: str, far: Mapping[str, Mapping[str, int]]) -> bool:
        """Whether another output is nearer to the input that an output renews, and neither is the
        nearest to its own."""
        pairs = self.contract.new_values
        given, other = pairs[out], pairs.get(rival, "")
        own, theirs = far[out].get(given, _NEVER), far[rival].get(other, _NEVER)
        reach = far[rival].get(given, _NEVER)
        exchanged = own == _NEVER or far[out].get(other, _NEVER) < own
        return reach < own and reach < theirs and exchanged

    def _distances(self, output: str) -> dict[str, int]:
        """How many elementwise operators lie between an output and the inputs that they lead back
        to, other outputs left out; in the nearest part of a large graph."""
        graph = self.graph
        first = self.outputs[output].id
        ends = set(graph.outputs) - {first}
        seen, found, nodes, level = {first}, dict[str, int](), 0, 0
        nearest = [first]
        while nearest and nodes < _FARTHEST:
            behind: list[int] = []
            for tensor in map(graph.tensors.__getitem__, nearest):
                if tensor.name in self.inputs:
                    found[tensor.name] = level
                if tensor.producer < 0 or tensor.id in ends:
                    continue
                node = graph.nodes[tensor.producer]
                if node.key in _ELEMENTWISE:
                    nodes += 1
                    behind += [t for t in node.reads if t not in seen]
                    seen.update(node.reads)
            nearest, level = behind, level + 1
        return found

    def _untrained(self) -> None:
        """Rule 3."""
        roles, said = self.contract.roles, self.contract.claims
        if not any(roles[given] is Role.PARAMETER for given in self.maker):
            return  # a step that gives gradients, or a part of one
        denied = {x for out in self.asked for x in renewed_names(out)} | said.removed
        idle = [x for x in self.inputs if x not in self.maker and x not in denied]
        graded = {*self.contract.gradients.values()}
        for out in self.outputs:
            graded.update(x for x in differentiated_names(out) if self._fit(out, x))
        parameters = []
        for name in idle:
            role = roles[name]
            if name in graded and not self._is_fed(name):
                self.refused.append(f"'{name}' has a gradient, and no next value")
            elif role in RENEWED - {Role.PARAMETER, Role.STEP_COUNTER}:
                self.refused.append(f"'{name}' has the role '{role}', and no next value")
            elif role is Role.PARAMETER:
                parameters.append(name)
        if parameters:
            self.notes.append(f"parameters that no output renews: {some(parameters)}")

    def _roles(self) -> None:
        """Roles that a name, or the use of an input, speaks against."""
        of = self.phases.of
        for name, role in self.contract.claims.roles.items():
            tensor = self.inputs.get(name)
            if tensor is None or self.contract.roles[name] is not role:
                continue
            ahead = any(of[r] in (Phase.FORWARD, Phase.LOSS) for r in tensor.readers)
            why = ""
            if math.prod(tensor.shape) == 1:
                if role in _ADJUSTED and not ahead and is_counter_name(name):
                    why = "it is named as a step counter"
                elif role in _ADJUSTED - {Role.HYPERPARAMETER} and not ahead and is_rate_name(name):
                    why = "it is named as a learning rate"
            elif name in self.maker and self.phases.loss is not None:
                if role is Role.PARAMETER and not ahead:
                    why = "the forward part does not read it"
                elif role is Role.OPTIMIZER_STATE and ahead:
                    why = "the forward part reads it"
            if name in self.maker and role is not Role.AVERAGE and averaged_by(name) in self.inputs:
                why = "it is named as an average"
            if why:
                self.notes.append(f"'{name}' has the role '{role}', and {why}")
