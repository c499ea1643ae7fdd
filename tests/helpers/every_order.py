"""Small problems whose nodes may stand in many orders, and what is best for them by brute force."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from random import Random

import numpy as np

from helpers.problems import Case, Op
from memplan.solver.evaluate import IMPOSSIBLE, evaluate
from memplan.solver.problem import NONE, Ints


def loose_case(seed: int) -> Case:
    """A few nodes that read any of those before them: views, outputs in place, unread and pinned
    outputs, further outputs, workspace and rebuild rules among them."""
    draw = Random(seed)
    length = draw.randint(4, 6)
    ops = [Op("n0", "x", draw.randint(1, 6), float(draw.randint(1, 9)))]
    for k in range(1, length):
        reads = draw.sample(range(k), min(k, draw.choice([1, 1, 2, 2, 3])))
        if draw.random() < 0.5:
            reads = list(dict.fromkeys([k - 1, *reads]))
        like = draw.choice(["", "", "", "view", "inplace"])
        ops.append(
            Op(
                f"n{k}",
                " ".join(f"n{i}" for i in reads) + draw.choice(["", "", " x"]),
                0 if like == "view" else draw.randint(1, 6),
                0.0 if like == "view" else float(draw.randint(1, 9)),
                like,
                workspace=draw.choice([0, 0, 0, 3]),
                inside=draw.choice([0, 0, 0, 0, 2]),
                again=draw.random() > 0.15,
                output=draw.random() < 0.2,
                fleeting=draw.random() < 0.1,
                droppable=draw.random() < 0.3,
                more=((f"m{k}", draw.randint(1, 3)),) if draw.random() < 0.3 else (),
            )
        )
    for op in list(ops):
        for name, _ in op.more:
            if draw.random() < 0.5:
                reader = f"{name} n{draw.randint(0, length - 1)}"
                ops.append(Op(f"r{name}", reader, draw.randint(1, 3), float(draw.randint(1, 5))))
    return _with_rule(ops, draw)


def _with_rule(ops: list[Op], draw: Random) -> Case:
    """Some nodes that must not run again get a rule, which may read anything before them, or what
    they make beside (as a Dropout's mask)."""
    refused = [k for k, op in enumerate(ops) if not (op.again or op.like)]
    if refused and draw.random() < 0.7:
        place = refused[0]
        op = ops[place]
        sources = ["x", *(other.name for other in ops[:place]), *(name for name, _ in op.more)]
        rule = Op(f"{op.name}rule", draw.choice(sources), op.nbytes, float(draw.randint(1, 4)))
        ops.append(replace(rule, rebuilds=op.name))
    return Case(*ops, resident="x")


def every_sequence(case: Case, again: int) -> Iterator[Ints]:
    """Every sequence in every order that dependences allow, with up to ``again`` runs more."""
    arrays = case.arrays
    count, wanted = len(case.ops), set(case.order.tolist())
    makers = {int(node) for node in arrays.maker if node != NONE}
    reads = [
        [int(t) for t in arrays.reads[arrays.read_start[n] : arrays.read_start[n + 1]]]
        for n in range(count)
    ]
    writes = [
        [int(t) for t in arrays.writes[arrays.write_start[n] : arrays.write_start[n + 1]]]
        for n in range(count)
    ]
    resident = {t for t in range(len(arrays.nbytes)) if arrays.resident[t]}

    def grow(done: list[int], there: frozenset[int], left: int) -> Iterator[Ints]:
        ran = set(done)
        if wanted <= ran:
            yield np.asarray(done, np.int64)
        for node in range(count):
            first = node in wanted and node not in ran
            if not first and (left == 0 or node not in makers):
                continue
            if all(t in there for t in reads[node]):
                more = there | set(writes[node])
                yield from grow([*done, node], more, left if first else left - 1)

    yield from grow([], frozenset(resident), again)


def cheapest_by_peak(case: Case, again: int, most: int = 20_000) -> dict[int, float]:
    """Peak → the least extra cost of the sequences tried that reach it."""
    base = float(case.arrays.cost[case.order].sum())
    found: dict[int, float] = {}
    for sequence in islice(every_sequence(case, again), most):
        peak = int(evaluate(case.arrays, sequence).total.max())
        assert peak < IMPOSSIBLE
        cost = float(case.arrays.cost[sequence].sum()) - base
        found[peak] = min(cost, found.get(peak, cost))
    return found
