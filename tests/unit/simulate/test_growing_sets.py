"""Sets as nodes of one tree, against Python's sets."""

from __future__ import annotations

from random import Random

import pytest

from memplan.simulate.growing_sets import EMPTY, GrowingSets


@pytest.mark.parametrize("seed", range(20))
def test_random_sets(seed: int) -> None:
    draw, sets = Random(seed), GrowingSets()
    weights = [draw.randrange(100) for _ in range(30)]
    made: list[tuple[int, frozenset[int]]] = [(EMPTY, frozenset())]
    for _ in range(150):
        one, other = draw.choice(made), draw.choice(made)
        if draw.random() < 0.5:
            element = draw.randrange(30)
            number = sets.add(one[0], element, weights[element])
            made.append((number, one[1] | {element}))
        else:
            made.append((sets.union(one[0], other[0]), one[1] | other[1]))
    for number, wanted in made:
        assert sorted(sets.elements(number)) == sorted(wanted)
        assert sets.weight[number] == sum(weights[element] for element in wanted)
        assert all(sets.contains(number, element) == (element in wanted) for element in range(30))


def test_a_long_chain_is_one_path() -> None:
    sets = GrowingSets()
    last = EMPTY
    for element in range(20_000):
        last = sets.union(sets.add(last, element, 1), last)
    assert sets.weight[last] == len(sets.weight) - 1 == 20_000
    assert sets.contains(last, 0)
    assert not sets.contains(last, 20_000)
