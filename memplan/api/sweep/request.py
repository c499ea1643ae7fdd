"""What a sweep may be asked: the grid, and how its points are planned and run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from memplan.api.rewrite.goal import LEVELS, RewriteOptions, given_options
from memplan.api.rewrite_options import settle
from memplan.api.sweep.effort import DEFAULT_EFFORT, with_effort
from memplan.errors import UsageError
from memplan.passes.chunk.asked import NONE as NO_CHUNKS
from memplan.passes.manager import ALL
from memplan.units import SizeSpec, did_you_mean

BACKENDS = ("local", "dask", "joblib")
Sizes = int | Sequence[int]
Dims = tuple[tuple[str, int], ...]
"""Dimensions bound to sizes, in the order in which they were given."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How to plan, and where to run.

    Those up to ``loss`` are as in :class:`memplan.RewriteOptions`. ``effort`` is in rounds: the
    same plans on every machine and backend; ``time_limit``, seconds per plan, is by the clock
    instead. ``fit_dim`` is the dimension whose largest value is asked for, in multiples of
    ``fit_step``. ``jobs``: points at a time on this machine, each of which holds a model (0: one
    per core). ``backend``: ``local``, ``dask`` (``address`` of its scheduler; empty: the current
    client), or ``joblib`` (what ``joblib.parallel_config`` says). ``resume``: a file that finished
    points are kept in, and read from.
    """

    strategy: str = "auto"
    optimize: str = "extended"
    passes: str = ALL
    wrt: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    scan_recompute: str = ""
    chunk: str = NO_CHUNKS
    reserve: SizeSpec = field(default_factory=lambda: SizeSpec("0", 0, None))
    device: str | None = None
    loss: str | None = None
    effort: int = DEFAULT_EFFORT
    seed: int = 0
    time_limit: float | None = None
    fit_dim: str | None = None
    fit_step: int = 1
    jobs: int = 0
    backend: str = "local"
    address: str = ""
    resume: Path | None = None

    def __post_init__(self) -> None:
        least = {"effort": 1, "seed": 0, "fit_step": 1, "jobs": 0}
        settle(self, least, {"optimize": LEVELS})

    def plan(self, budget: SizeSpec, session: str, provider: str) -> RewriteOptions:
        """How ``rewrite`` is asked for one point.

        Raises:
            UsageError: there is no such strategy.
        """
        options = RewriteOptions(
            budget=budget,
            reserve=self.reserve,
            strategy=self.strategy,
            session=session,
            provider=provider,
            optimize=self.optimize,
            keep=self.keep,
            recompute=self.recompute,
            device=self.device,
            loss=self.loss,
            passes=self.passes,
            wrt=self.wrt,
            scan_recompute=self.scan_recompute,
            chunk=self.chunk,
        )
        return with_effort(options, self.effort, self.seed, self.time_limit)


def check_options(options: SweepOptions) -> None:
    """Refuse what cannot be, before any work.

    Raises:
        UsageError: there is no such backend, or it takes no address.
    """
    if options.backend not in BACKENDS:
        near = did_you_mean(options.backend, BACKENDS)
        raise UsageError(
            f"there is no backend {options.backend!r}", f"{near}backends: {', '.join(BACKENDS)}"
        )
    if options.address and options.backend != "dask":
        raise UsageError("an address is that of a Dask scheduler", "add --backend dask")


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
        raise UsageError(f"what fits {size.text} of its own peak?", "give a size: --fit 24GB")
    return size
