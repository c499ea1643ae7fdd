"""How a model is run, and what comes of it: plain values, which go to child processes and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class RunRequest:
    """How to run a model.

    ``session`` is ``tuned`` or ``default``, ``provider`` ``cpu`` or ``cuda``; ``dims`` bind
    symbolic dimensions; ``runs`` are timed; ``threads`` 0 leaves their number to the runtime;
    without ``spin`` they sleep while they have nothing to do.
    ``in_place`` and ``second``: output → input of the outputs that are bound onto the memory of the
    input, and onto a second buffer.
    """

    session: str = "tuned"
    provider: str = "cpu"
    dims: Mapping[str, int] = field(default_factory=dict)
    runs: int = 5
    seed: int = 0
    threads: int = 0
    spin: bool = True
    provider_options: Mapping[str, str] = field(default_factory=dict)
    in_place: Mapping[str, str] = field(default_factory=dict)
    second: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_bound(self) -> bool:
        """Whether the caller gives memory for new state."""
        return bool(self.in_place or self.second)


class Draw(NamedTuple):
    """Archives of one draw: the ``inputs`` to run on, and where its ``outputs`` are saved."""

    inputs: Path
    outputs: Path


class NodeRun(NamedTuple):
    """One node of the first run: who ran it, and the bytes in use when it ended."""

    name: str
    op: str
    provider: str
    nbytes: int


class CudaMeasurement(NamedTuple):
    """What is measured on CUDA only.

    ``counted_peak_bytes``: an allocator of our own saw so many bytes asked for at once, kernel
    workspace, initializers and copied inputs included. ``tight_arena_bytes``: what the arena held
    with ``arena_extend_strategy=kSameAsRequested``. ``device_taken_bytes``: how far the device's
    free memory fell, context and libraries included; None where the driver does not say.
    """

    counted_peak_bytes: int
    tight_arena_bytes: int
    device_taken_bytes: int | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one model did in one kind of session: two runs on the same inputs under the profiler,
    one for every further draw, and some without it.

    ``dynamic_bytes`` is the peak of requested bytes in use in the first run,
    ``second_run_dynamic_bytes`` in the second, ``further_dynamic_bytes`` in the runs on further
    draws, all less what was in use before (``base_bytes``: small initializers). ``arena_bytes``:
    what the arena held. ``second_run_digests``: of its outputs, see
    :func:`memplan.runtime.archive.digests`. ``failed``: why a further draw could not be run, in the
    runtime's words; it and all after it then have no bytes.

    Without the profiler: ``rss_growth_bytes``, how far the resident set of the process grew in the
    first run; ``seconds_median``, of the timed ones.
    """

    output_names: tuple[str, ...]
    nodes: tuple[NodeRun, ...]
    base_bytes: int
    dynamic_bytes: int
    second_run_dynamic_bytes: int
    arena_bytes: int
    further_dynamic_bytes: tuple[int, ...] = ()
    second_run_digests: tuple[str, ...] = ()
    failed: str = ""
    rss_growth_bytes: int = 0
    seconds_median: float | None = None
    cuda: CudaMeasurement | None = None


@dataclass(frozen=True, slots=True)
class RunTimes:
    """One run, in seconds: the whole step, and every node that ran, by name."""

    step: float
    nodes: Mapping[str, float]

    @property
    def total(self) -> float:
        """Sum over the nodes."""
        return sum(self.nodes.values())


class Saved(NamedTuple):
    """The file was written by the runtime of this ``version``.

    ``order`` has the first output of every node, bodies included, by the runtime's node index.
    """

    version: str
    order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """How a provider started with a trivial model; ``problem`` is empty if it did.

    ``right``: the result was right. ``taken_bytes``: how far the free memory of the device fell by
    that (context, kernels, libraries), ``free_bytes`` what is left; None on the CPU and where
    nobody says.
    """

    provider: str
    problem: str
    right: bool = False
    taken_bytes: int | None = None
    free_bytes: int | None = None
