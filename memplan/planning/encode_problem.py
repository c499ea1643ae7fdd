"""Graph → :class:`Problem`: what the runtime does with the graph, as flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from memplan.ir.graph import ABSENT, Graph, Node
from memplan.ops.book import RANDOM_OPS, SHAPE_READERS, operator
from memplan.ops.memory import (
    EAGER,
    NO_TENSORS,
    MemorySemantics,
    has_effects,
    refusal,
    semantics,
)
from memplan.planning.forms.dormant import Extended
from memplan.planning.labels import flags, labels_of
from memplan.planning.late_views import late_views
from memplan.providers import on_host
from memplan.simulate.allocation import is_resident
from memplan.simulate.devices import host_copies
from memplan.simulate.timeline import Timeline, node_workspace
from memplan.solver.build import Output, ProblemBuilder
from memplan.solver.forms import with_makers
from memplan.solver.problem import NONE, Arrays, Flags, Ints, Problem


def within(problem: Problem, budget: int, force: frozenset[int] = frozenset()) -> Problem:
    """The problem for a budget of dynamic bytes and workspace.

    ``force``: tensors that are to be recomputed whatever the budget (``--recompute``). What nothing
    makes again but another form of it is not.
    """
    arrays, order = problem.arrays, problem.order
    maker = arrays.maker
    force -= {form.tensor for form in problem.forms if maker[form.tensor] == form.decode}
    protected = np.zeros(len(arrays.cost), np.bool_)
    start, late = order, np.ones(len(order), np.bool_)
    if problem.forward is not None:
        late = ~problem.forward[order]
    wanted: dict[int, list[int]] = {}
    for tensor in sorted(force):
        wanted.setdefault(int(maker[tensor]), []).append(tensor)
    wanted.pop(NONE, None)
    # What is made last comes first: what it is made of is then read late, and made again for it,
    # instead of being held until then.
    for node in sorted(wanted, key=lambda node: -int(arrays.rank[node])):
        position = _widest_gap(arrays, start, late, wanted[node])
        if position is not None:
            nodes = _with_sources(arrays, start, node)
            start = np.insert(start, [position] * len(nodes), nodes)
            late = np.insert(late, [position] * len(nodes), True)
            protected[nodes] = True
    return replace(problem, budget=budget, start=start, protected=protected)


def _with_sources(arrays: Arrays, sequence: Ints, node: int) -> list[int]:
    """A node behind those of its rebuild rule that it reads from, which no sequence has yet."""
    there = set(sequence.tolist())
    written = {t for other in there for t in _slots(arrays.writes, arrays.write_start, other)}
    found: list[int] = []
    waiting = [node]
    while waiting:
        found.append(waiting.pop())
        sources = _slots(arrays.reads, arrays.read_start, found[-1])
        makers = {int(arrays.maker[t]) for t in sources if t not in written}
        waiting.extend(sorted(makers - there - {NONE, *found}))
    return found[::-1]


def _slots(values: Ints, starts: Ints, node: int) -> list[int]:
    return [int(t) for t in values[starts[node] : starts[node + 1]]]


def _widest_gap(arrays: Arrays, sequence: Ints, late: Flags, tensors: Sequence[int]) -> int | None:
    """The read of one of the ``tensors`` before which they lie idle longest, by position in
    ``sequence``: one of the ``late`` ones, if any."""
    readers = _nodes_with(arrays.reads, arrays.read_start, tensors)
    makers = _nodes_with(arrays.writes, arrays.write_start, tensors)
    uses = np.flatnonzero(np.isin(sequence, np.concatenate([readers, makers])))
    reads = np.isin(sequence[uses[1:]], readers)
    if not reads.any():
        return None
    wanted = reads & late[uses[1:]]
    gaps = np.where(wanted if wanted.any() else reads, np.diff(uses), 0)
    return int(uses[1:][np.argmax(gaps)])


def _nodes_with(values: Ints, starts: Ints, tensors: Sequence[int]) -> Ints:
    """The nodes in whose slots one of the tensors is."""
    return np.searchsorted(starts, np.flatnonzero(np.isin(values, tensors)), side="right") - 1


def encode(
    extended: Extended,
    timeline: Timeline,
    costs: Sequence[float],
    keep: frozenset[int] = frozenset(),
    forward: frozenset[int] | None = None,
    differentiated: frozenset[int] | None = None,
) -> Problem:
    """A graph with its rebuild rules as a problem for a tuned session, without a budget.

    Args:
        extended: the graph, shapes known, and its dormant nodes.
        timeline: the graph without them, simulated in a session that does not reuse buffers (the
            evaluator does not model rule 4).
        costs: seconds by node id.
        keep: tensors that must not be recomputed (``--keep``).
        forward: nodes that the loss depends on, None if that is not known.
        differentiated: those of them that gradients flow through, None for all.
    """
    session = timeline.session
    if session.reuse or not session.priority_order:
        raise ValueError("plans are made for tuned sessions")
    rules = semantics(session.provider)
    graph = extended.graph
    live = replace(graph, nodes=graph.nodes[: extended.first_dormant])
    refused = refusals(live, session.provider)
    workspace, _ = node_workspace(graph, session, timeline.inside)
    inside = np.zeros(len(graph.nodes), np.int64)
    for node, nbytes in timeline.inside.nbytes.items():
        inside[node] = nbytes
    order = late_views(live, list(timeline.order), rules)
    kept_order = [index for index in order if _keeps_its_turn(live, live.nodes[index])]
    turns = [*pairwise(kept_order), *_state_order(live)]
    arrays = graph_arrays(graph, rules, costs, workspace, inside, turns)
    maker = [
        t.producer if t.producer != ABSENT and t.producer not in refused else NONE
        for t in graph.tensors
    ]
    maker += [NONE] * (len(arrays.nbytes) - len(maker))
    for tensor, node in extended.makers.items():
        maker[tensor] = node
    given = graph.state.pairs if graph.state else {}
    stays = {*keep, *given}
    for tensor in stays:
        maker[tensor] = NONE
    forms = tuple(form for form in extended.forms if form.tensor not in stays)
    arrays = arrays._replace(
        rank=_ranks(extended, order),
        maker=np.asarray(maker, dtype=np.int64),
        overwriter=_overwriters(graph, len(maker)),
    )
    arrays = with_makers(arrays, forms)
    for form in forms:
        # Unread it is taken out, so it holds nothing to the end.
        arrays.fleeting[arrays.write_start[form.encode[-1] + 1] - 1] = True
    known = None if forward is None else flags(len(graph.nodes), forward)
    path = differentiated if differentiated is not None else forward
    labels = None if path is None else labels_of(graph, path, keep)
    intensive = np.asarray(
        [operator(node.key).work is not None for node in graph.nodes], dtype=np.bool_
    )
    start = np.asarray(order, dtype=np.int64)
    return Problem(
        arrays=arrays,
        order=start,
        budget=0,
        start=start,
        protected=np.zeros(len(arrays.cost), np.bool_),
        movable=_movable(graph),
        forward=known,
        intensive=intensive,
        labels=labels,
        forms=forms,
    )


def _keeps_its_turn(graph: Graph, node: Node) -> bool:
    """Whether what a node does depends on which nodes of its kind ran before it.

    It takes from the stream of random numbers that all nodes without a seed share, or has effects
    beyond its outputs; or something in its bodies does.
    """
    drawn = node.key in RANDOM_OPS and "seed" not in node.attributes
    inner = [body.graph for body in graph.bodies.get(node.id, ()) if body.graph is not None]
    nested = any(_keeps_its_turn(body, each) for body in inner for each in body.nodes)
    return drawn or has_effects(node.key) or nested


def _state_order(graph: Graph) -> list[tuple[int, int]]:
    """What reads an old value and what writes over it, where data flow does not order them."""
    if graph.state is None:
        return []
    return [
        (node, maker)
        for maker, nodes in sorted(graph.state.before.items())
        for node in sorted(nodes)
        if not _feeds(graph, node, maker)
    ]


def _feeds(graph: Graph, node: int, maker: int) -> bool:
    """Whether ``maker`` reads something that ``node`` makes: a quick look, not a search."""
    return any(t in graph.nodes[maker].reads for t in graph.nodes[node].writes)


def _overwriters(graph: Graph, count: int) -> Ints:
    """Who writes over the memory in which a tensor lies, by tensor (``count``, with those that give
    an order); empty where nobody does."""
    if graph.state is None or not graph.state.overwriter:
        return np.zeros(0, np.int64)
    found = np.full(count, NONE, np.int64)
    for tensor, node in graph.state.overwriter.items():
        found[tensor] = node
    return found


def without_outputs(problem: Problem) -> tuple[Problem, int]:
    """The problem with graph outputs of no size, and the bytes that they take."""
    arrays = problem.arrays
    reserved = int(arrays.nbytes[arrays.pinned].sum())
    nbytes = np.where(arrays.pinned, 0, arrays.nbytes)
    return replace(problem, arrays=arrays._replace(nbytes=nbytes)), reserved


def _movable(graph: Graph) -> Flags:
    """Nodes whose place is free: not those that the runtime places itself, nor their sources."""
    movable = np.ones(len(graph.nodes), np.bool_)
    for node in graph.nodes:
        # Cheap to keep, wanted early: the runtime runs them as soon as their input is there, so a
        # recomputed one would run at once and pin its input.
        if node.key in SHAPE_READERS:
            movable[node.id] = False
            for t in node.reads:
                if graph.tensors[t].producer >= 0:
                    movable[graph.tensors[t].producer] = False
    return movable


def _ranks(extended: Extended, order: Sequence[int]) -> Ints:
    """Places in the original order; a dormant node stands right behind the producer it replaces."""
    spread = len(extended.graph.nodes) + 1
    rank = np.zeros(len(extended.graph.nodes), np.int64)
    rank[np.asarray(order, dtype=np.int64)] = np.arange(len(order)) * spread
    for index in range(len(extended.graph.nodes) - 1, extended.first_dormant - 1, -1):
        output = extended.graph.tensors[extended.graph.nodes[index].outputs[0]]
        if output.producer < extended.first_dormant:
            base = rank[output.producer]
        rank[index] = base + index - extended.first_dormant + 1
    return rank


def refusals(graph: Graph, provider: str) -> dict[int, str]:
    """Why some nodes are never recomputed, by id."""
    found = {}
    for node in graph.nodes:
        reason = refusal(node.key, provider)
        if node.key in SHAPE_READERS:
            reason = EAGER
        if any(not graph.tensors[t].counted for t in (*node.reads, *node.writes)):
            reason = NO_TENSORS
        if reason is not None:
            found[node.id] = reason
    return found


def graph_arrays(
    graph: Graph,
    rules: MemorySemantics,
    costs: Sequence[float],
    workspace: Ints,
    inside: Ints,
    turns: Sequence[tuple[int, int]] = (),
) -> Arrays:
    """The arrays of a graph; nothing makes a tensor again.

    Args:
        graph: shapes known.
        rules: what the provider's kernels share.
        costs: seconds by node id.
        workspace: scratch bytes by node id.
        inside: bytes in control-flow bodies by node id.
        turns: pairs of nodes of which the first runs before the second.
    """
    away = frozenset() if on_host(rules.provider) else host_copies(graph)
    classes: dict[tuple[tuple[int | str, ...], int], int] = {}
    problem = ProblemBuilder()
    for t in graph.tensors:
        problem.add_tensor(
            0 if t.id in away else t.nbytes,
            alike=classes.setdefault((t.seen, t.nbytes), len(classes))
            if t.static
            else len(graph.tensors) + t.id,
            resident=is_resident(t),
            pinned=t.is_output,
        )
    for node in graph.nodes:
        optional = operator(node.key).optional_outputs
        problem.add_node(
            costs[node.id],
            node.reads,
            (
                Output(tensor, *_sharing(graph, node, slot, rules), droppable=slot in optional)
                for slot, tensor in enumerate(node.outputs)
                if tensor != ABSENT
            ),
            workspace=int(workspace[node.id]),
            inside=int(inside[node.id]),
            eager=node.key in SHAPE_READERS,
        )
    for first, second in turns:
        problem.order_after(first, second)
    return problem.build()


def _sharing(
    graph: Graph, node: Node, slot: int, rules: MemorySemantics
) -> tuple[int, tuple[int, ...]]:
    """The tensor that an output is a view of (or NONE), and those it may take over in place."""
    alias = rules.alias_input(node.key, slot)
    if alias is not None and alias < len(node.inputs) and node.inputs[alias] != ABSENT:
        return node.inputs[alias], ()
    candidates = [
        node.inputs[k]
        for k in rules.inplace_inputs(node.key, slot)
        if k < len(node.inputs) and node.inputs[k] != ABSENT
    ]
    return NONE, tuple(candidates)
