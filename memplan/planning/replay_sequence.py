"""A recorded sequence → node ids of a graph: as it stands, or carried over to a graph that differs.

A plan file may have been edited, so a sequence is taken for nothing but a wish: on the graph that
it was made for, every entry must hold as it stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memplan.errors import PlanError
from memplan.ir.graph import Graph, Node
from memplan.planning.forms.dormant import Extended
from memplan.planning.mend import carried_over
from memplan.planning.plan_decisions import EDITED
from memplan.planning.plan_file import FormNode, Step
from memplan.planning.plan_rows import form_nodes
from memplan.planning.planner import Prepared, all_read, unread_again
from memplan.solver.problem import Ints, Problem
from memplan.units import printable


def ids_of(extended: Extended) -> Mapping[Step, int]:
    """The nodes of a graph by what a sequence calls them."""
    ids: dict[Step, int] = {form: node for node, form in form_nodes(extended).items()}
    return ids | {n.name: n.id for n in extended.graph.nodes[: extended.first_dormant]}


def sequence_as_it_stands(
    sequence: Sequence[Step], prepared: Prepared, problem: Problem, again: frozenset[int]
) -> tuple[int, ...]:
    """The sequence as node ids of the graph that it was made for.

    Args:
        sequence: of a plan file.
        prepared: the graph.
        problem: of the graph.
        again: nodes that may run more than once.

    Raises:
        PlanError: it names a node that the graph does not have, leaves one out, or runs one before
            what it reads is made, or once more that must not or that nothing reads;
            the message says which entry.
    """
    extended = prepared.extended
    ids = ids_of(extended)
    made: set[int] = set()
    runs: Counter[int] = Counter()
    found: list[int] = []
    for place, step in enumerate(sequence):
        if step not in ids:
            raise _wrong(place, f"the graph has no {_called(step)}")
        node = extended.graph.nodes[ids[step]]
        if name := _not_made(node, extended.graph, made):
            raise _wrong(place, f"{_called(step)} is run before '{name}', which it reads")
        runs[node.id] += 1
        if runs[node.id] > 1 and node.id not in again:
            reason = prepared.encoded.refusals.get(node.name, "nothing reads it again")
            raise _wrong(place, f"{_called(step)} must not run again: {reason}")
        found.append(node.id)
    for node in extended.graph.nodes[: extended.first_dormant]:
        if node.id not in runs:
            raise PlanError(f"the plan's sequence leaves out {_called(node.name)}", EDITED)
    for place in unread_again(problem, np.asarray(found, dtype=np.int64)):
        raise _wrong(place, f"{_called(sequence[place])} is run again, and nothing reads it then")
    return tuple(found)


def _not_made(node: Node, graph: Graph, made: set[int]) -> str:
    """What ``node`` reads that no node before it made, empty if there is none; what it writes is
    made from then on."""
    tensors = graph.tensors
    for tensor in node.reads:
        if tensors[tensor].producer >= 0 and tensor not in made:
            return printable(tensors[tensor].name) or "?"
    made.update(node.writes)
    return ""


def _wrong(place: int, reason: str) -> PlanError:
    return PlanError(f"the plan's sequence[{place}]: {reason}", EDITED)


def _called(step: Step) -> str:
    if isinstance(step, FormNode):
        return f"form '{printable(step.form)}' of '{printable(step.tensor)}', node {step.number}"
    return f"node '{printable(step)}'"


@dataclass(frozen=True, slots=True)
class Carried:
    """A sequence for another graph. ``gone``: nodes of the plan that it does not have; ``new``:
    its nodes that the plan does not have; ``refused``: nodes that the plan runs again and that must
    not be run again here."""

    sequence: Ints
    gone: tuple[str, ...]
    new: tuple[str, ...]
    refused: tuple[str, ...]


def sequence_carried_over(
    sequence: Sequence[Step], prepared: Prepared, problem: Problem, again: frozenset[int]
) -> Carried:
    """As much of a sequence as holds for another graph.

    Nodes that the graph lacks are left out, new ones run as soon as they can behind the node that
    they follow in the file, and what nobody reads then is not recomputed.

    Raises:
        PlanError: what is left of it runs a node before what it reads is made.
    """
    extended = prepared.extended
    ids, nodes = ids_of(extended), extended.graph.nodes
    gone: dict[str, None] = {}
    refused: dict[str, None] = {}
    runs: Counter[int] = Counter()
    kept: list[int] = []
    for step in sequence:
        node = ids.get(step)
        if node is None:
            gone[step if isinstance(step, str) else f"{step.tensor} ({step.form})"] = None
            continue
        if runs[node] and node not in again:
            refused[nodes[node].name] = None
            continue
        runs[node] += 1
        kept.append(node)
    carried = carried_over(kept, extended.graph, problem)
    new = tuple(nodes[n].name for n in map(int, problem.order) if n not in runs)
    found = all_read(problem, carried)
    made: set[int] = set()
    for node in map(int, found):
        if name := _not_made(nodes[node], extended.graph, made):
            raise PlanError(
                f"the plan's sequence, as far as the graph has its nodes, runs "
                f"{_called(nodes[node].name)} before '{name}', which it reads",
                EDITED,
            )
    return Carried(found, tuple(gone), new, tuple(refused))


def may_run_again(problem: Problem) -> frozenset[int]:
    """The nodes that a sequence may repeat: those that make something again, and those of forms."""
    arrays = problem.arrays
    makers = np.concatenate((arrays.maker, arrays.others)).tolist()
    encoders = (node for form in problem.forms for node in form.encode)
    return frozenset((*makers, *encoders))
