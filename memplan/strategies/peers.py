"""Published planners of the field, on the same problem and the same memory model as our search.

Each is a named strategy. They decide as their sources do; what they decide is then evaluated like
any other sequence, so that costs and peaks can be compared. The search also starts from their
plans: where one of them has a better idea, ours is at least as good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memplan.solver.problem import Decision, Problem

_SHARE = 0.6


def peer_decisions(problem: Problem, left: Callable[[], float]) -> Iterator[Decision]:
    """What the peers decide, the quickest first, while ``left()`` seconds are left.

    Those that must know the forward nodes are left out where the problem does not say.
    """
    from memplan.strategies.dtr import Dtr
    from memplan.strategies.knapsack import Knapsack
    from memplan.strategies.mincut import MinCut
    from memplan.strategies.segments import Segments

    local = Dtr(heuristic="h_local")
    peers = (Knapsack(cut=0), Segments(), local, Knapsack(), MinCut(), Dtr())
    for peer in peers:
        seconds = left()
        if seconds <= 0:
            return
        if problem.forward is not None or isinstance(peer, Dtr):
            # None may use up the time of all that come behind it.
            yield peer.solve(problem, _SHARE * seconds).decision
