"""How to validate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from memplan.api.rewrite_options import settle
from memplan.runtime.measure import check_time_limit


@dataclass(frozen=True, slots=True)
class ValidateOptions:
    """How to validate.

    ``provider`` ``auto`` is what the plan was made for. ``runs`` are timed, 0: none; ``inputs`` is
    an .npz with one array per graph input, the first of ``draws`` sets of inputs; ``threads`` 0
    leaves their number to the runtime. ``plain``: also measure the user's file with every default
    on. ``wrt``: the globs that ``rewrite`` was given, where outputs are to be missing.
    ``time_limit``: seconds for everything that one process runs. ``state``: see
    :mod:`memplan.api.state_modes`; empty: as the rewritten file says.

    Raises:
        UsageError: a number is out of range.
    """

    provider: str = "auto"
    runs: int = 5
    inputs: Path | None = None
    seed: int = 0
    threads: int = 0
    plain: bool = True
    draws: int = 2
    wrt: tuple[str, ...] = ()
    time_limit: float = 600.0
    state: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        settle(self, {"runs": 0, "seed": 0, "threads": 0, "draws": 1})
        check_time_limit(self.time_limit)
