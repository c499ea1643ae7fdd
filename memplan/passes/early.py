"""Small results of large tensors, made before the large ones are waited for.

A mask that the backward pass compares out of an activation keeps four bytes an element until then;
made at once it keeps one. That holds of any reader whose results are smaller than what it reads,
and that needs nothing else that comes later.
"""

from __future__ import annotations

from memplan.ir.graph import ABSENT, Node, Tensor, TensorKind
from memplan.ops.book import RANDOM_OPS, SHAPE_READERS
from memplan.ops.memory import has_effects
from memplan.simulate.timeline import Timeline

_MOST_LATE = 64  # readers of one tensor that are made early together
_ROUNDS = 4  # a result that was made early may itself be read by one that makes less of it
_STAYS = RANDOM_OPS | SHAPE_READERS  # the latter run as soon as they can


def early_results(timeline: Timeline, *, alone: bool = True) -> list[int]:
    """The order (node ids) with late readers of a tensor right behind its early ones, where all
    that they make is smaller than what then dies there.

    ``alone``: also where there are no early ones, right behind what makes the tensor.
    """
    result = list(timeline.order)
    for _ in range(_ROUNDS):
        moved = _round(timeline, result, 0 if alone else 1)
        if moved == result:
            break
        result = moved
    return result


def _round(timeline: Timeline, order: list[int], fewest: int) -> list[int]:
    graph = timeline.graph
    place = [0] * len(order)
    for position, node in enumerate(order):
        place[node] = position
    target: dict[int, int] = {}  # node → the position right behind which it goes
    tried: dict[tuple[int, ...], int | None] = {}  # a node of many inputs is looked at once
    for tensor in graph.tensors:
        if not _dies(tensor):
            continue
        readers = sorted(set(tensor.readers), key=lambda n: place[n])
        movable = [not _stays(timeline, graph.nodes[n]) for n in readers]
        # All from one on move together, so one that stays holds those before it.
        stuck = max((k + 1 for k, moves in enumerate(movable) if not moves), default=0)
        for split in range(max(fewest, stuck, len(readers) - _MOST_LATE), len(readers)):
            late = readers[split:]
            if any(node in target for node in late):
                break
            key = tuple(late)
            if key not in tried:
                tried[key] = _behind(timeline, [graph.nodes[n] for n in late], place)
            behind = tried[key]
            if behind is not None:
                target.update(dict.fromkeys(late, behind))
                break
    rank = {node: (target.get(node, place[node]), node in target, place[node]) for node in order}
    return sorted(order, key=lambda node: rank[node])


def _stays(timeline: Timeline, node: Node) -> bool:
    return (
        node.key in _STAYS
        or has_effects(node.key)
        or node.id in timeline.graph.bodies
        or not all(_dies(timeline.graph.tensors[t]) for t in node.writes)
    )


def _dies(tensor: Tensor) -> bool:
    return tensor.kind is TensorKind.COMPUTED and tensor.counted and not tensor.is_output


def _behind(timeline: Timeline, late: list[Node], place: list[int]) -> int | None:
    """The position behind which all that ``late`` nodes read is there and read by nobody else,
    where that is earlier than theirs and less than it is made; else None."""
    graph = timeline.graph
    made = [graph.tensors[t] for n in late for t in n.writes]
    read = [graph.tensors[t] for t in sorted({t for n in late for t in n.reads})]
    nodes = {n.id for n in late}
    first = min(place[n] for n in nodes)
    behind = max((place[t.producer] for t in read if t.producer >= 0), default=0)
    freed = 0
    for tensor in read:
        others = [place[r] for r in _sharing(timeline, tensor) if r not in nodes]
        if _dies(tensor) and others and max(others) < first:
            behind = max(behind, *others)
            freed += tensor.nbytes
    small = sum(tensor.nbytes for tensor in made) < freed
    return behind if small and behind + len(late) < first else None


def _sharing(timeline: Timeline, tensor: Tensor) -> list[int]:
    """All nodes that make or read what lies in the memory of ``tensor``; none for that of an input
    or of a weight, which is never freed."""
    allocation = timeline.allocation
    buffer = allocation.buffer_of[tensor.id]
    if buffer == ABSENT:
        return []
    members = [timeline.graph.tensors[t] for t in allocation.buffers[buffer].members]
    return [node for member in members for node in (member.producer, *member.readers)]
