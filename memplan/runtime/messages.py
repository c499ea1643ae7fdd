"""What a process asks of the child that runs a model for it, and what the child answers.

Every task and every answer is a frozen dataclass that crosses as one JSON file. Paths are texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


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


# --- Tasks ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Draw:
    """Archives of one draw: the ``inputs`` to run on, and where its ``outputs`` are saved."""

    inputs: str
    outputs: str


@dataclass(frozen=True, slots=True)
class MeasureTask:
    """Run ``model`` under the profiler, twice on ``inputs`` and once on every ``further`` draw;
    then ``runs`` times on ``inputs`` for its time, and not at all without the profiler if ``runs``
    is 0. The first run's outputs are saved at ``outputs``. The answer is a :class:`Measurement`.

    In this and other tasks ``weights`` is the folder that external data is relative to; None: that
    of the model.
    """

    model: str
    request: RunRequest
    inputs: str
    outputs: str
    further: tuple[Draw, ...] = ()
    weights: str | None = None


@dataclass(frozen=True, slots=True)
class TimeTask:
    """Run ``model`` under the profiler, ``warm_up`` runs that do not count first.

    The answer is :class:`Timed`.
    """

    model: str
    request: RunRequest
    inputs: str
    warm_up: int
    weights: str | None = None


@dataclass(frozen=True, slots=True)
class OptimizeTask:
    """Save ``model`` at ``output`` as the runtime optimizes it offline at the level *extended*,
    without the optimizers in ``disabled``. The answer is :class:`Saved`."""

    model: str
    request: RunRequest
    output: str
    weights: str | None = None
    disabled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Save ``model`` at ``output`` as a session holds it. The answer is :class:`Saved`.

    ``portable``: without what depends on the processor (:mod:`memplan.runtime.optimize`).
    ``indices``: the answer has ``order``.
    """

    model: str
    request: RunRequest
    output: str
    weights: str | None = None
    portable: bool = False
    indices: bool = False


@dataclass(frozen=True, slots=True)
class StartTask:
    """Run a trivial model on the provider that is asked for. The answer is :class:`Started`."""

    request: RunRequest


Task = MeasureTask | TimeTask | OptimizeTask | LoadTask | StartTask


# --- Answers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One node of the first run: who ran it, and the bytes in use when it ended."""

    name: str
    op: str
    provider: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class ProfiledRuns:
    """Two runs on the same inputs under the profiler, and one for every further draw.

    ``dynamic_bytes`` is the peak of requested bytes in use in the first run,
    ``second_run_dynamic_bytes`` in the second, ``further_dynamic_bytes`` in the runs on further
    draws, all less what was in use before (``base_bytes``: small initializers). ``arena_bytes``:
    what the arena held. ``second_run_digests``: of its outputs, see
    :func:`memplan.runtime.archive.digests`. ``failed``: why a further draw could not be run, in the
    runtime's words; it and all after it then have no bytes.
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


@dataclass(frozen=True, slots=True)
class CudaMeasurement:
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
class Measurement(ProfiledRuns):
    """What one model did in one kind of session.

    ``rss_growth_bytes``: how far the resident set of the process grew in a run without the
    profiler; ``seconds_median``: of the timed runs.
    """

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


@dataclass(frozen=True, slots=True)
class Timed:
    """The runs after the warm-up."""

    runs: tuple[RunTimes, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """The file was written by the runtime of this ``version``.

    ``order`` has the first output of every node, bodies included, by the runtime's node index.
    """

    version: str
    order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """A provider ran a trivial model; ``right``: with the right result.

    ``taken_bytes`` is how far the device's free memory fell by that, ``free_bytes`` what is left;
    None on the CPU and where nobody says.
    """

    version: str
    right: bool
    taken_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """The task failed, in the runtime's own words."""

    error: str


Answer = Measurement | Timed | Saved | Started | Failure


# --- Across -----------------------------------------------------------------------------------


def encode(message: Task | Answer) -> str:
    """The message as JSON text."""
    return json.dumps({"message": type(message).__name__, **asdict(message)})


def decode_task(text: str) -> Task:
    """The task that :func:`encode` wrote."""
    message = _decoded(text)
    assert isinstance(message, Task)
    return message


def decode_answer(text: str) -> Answer:
    """The answer that :func:`encode` wrote."""
    message = _decoded(text)
    assert isinstance(message, Answer)
    return message


def _many(kind: type[Any]) -> Callable[[Any], object]:
    return lambda rows: tuple(kind(**row) for row in rows)


_REQUEST: dict[str, Callable[[Any], object]] = {"request": lambda values: RunRequest(**values)}
# The fields of a message that are not plain JSON values.
_PARTS: dict[type[Any], dict[str, Callable[[Any], object]]] = {
    MeasureTask: {**_REQUEST, "further": _many(Draw)},
    TimeTask: _REQUEST,
    OptimizeTask: {**_REQUEST, "disabled": tuple},
    LoadTask: _REQUEST,
    StartTask: _REQUEST,
    Measurement: {
        "output_names": tuple,
        "nodes": _many(NodeRun),
        "cuda": lambda values: values and CudaMeasurement(**values),
        "further_dynamic_bytes": tuple,
        "second_run_digests": tuple,
    },
    Timed: {"runs": _many(RunTimes)},
    Saved: {"order": tuple},
    Started: {},
    Failure: {},
}
_KINDS = {kind.__name__: kind for kind in _PARTS}


def _decoded(text: str) -> object:
    values = json.loads(text)
    kind = _KINDS[values.pop("message")]
    parts = _PARTS[kind]
    return kind(**{k: parts[k](value) if k in parts else value for k, value in values.items()})
