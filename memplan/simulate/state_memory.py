"""State in place: a new value that is written into the memory of the old one.

A caller may bind the output ``X_new`` onto the buffer of the input ``X``. ONNX Runtime then makes
it there, and the run takes no memory for it. That is right where the node that makes it is the last
that looks at ``X``, and looks at it element by element:

1. ``X`` is a graph input and ``X_new`` a computed output of its type and shape, which the runtime
   knows before it runs; neither is in another such pair.
2. The maker reads ``X`` only in slots that its kernel may overwrite while it reads them
   (:attr:`memplan.ops.facets.Operator.overwrites`, operators with one output), or not at all; it
   has no body.
3. Whatever else reads ``X``, or a view of it, runs before the maker.
4. No graph output is a view of ``X`` or another view of ``X_new``, and nothing that reads them puts
   them into a sequence or is of an unknown domain.

5. The loss is known by then, so that a step whose loss is not a number can be refused before it has
   changed anything.

A pair for which this does not hold in the order of the session gets a second buffer, which changes
places with the first from step to step: it is there for the whole run, as the first one is. As in
JAX's ``donate_argnums``, the caller gives up the old value.

:mod:`memplan.equivalence.in_place` decides the same by code of its own, on the file.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memplan.ir.graph import ABSENT, Graph, Node, StateMemory
from memplan.ops.book import CONTROL_FLOW_OPS, operator
from memplan.ops.kernels import COPY_OPS
from memplan.ops.memory import MemorySemantics, overwritable_inputs, semantics
from memplan.simulate.run_order import tuned_order

EARLY = "it is made before the loss is known, and must be undone if that is not a number"
Pairs = Mapping[str, str]
"""Graph output → the graph input whose next value it is."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A pair that may be in place: ``before`` are the nodes that must have run by then."""

    maker: int
    views: frozenset[int]
    before: frozenset[int]


def bind_state(
    graph: Graph,
    pairs: Pairs,
    order: Sequence[int],
    provider: str = "cpu",
    refused: Mapping[str, str] | None = None,
    loss: str = "",
) -> Graph:
    """The graph with the memory of its new values given by the caller.

    Outputs of pairs take no bytes of the run (``nbytes`` 0); ``graph.state`` says which lie in
    place and which in a second buffer, and why.

    Args:
        graph: a graph whose state is not bound yet, or bound in another order.
        pairs: the pairs, by name; names that the graph does not have are left out.
        order: node ids in the order in which they run.
        provider: whose kernels run.
        refused: outputs that must not be in place, and why.
        loss: the output that is to be there before anything is written over (rule 5); none if
            empty.
    """
    free = unbound(graph)
    refused = refused or {}
    known = _maker_of(free, loss)
    claims = _claims(free, pairs)
    step_of = [0] * len(free.nodes)
    for step, node in enumerate(order):
        step_of[node] = step
    in_place: dict[int, _Pair] = {}
    apart: dict[int, str] = {}
    for output, judged in _judged(free, claims, known, semantics(provider)).items():
        reason = refused.get(free.tensors[output].name, "")
        if not reason:
            reason = judged if isinstance(judged, str) else _too_late(free, judged, known, step_of)
        if reason or isinstance(judged, str):
            apart[output] = reason
        else:
            in_place[output] = judged
    return _with_memory(free, claims, in_place, apart, refused, loss)


def _too_late(graph: Graph, pair: _Pair, known: int, step_of: Sequence[int]) -> str:
    """What should have run before the maker and does not; empty if all has."""
    late = [node for node in pair.before if step_of[node] > step_of[pair.maker]]
    readers = [node for node in late if node != known]
    if readers:
        last = max(readers, key=lambda node: step_of[node])
        return f"{graph.nodes[last].name} reads the old value after the new one is made"
    return EARLY if late else ""


def unbound(graph: Graph) -> Graph:
    """The graph with all outputs in memory of the run again."""
    if graph.state is None:
        return graph
    tensors = list(graph.tensors)
    for output, given in graph.state.pairs.items():
        tensors[output] = replace(tensors[output], nbytes=tensors[given].nbytes)
    return replace(graph, tensors=tuple(tensors), state=None)


def rebound(graph: Graph, like: Graph) -> Graph:
    """``graph`` with those pairs bound that ``like``, another version of it, has."""
    if like.state is None:
        return graph
    order = tuned_order(graph)
    pairs, state = names_of(like), like.state
    return bind_state(graph, pairs, order, refused=state.refused, loss=state.loss)


def names_of(graph: Graph) -> dict[str, str]:
    """The pairs of a graph by name."""
    if graph.state is None:
        return {}
    tensors = graph.tensors
    return {tensors[o].name: tensors[i].name for o, i in graph.state.pairs.items()}


def ordered_for_state(graph: Graph, pairs: Pairs, loss: str = "") -> list[int]:
    """The list order, with makers of new values moved behind what still reads the old ones.

    Kahn's algorithm, the first node of the list first; where only such makers are left, the first
    of them goes ahead, and its pair stays apart.
    """
    free = unbound(graph)
    claims, known = _claims(free, pairs), _maker_of(free, loss)
    behind: dict[int, set[int]] = {}
    for judged in _judged(free, claims, known, semantics("cpu")).values():
        if isinstance(judged, _Pair):
            behind.setdefault(judged.maker, set()).update(judged.before)
    waiting = [0] * len(free.nodes)
    followers: list[list[int]] = [[] for _ in free.nodes]
    for node in free.nodes:
        sources = {p for t in node.reads if (p := free.tensors[t].producer) >= 0}
        waiting[node.id] = len(sources)
        for source in sources:
            followers[source].append(node.id)
    holding = {maker: len(nodes) for maker, nodes in behind.items()}
    holds: dict[int, list[int]] = {}
    for maker, nodes in behind.items():
        for node_id in nodes:
            holds.setdefault(node_id, []).append(maker)
    ready = [n for n, count in enumerate(waiting) if not count and not holding.get(n)]
    stuck = [n for n, count in enumerate(waiting) if not count and holding.get(n)]
    heapq.heapify(ready)
    heapq.heapify(stuck)
    order: list[int] = []
    done = [False] * len(free.nodes)

    def release(follower: int) -> None:
        if not waiting[follower]:
            heapq.heappush(stuck if holding.get(follower) else ready, follower)

    while ready or stuck:
        node_id = heapq.heappop(ready if ready else stuck)
        if done[node_id]:
            continue
        done[node_id] = True
        order.append(node_id)
        for follower in followers[node_id]:
            waiting[follower] -= 1
            release(follower)
        for maker in holds.get(node_id, ()):
            holding[maker] -= 1
            if not holding[maker] and not waiting[maker] and not done[maker]:
                heapq.heappush(ready, maker)
    return order


def _maker_of(graph: Graph, name: str) -> int:
    """The node that makes the tensor of that name, or ABSENT."""
    found = graph.tensor_named(name) if name else None
    return ABSENT if found is None else found.producer


def _claims(graph: Graph, pairs: Pairs) -> dict[int, int]:
    """The pairs by id: those of a computed output and an input of the graph."""
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    claims = {}
    for new, old in pairs.items():
        made, given = graph.tensor_named(new), graph.tensor_named(old)
        if made is None or given is None or made.producer < 0:
            continue
        if made.id in outputs and given.id in inputs and made.nbytes == given.nbytes:
            claims[made.id] = given.id
    return claims


def _judged(
    graph: Graph, claims: Mapping[int, int], known: int, rules: MemorySemantics
) -> dict[int, _Pair | str]:
    """By output: the pair and what must run before its maker, ``known`` (the node that makes the
    loss) among it, or why it stays apart in any order."""
    often = Counter(claims.values())
    return {
        output: _judge(graph, output, given, known, rules)
        if often[given] == 1
        else "several outputs are its next value"
        for output, given in claims.items()
    }


def _judge(
    graph: Graph, output: int, given: int, known: int, rules: MemorySemantics
) -> _Pair | str:
    """The same for one pair, which no other claims: rules 1, 2 and 4."""
    made, old = graph.tensors[output], graph.tensors[given]
    maker = graph.nodes[made.producer]
    if (made.dtype, made.shape) != (old.dtype, old.shape) or not (made.counted and old.counted):
        return "type or shape differ"
    if not made.static or not old.static or made.seen != old.seen:
        return "the runtime does not know before it runs that the shapes are equal"
    if maker.key in CONTROL_FLOW_OPS or graph.bodies.get(maker.id):
        return f"{maker.name} ({maker.op}) has a body"
    views = _views(graph, given, rules)
    if any(graph.tensors[t].is_output for t in views):
        return "a graph output is a view of the old value"
    shared = _views(graph, output, rules)
    if any(graph.tensors[t].is_output for t in shared - {output}):
        return "another graph output is a view of the new value"
    readers = {r for t in views | shared for r in graph.tensors[t].readers} | {maker.id}
    keeper = next((r for r in sorted(readers) if _may_keep(graph.nodes[r])), None)
    if keeper is not None:
        return f"{graph.nodes[keeper].name} ({graph.nodes[keeper].op}) may hand it on"
    read = [k for k, t in enumerate(maker.inputs) if t in views]
    if read:
        whole = set(read) <= set(overwritable_inputs(maker.key, len(maker.inputs)))
        # A view has as many elements, so broadcasting leaves each at its place.
        if not whole:
            return f"{maker.name} ({maker.op}) does not read it element by element"
    before = {known, *(reader for t in views for reader in graph.tensors[t].readers)}
    return _Pair(maker.id, frozenset(views), frozenset(before - {ABSENT, maker.id}))


def _may_keep(node: Node) -> bool:
    """Whether others may come to share what a node reads, in ways that no table tells."""
    known = node.domain in ("", "com.microsoft") or node.op in COPY_OPS
    return operator(node.key).into_sequence or not known


def _views(graph: Graph, source: int, rules: MemorySemantics) -> set[int]:
    """``source`` and all tensors that may lie in its memory."""
    found, waiting = {source}, [source]
    while waiting:
        tensor = waiting.pop()
        for reader in set(graph.tensors[tensor].readers):
            for made in _views_made(graph.nodes[reader], tensor, rules):
                if made not in found:
                    found.add(made)
                    waiting.append(made)
    return found


def _views_made(node: Node, tensor: int, rules: MemorySemantics) -> list[int]:
    made = []
    for slot, output in enumerate(node.outputs):
        alias = rules.alias_input(node.key, slot)
        if output == ABSENT or alias is None or alias >= len(node.inputs):
            continue
        if node.inputs[alias] == tensor:
            made.append(output)
    return made


def _with_memory(
    graph: Graph,
    claims: Mapping[int, int],
    in_place: Mapping[int, _Pair],
    apart: Mapping[int, str],
    refused: Mapping[str, str],
    loss: str,
) -> Graph:
    tensors = list(graph.tensors)
    for output in claims:
        tensors[output] = replace(tensors[output], nbytes=0)
    before: dict[int, frozenset[int]] = {}
    for pair in in_place.values():
        before[pair.maker] = before.get(pair.maker, frozenset()) | pair.before
    state = StateMemory(
        pairs=claims,
        in_place={output: claims[output] for output in in_place},
        apart=apart,
        second_bytes=sum(graph.tensors[claims[output]].nbytes for output in apart),
        overwriter={t: pair.maker for pair in in_place.values() for t in pair.views},
        before=before,
        refused=refused,
        loss=loss,
    )
    return replace(graph, tensors=tuple(tensors), state=state)
