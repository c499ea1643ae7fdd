"""What the file's order lets a relaxation do beyond what holds for any order."""

from __future__ import annotations

import numpy as np

from memplan.solver.bound.relaxation import Relaxation, find_until
from memplan.solver.problem import NONE, Ints


def hold_until_read(relaxation: Relaxation) -> None:
    """Keep every value until its first read, if it would be held to the end otherwise.

    Dropping it earlier would free nothing, and it would have to be made again: never better.
    """
    change = np.zeros(relaxation.steps + 1, np.int64)
    for t, found in enumerate(relaxation.uses):
        if relaxation.unread_held[t] and found:
            change[relaxation.born[t] + 1] += relaxation.size[t]
            change[found[0]] -= relaxation.size[t]
            relaxation.born[t] = found[0]
    relaxation.always += np.cumsum(change[: relaxation.steps])


def held_bytes(relaxation: Relaxation) -> tuple[Ints, Ints]:
    """Bytes at every step without recomputation, and those that are there in any plan."""
    steps = relaxation.steps
    change = np.zeros(steps + 1, np.int64)
    for t, found in enumerate(relaxation.uses):
        if found and found[-1] > relaxation.born[t]:
            change[relaxation.born[t] + 1] += relaxation.size[t]
            change[found[-1] + 1] -= relaxation.size[t]
    kept = np.cumsum(change[:steps])
    made, needed = np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    for step, i in enumerate(relaxation.node_at):
        inputs = sum(relaxation.size[t] for t in relaxation.reads[i])
        fresh = sum(relaxation.size[t] for t in relaxation.own[i] if t not in relaxation.takes[i])
        shared = sum(
            relaxation.size[t]
            for t, found in relaxation.takes[i].items()
            if t in relaxation.own[i]
            and all(max(relaxation.uses[c], default=NONE) > step for c in found)
        )
        made[step] = fresh + shared + relaxation.room[i]
        needed[step] = inputs + fresh + relaxation.room[i]
    return kept + made + relaxation.always, needed + relaxation.always


def contract(relaxation: Relaxation) -> None:
    """Let recomputing a node run what only it reads, too.

    Say ``v`` is read by ``u`` alone, is no smaller than all that ``u`` makes, and ``u`` reads
    nothing else but what ``v``'s maker reads. Then from ``u``'s first computation on, keeping
    ``v`` is never better than keeping what ``u`` makes, and whenever ``v`` is made again, ``u``
    may run right behind it. So ``v`` is not kept beyond ``u``, and the two are recomputed as one.
    """
    readers = [0] * len(relaxation.size)
    producer: dict[int, int] = {}
    for i in relaxation.nodes():
        for t in relaxation.reads[i]:
            readers[t] += 1
        for t in relaxation.writes[i]:
            producer.setdefault(t, i)
    for u in relaxation.node_at:
        made = sum(relaxation.size[t] for t in relaxation.writes[u])
        if not relaxation.again[u] or not relaxation.writes[u]:
            continue
        for v in relaxation.reads[u]:
            j = producer.get(v, NONE)
            if j == NONE or relaxation.makers[v] != [j] or relaxation.writes[j] != [v]:
                continue
            rest = set(relaxation.again_reads[u]) - {v}
            fits = readers[v] == 1 and made <= relaxation.size[v]
            if fits and rest <= set(relaxation.again_reads[j]):
                relaxation.again_reads[u] = relaxation.again_reads[j]
                relaxation.again_cost[u] += relaxation.again_cost[j]
                relaxation.again_first[u] = relaxation.again_first[j]
                relaxation.litter[u] += relaxation.litter[j]
                relaxation.chained[v] = u
                break
    find_until(relaxation)
