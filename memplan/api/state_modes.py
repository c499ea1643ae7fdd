"""``--state``: where the next values of weights, moments and statistics are to lie.

A session that is fed and fetched makes them in memory of the run, beside the old ones. A caller who
binds them (:class:`memplan.Trainer` and ``memplan run`` do) has them written over the old values,
or into a second buffer where that would be wrong (:mod:`memplan.simulate.state_memory`).

Where nothing is asked, the file decides: by what it says of its state; else, if it is a step with
an optimizer as ``capture`` and ``grad`` write it, in place, as the trainer runs it. Any other is
taken to be fed and fetched, since a plan for bound state breaks its budget in a session whose
caller does not bind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from memplan.equivalence.in_place import unlike_pairs, unsafe_pairs
from memplan.errors import ModelError, UsageError
from memplan.ir.contract import Contract, find_contract, sound_contract
from memplan.ir.graph import Graph
from memplan.ir.roles import Role
from memplan.proto.metadata import (
    APART,
    IN_PLACE,
    NEW_VALUES,
    ROLES,
    STATE,
    Names,
    get_metadata,
    set_metadata,
)
from memplan.simulate.opened import OpenModel, with_state
from memplan.simulate.session import SessionKind
from memplan.simulate.state_memory import names_of, unbound


@dataclass(frozen=True, slots=True)
class StateRequest:
    """What was asked: ``policy`` is ``in-place``, ``apart`` or empty (as the file says); ``pairs``
    are given ones, output → input."""

    policy: str = ""
    pairs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateReport:
    """Where state lies: numbers of outputs, and bytes.

    ``in_place_bytes`` are saved by writing over old values, ``second_bytes`` held by second
    buffers; ``reasons`` says why, output → reason.
    """

    in_place: int
    in_place_bytes: int
    second_bytes: int
    reasons: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        """As it stands in reports."""
        return {
            "in_place": self.in_place,
            "in_place_bytes": self.in_place_bytes,
            "second_buffers": len(self.reasons),
            "second_buffer_bytes": self.second_bytes,
            "reasons": dict(self.reasons),
        }


def parse_state(values: Sequence[str]) -> StateRequest:
    """What the values of ``--state`` ask for; a pair asks for state in place.

    Raises:
        UsageError: a value is neither a policy nor ``OUT=IN``, or two contradict each other.
    """
    policies = [value for value in values if value in (IN_PLACE, APART)]
    pairs: dict[str, str] = {}
    for value in values:
        if value in (IN_PLACE, APART):
            continue
        output, found, given = value.partition("=")
        if not found or not output:
            raise UsageError(
                f"--state {value}: expected {IN_PLACE}, {APART} or OUT=IN",
                "OUT is the graph output that is the next value of the input IN",
            )
        pairs[output] = given
    if len(set(policies)) > 1 or (pairs and APART in policies):
        raise UsageError(f"--state {' --state '.join(values)}: these contradict each other")
    policy = policies[0] if policies else IN_PLACE if pairs else ""
    return StateRequest(policy, pairs)


def runs_in_place(metadata: Mapping[str, object]) -> bool:
    """Whether a file's metadata are those of a step that new weights leave, as ``capture`` and
    ``grad`` write it, and neither a plan nor the file says where its state lies."""
    roles, new_values = metadata.get(ROLES), metadata.get(NEW_VALUES)
    if not isinstance(roles, Names) or not isinstance(new_values, Names):
        return False
    if STATE in metadata or "session" in metadata:
        return False
    return any(roles.get(given) == Role.PARAMETER for given in new_values.told)


def as_recorded(metadata: Mapping[str, object], state: Sequence[str]) -> Sequence[str]:
    """The values of ``--state`` for a file of which a record (a plan, a lock) says ``state``:
    where that is nothing, what nothing meant when state was in place only where the file said so.
    """
    return state or (() if metadata.get(STATE) == IN_PLACE else (APART,))


def settled(model: OpenModel, session: SessionKind, values: Sequence[str]) -> OpenModel:
    """The model with its state where ``--state`` wants it.

    Args:
        model: a model that was opened; its metadata is brought in line.
        session: the kind of session that it is for.
        values: of ``--state``; empty: as the file says; where it does not, in place for a step
            with an optimizer that memplan made; apart in a plain session.

    Raises:
        ModelError: state is to be in place, and the graph renews nothing.
        UsageError: a bad value, or one that the kind of session does not allow.
    """
    request = parse_state(values)
    proto = model.prepared.proto
    metadata = get_metadata(proto)
    plain = session.name == "default"
    if request.policy == IN_PLACE and plain:
        raise UsageError(
            "--state in-place is for tuned sessions",
            "a plain session does not say which node reads a weight last; drop one of "
            "--session default and --state",
        )
    own = runs_in_place(metadata)
    wanted = request.policy or metadata.get(STATE, IN_PLACE if own else APART)
    if plain or wanted != IN_PLACE:
        if STATE in metadata or own:  # said, so that what is written from it is read alike
            set_metadata(proto, {k: v for k, v in metadata.items() if k != STATE} | {STATE: APART})
        return model if model.graph.state is None else replace(model, graph=unbound(model.graph))
    shown = model.prepared.path
    contract = sound_contract(shown, model.graph, model.phases, metadata, request.pairs)
    if not contract.new_values:
        raise ModelError(
            "--state in-place: no output of the graph is the next value of an input",
            "outputs named X_new or X.new are; --state OUT=IN names others",
        )
    told = contract.as_metadata() if request.pairs or not contract.stated else {}
    set_metadata(proto, {**metadata, **told, STATE: IN_PLACE})
    return with_state(model, contract.new_values)


def confirmed(model: OpenModel) -> OpenModel:
    """The model with only those pairs in place that the check of the file itself agrees to
    (:mod:`memplan.equivalence.in_place`); the others have second buffers. What another order may
    put in place is asked about, too."""
    in_place, second = bindings(model.graph)
    proto = model.prepared.proto
    refused = unlike_pairs(proto, second) | unsafe_pairs(proto, in_place)
    if not refused:
        return model
    return with_state(model, names_of(model.graph), refused)


def like_state(model: OpenModel, like: OpenModel) -> OpenModel:
    """The model with the state bound that ``like``, the same with other nodes, has bound."""
    if like.graph.state is None:
        return model
    return confirmed(with_state(model, names_of(like.graph)))


def contract_of(model: OpenModel) -> Contract:
    """The training contract of an open model."""
    return find_contract(model.graph, model.phases, get_metadata(model.prepared.proto))


def state_report(graph: Graph) -> StateReport | None:
    """Where the state of a graph lies; None if it lies in memory of the run."""
    state = graph.state
    if state is None:
        return None
    tensors = graph.tensors
    return StateReport(
        in_place=len(state.in_place),
        in_place_bytes=sum(tensors[given].nbytes for given in state.in_place.values()),
        second_bytes=state.second_bytes,
        reasons={tensors[output].name: why for output, why in state.apart.items()},
    )


def bindings(graph: Graph) -> tuple[dict[str, str], dict[str, str]]:
    """Output → input of the pairs in place, and of those with a second buffer."""
    if graph.state is None:
        return {}, {}
    in_place = {graph.tensors[output].name for output in graph.state.in_place}
    pairs = names_of(graph)
    return (
        {output: given for output, given in pairs.items() if output in in_place},
        {output: given for output, given in pairs.items() if output not in in_place},
    )
