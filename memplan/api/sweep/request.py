"""What a sweep may be asked: the grid, and how its points are planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from memplan.api.rewrite.goal import strategy_for
from memplan.errors import UsageError
from memplan.options import RewriteOptions, given_options
from memplan.solver.strategies.builtin import Search
from memplan.units import SizeSpec

Sizes = int | Sequence[int]
Dims = tuple[tuple[str, int], ...]
"""Dimensions bound to sizes, in the order in which they were given."""


def plan_for(
    options: RewriteOptions, budget: SizeSpec, session: str, provider: str
) -> RewriteOptions:
    """How ``rewrite`` is asked for one point.

    Of strategies other than the search, which have no rounds, none is stopped by the clock either.

    Raises:
        UsageError: there is no such strategy.
    """
    options = replace(options, budget=budget, session=session, provider=provider)
    if not options.effort:
        return options
    strategy = strategy_for(replace(options, effort=0))
    if not isinstance(strategy, Search):
        return options
    return replace(options, effort=strategy.iterations or options.effort)


def given_sizes(dims: Mapping[str, Sizes]) -> dict[str, tuple[int, ...]]:
    """Every dimension with the sizes that it is to have, each once.

    Raises:
        UsageError: a dimension has no size, or one below 1.
    """
    result = {}
    for name, given in dims.items():
        sizes = (given,) if isinstance(given, int) else tuple(dict.fromkeys(given))
        if not sizes or any(isinstance(s, bool) or not isinstance(s, int) for s in sizes):
            raise UsageError(f"dimension {name!r} needs whole numbers, not {given!r}")
        if min(sizes) < 1:
            raise UsageError(f"dimension {name!r} cannot be {min(sizes)}", "give at least 1")
        result[name] = sizes
    return result


def grid(sizes: Mapping[str, Sequence[int]]) -> Iterator[Dims]:
    """Every combination of sizes; one, which is empty, where there are no dimensions."""
    for chosen in product(*sizes.values()):
        yield tuple(zip(sizes, chosen, strict=True))


def given_budget(given: object) -> SizeSpec:
    """A size.

    Raises:
        UsageError: it is not one.
    """
    return given_options(given).budget


def fit_budget(given: object) -> SizeSpec:
    """The size that the largest value of a dimension is to fit.

    Raises:
        UsageError: it is not a size, or a percentage, which is of a peak that grows along.
    """
    size = given_budget(given)
    if size.nbytes is None:
        raise UsageError(f"expected a size, got {size.text}", "give a size: --fit 24GB")
    return size
