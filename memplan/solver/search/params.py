"""The search's settings: what is asked for, and the constants by which it goes about it.

No sweep over any of the constants is on record: all were set by hand while the benchmarks of
docs/benchmarks.md were made, so read every one of them as *not tuned*. They stand here so that each
can be varied, and each part of the search switched off alone, in an ablation. What only the
compiled inner loops know (how closures are listed, how many moves go into one evaluation) stands
in their modules: the machine code is made for those values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from memplan.solver.problem import Flags, Ints

DEPTHS = (2, 4, 14, 64)


class RoundParams(NamedTuple):
    """How a compiled round of the refinement draws (:mod:`memplan.solver.search.neighbourhood`).

    A named tuple of numbers, as compiled code takes no dataclass. A share of 0 switches the way to
    ruin a plan off; what the three shares leave of 1 goes to the fourth way, all recomputations of
    one node.
    """

    scattered: float = 0.35
    """Share of rounds that take out up to six recomputations anywhere."""
    stretch: float = 0.40
    """Share of rounds that take out most recomputations that stand next to each other."""
    thinned: float = 0.15
    """Share of rounds that take out 3 to 18 percent of all."""
    exact: float = 0.3
    """Share of rounds whose scores have no random factors (1: none ever has)."""
    noise: float = 0.5
    """The most that scores of the other rounds are scattered by."""
    true_prices: float = 0.4
    """Share of those rounds that scatter the scores but not the prices."""
    window: float = 3.0
    """A repair ends when it costs so many temperatures more than the present plan."""
    give_up: int = 3
    """Failed attempts in a row after which a repair ends."""
    moves: int = 400
    """Moves after which a repair ends."""
    last_moves: int = 40
    """Node moves tried where a repair ends over budget (0: none)."""
    back_every: int = 200
    """One in so many rounds goes back to the best plan (0: never)."""
    depths: tuple[int, ...] = DEPTHS
    """Closure depths of which every repair draws one."""


ROUNDS = RoundParams()


@dataclass(frozen=True, slots=True)
class SearchParams:
    """Constants of the search; what switches a part off stands in its line."""

    # Greedy construction.
    depths: tuple[int, ...] = DEPTHS
    """Closure depths that greedy is run at, one after the other; the best stays."""
    portion: int = 50
    """Moves per call of the compiled repair, between looks at the clock."""
    give_up: int = 10
    """Failed attempts in a row after which greedy is stuck."""

    # Exploring: several starts, a search from each, and one more from the best few.
    starts: int = 3
    """Starts that are searched from (0: none are explored)."""
    best_few: int = 3
    """Starts from which the search goes on (0: none)."""

    # What a start is made of (:mod:`memplan.solver.search.starts`).
    longest_beam: int = 6000
    """Longer sequences get no beam, it would be too narrow (0: no beams at all)."""
    beam: int = 16
    """Width of beams."""
    beam_noises: tuple[float, ...] = (0.02, 0.05, 0.2, 0.5)
    """Sizes of a beam's random factors, of which one is drawn."""
    beam_budgets: tuple[float, ...] = (0.8, 0.9, 1.0, 1.0, 1.1, 1.25)
    """Shares of the budget that a beam aims at, of which one is drawn."""
    new_order_every: int = 3
    """One start in so many is a new order, the others are shaken plans (1: no plan is shaken)."""
    shakes: tuple[float, ...] = (0.3, 0.6, 1.0)
    """Shares of a plan's recomputations that a shake takes out, of which one is drawn."""
    ease_calls: int = 25
    """Calls of order moves that ease a start, at most (0: starts stay as made)."""
    ease_moves: int = 1000
    """Moves of nodes per such call."""
    ease_idle: int = 2
    """Calls without gain after which a start is eased no further."""

    # Struggling: nothing fits yet.
    struggle_noise: float = 0.7
    """Prices are scattered by factors between exp(-x) and exp(x)."""
    struggle_scores: float = 0.3
    """Size of the random factors on scores."""
    struggle_anew: float = 0.3
    """Share of restarts from the given order; the others go on from the least excess."""
    struggle_moves: int = 100
    """Moves of nodes before and after each repair."""
    aims: tuple[float, ...] = (1.0, 1.0, 0.99, 0.97, 0.94)
    """Shares of the budget to aim at, of which one is drawn: greedy gets stuck in front of its
    aim; behind the budget that does no harm."""

    # Refinement: large-neighbourhood search with annealing.
    rounds: RoundParams = ROUNDS
    """How a round draws."""
    moving: float = 0.5
    """Share of rounds that move nodes, where they may be moved (0: order is left alone)."""
    moving_clones: float = 0.04
    """The same where only recomputations may stand elsewhere."""
    heat: float = 0.03
    """Temperature at the beginning, relative to the extra cost; it falls to 0 (0:
    only what is no worse is accepted)."""


PARAMS = SearchParams()


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What is asked of a search.

    ``order``: whether nodes may be moved. ``iterations``: the effort, in rounds of each
    large-neighbourhood search (0: greedy and pruning alone). Where no time limit is reached, the
    plan depends on it and on ``seed`` alone and can be repeated on any machine. ``turn``: of
    several searches, which one this is: the first explores given orders, every further one others.
    ``starts``: plans to go on from. ``halt``: one flag, set by another thread where nobody waits
    any more, at which compiled code looks, which has no clock.
    """

    order: bool = True
    seed: int = 0
    iterations: int = 0
    turn: int = 0
    starts: tuple[Ints, ...] = ()
    params: SearchParams = PARAMS
    halt: Flags = field(default_factory=lambda: np.zeros(1, np.bool_), compare=False)
