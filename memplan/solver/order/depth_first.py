"""The default order of ONNX Runtime, as a start: depth first from the nodes that nobody reads.

Only what is needed next is made, which suits graphs whose outputs are not read on: the updates of
an optimizer.
"""

from __future__ import annotations

import numpy as np

from memplan.solver.order.local import settle
from memplan.solver.problem import Ints, Problem


def depth_first(problem: Problem) -> Ints:
    """The nodes of ``problem.order`` as ONNX Runtime orders them by default
    (:mod:`memplan.simulate.run_order`).

    Where nodes that must stay would change places, the order is returned as it is.
    """
    sources = _sources(problem)
    read = {source for each in sources for source in each}
    stack = [(place, False) for place in range(len(sources)) if place not in read]
    seen, order = set[int](), list[int]()
    while stack:
        place, leaving = stack.pop()
        if leaving:
            order.append(place)
        elif place not in seen:
            seen.add(place)
            stack.append((place, True))
            stack.extend((each, False) for each in sources[place] if each not in seen)
    found = settle(problem.arrays, problem.order[order])
    stay = ~problem.movable
    kept = np.array_equal(found[stay[found]], problem.order[stay[problem.order]])
    return found if kept else problem.order


def _sources(problem: Problem) -> list[list[int]]:
    """Per position of ``problem.order`` the positions whose results it reads, ascending."""
    arrays = problem.arrays
    maker: dict[int, int] = {}
    sources: list[list[int]] = []
    for position, node in enumerate(problem.order.tolist()):
        reads = arrays.reads[arrays.read_start[node] : arrays.read_start[node + 1]].tolist()
        sources.append(sorted({maker[t] for t in reads if t in maker}))
        for t in arrays.writes[arrays.write_start[node] : arrays.write_start[node + 1]].tolist():
            maker[t] = position
    return sources
