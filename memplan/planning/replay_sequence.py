"""A recorded sequence → node ids of the graph that it was made for.

A plan file may have been edited, so a sequence is taken for nothing but a wish: every entry must
hold as it stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from memplan.errors import PlanError
from memplan.ir.graph import Graph, Node
from memplan.planning.plan_decisions import EDITED
from memplan.planning.plan_file import FormNode, Step
from memplan.planning.plan_rows import form_nodes
from memplan.planning.planner import Prepared, unread_again
from memplan.solver.problem import Problem
from memplan.units import printable


def sequence_as_it_stands(
    sequence: Sequence[Step], prepared: Prepared, problem: Problem
) -> tuple[int, ...]:
    """The sequence as node ids of the graph that it was made for.

    Args:
        sequence: of a plan file.
        prepared: the graph.
        problem: of the graph.

    Raises:
        PlanError: it names a node that the graph does not have, leaves one out, or runs one before
            what it reads is made, or once more that must not or that nothing reads;
            the message says which entry.
    """
    extended, again = prepared.extended, _may_run_again(problem)
    ids: dict[Step, int] = {form: node for node, form in form_nodes(extended).items()}
    ids |= {n.name: n.id for n in extended.graph.nodes[: extended.first_dormant]}
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


def _may_run_again(problem: Problem) -> frozenset[int]:
    """The nodes that a sequence may repeat: those that make something again, and those of forms."""
    arrays = problem.arrays
    makers = np.concatenate((arrays.maker, arrays.others)).tolist()
    encoders = (node for form in problem.forms for node in form.encode)
    return frozenset((*makers, *encoders))
