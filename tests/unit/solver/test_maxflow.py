"""The maximum flow of networks, against a textbook and against all cuts."""

from __future__ import annotations

import numpy as np

from memplan.solver.maxflow import Network


def test_the_maximum_flow_of_a_textbook_network() -> None:
    # Cormen, Leiserson, Rivest, Stein: 'Introduction to Algorithms', figure 26.1: 23.
    network = Network(6)
    for source, target, capacity in (
        (0, 2, 16),
        (0, 3, 13),
        (3, 2, 4),
        (2, 4, 12),
        (4, 3, 9),
        (3, 5, 14),
        (5, 4, 7),
        (4, 1, 20),
        (5, 1, 4),
    ):
        network.connect(source, target, capacity)
    assert network.saturate() == 23
    assert network.source_side() == {0, 2, 3, 5}


def test_a_flow_that_gets_late_is_no_answer() -> None:
    network = Network(3)
    network.connect(0, 2, 1)
    network.connect(2, 1, 1)
    assert network.saturate(lambda: True) is None


def test_flows_against_cuts_by_brute_force() -> None:
    draw = np.random.default_rng(2)
    for _ in range(400):
        edges = [tuple(draw.integers(0, 7, 2).tolist()) for _ in range(16)]
        rooms = draw.integers(0, 9, 16).tolist()
        network = Network(7)
        for (a, b), room in zip(edges, rooms, strict=True):
            network.connect(a, b, room)
        cuts = [
            sum(
                room
                for (a, b), room in zip(edges, rooms, strict=True)
                if a in side and b not in side
            )
            for side in ({0} | {2 + k for k in range(5) if mask >> k & 1} for mask in range(32))
        ]
        assert network.saturate() == min(cuts)
