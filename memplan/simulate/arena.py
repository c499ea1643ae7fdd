"""The BFC arena: chunks and regions, beyond the bytes that tensors ask for.

Tensors come from it in the first run of a session, and in every run without memory patterns
(:mod:`memplan.simulate.pattern`). Source: ``onnxruntime/core/framework/bfc_arena.cc``, itself after
TensorFlow's best-fit allocator with coalescing.

Checked against ONNX Runtime 1.31.1 on the CPU, node by node, two runs each in a fresh process, 17
models in file order and in default order: the arena held is equal to the byte; so are bytes in use,
but for one run of the 68 (768 B at 0.4% of its nodes). Known limits:

* Equal free chunks are taken lowest address first, so the operating system's choice of addresses
  matters. With small regions (SAME_AS_REQUESTED) or in a process that ran other sessions, bytes in
  use differ by up to 4%; the arena held was still equal to 256 B.
* Convolution scratch grows with the threads of the session and can make the arena grow.
* Tensors inside control-flow bodies are not placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from memplan.ir.graph import ABSENT, Graph, Node, TensorKind
from memplan.ops.book import operator
from memplan.simulate.allocation import Allocation, Buffer
from memplan.simulate.free_space import FreeSpace, by_step, rounded
from memplan.simulate.timeline import Bytes, Timeline

_MIB = 1 << 20
# Regions must not touch, or chunks of two regions would coalesce; mmap leaves a page as well.
_REGION_GAP = 4096
# Regions are laid out downwards from here: below 2^47 like user space, and exact in a JS number.
_TOP_ADDRESS = 1 << 46


class Extend(StrEnum):
    """``arena_extend_strategy``: how large a new region is."""

    NEXT_POWER_OF_TWO = "kNextPowerOfTwo"
    SAME_AS_REQUESTED = "kSameAsRequested"


@dataclass(frozen=True, slots=True)
class ArenaConfig:
    """Settings of the BFC arena, in bytes; the defaults are ONNX Runtime's.

    ``max_dead_bytes``: a free chunk larger than the request by at least this much is split even
    if it is less than twice as large. ``max_extend_bytes`` is where the doubling of regions ends.
    """

    extend: Extend = Extend.NEXT_POWER_OF_TWO
    initial_chunk_bytes: int = _MIB
    max_dead_bytes: int = 128 * _MIB
    max_extend_bytes: int = 1024 * _MIB


@dataclass(frozen=True, slots=True)
class Region:
    """A block of memory that the arena took from the system."""

    address: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """Requests in bytes that a kernel makes before and after it asks for its outputs.

    All are given back when the kernel ends.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ArenaRun:
    """The arena during the last simulated run. Arrays have one entry per step, in bytes.

    ``in_use`` and ``held`` are what the profiler reports when the node ends (``mem_bytes_in_use``,
    ``mem_arena_held``), reserved initializers included. ``addresses`` and ``chunk_bytes`` are by
    buffer id (ABSENT and 0 for empty buffers). ``peak_in_use`` also counts scratch while kernels
    run. ``regions`` are sorted by address.
    """

    config: ArenaConfig
    reserved_bytes: int
    in_use: Bytes
    held: Bytes
    peak_in_use: int
    addresses: tuple[int, ...]
    chunk_bytes: tuple[int, ...]
    regions: tuple[Region, ...]

    @property
    def held_bytes(self) -> int:
        """What the arena holds at the end; it never shrinks by itself."""
        return self.reserved_bytes + sum(region.nbytes for region in self.regions)


def bfc_bytes(
    allocation: Allocation,
    *,
    scratch: Mapping[int, Scratch] | None = None,
    config: ArenaConfig | None = None,
    reserved_bytes: int = 0,
    feeds: Sequence[int] = (),
    runs: int = 1,
    keep_outputs: bool = True,
) -> ArenaRun:
    """Simulate the BFC arena for ``runs`` runs in a row; the last one is returned.

    Args:
        allocation: the buffers, each one request.
        scratch: by step, what the kernel asks for beside its outputs.
        config: arena settings; ONNX Runtime's defaults when left out.
        reserved_bytes: initializers. They are reserved outside the arena's regions, without
            rounding, but count as in use and held.
        feeds: bytes of graph inputs that are copied into the arena for the run (CUDA).
        runs: how often the step runs on the same arena.
        keep_outputs: whether the outputs of a run are there until the next one has ended, as in
            a Python loop ``outputs = session.run(...)``; else they are gone before it starts.

    Raises:
        ValueError: ``runs`` is not positive.
    """
    if runs < 1:
        raise ValueError("at least one run")
    arena = _Arena(config or ArenaConfig())
    births, deaths = by_step(allocation)
    kept: list[int] = []
    for _ in range(runs):
        run = _Run(arena, [arena.request(nbytes) for nbytes in feeds])
        for step in range(len(allocation.order)):
            run.step(births[step], deaths[step + 1], (scratch or {}).get(step, Scratch()))
        outputs = [run.places[b.id][0] for b in allocation.buffers if b.is_output]
        for address in (*run.feeds, *kept, *(() if keep_outputs else outputs)):
            arena.release(address)
        kept = outputs if keep_outputs else []
    nowhere = (ABSENT, 0)
    places = [run.places.get(buffer.id, nowhere) for buffer in allocation.buffers]
    return ArenaRun(
        config=arena.config,
        reserved_bytes=reserved_bytes,
        in_use=np.asarray(run.in_use, dtype=np.int64) + reserved_bytes,
        held=np.asarray(run.held, dtype=np.int64) + reserved_bytes,
        peak_in_use=arena.peak + reserved_bytes,
        addresses=tuple(address for address, _ in places),
        chunk_bytes=tuple(size for _, size in places),
        regions=tuple(sorted(arena.regions, key=lambda region: region.address)),
    )


def simulate_arena(
    timeline: Timeline,
    *,
    runs: int = 1,
    keep_outputs: bool = True,
) -> ArenaRun:
    """The BFC arena of a simulated session, kernel scratch included; see :func:`bfc_bytes`.

    On the CPU graph inputs stay in the caller's memory; on CUDA they are copied into the arena.
    All initializers count as reserved. ONNX Runtime 1.31 keeps those of 128 bytes and more outside
    the CPU arena, so compare growth over ``reserved_bytes`` with the profiler, not levels.
    """
    graph = timeline.graph
    tensors = [graph.tensors[t] for t in dict.fromkeys(graph.inputs)]
    feeds = [t.nbytes for t in tensors if t.kind is TensorKind.INPUT]
    return bfc_bytes(
        timeline.allocation,
        scratch=scratch_requests(timeline),
        reserved_bytes=sum(t.nbytes for t in graph.tensors if t.kind is TensorKind.INITIALIZER),
        feeds=feeds if timeline.session.provider == "cuda" else (),
        runs=runs,
        keep_outputs=keep_outputs,
    )


def scratch_requests(timeline: Timeline) -> dict[int, Scratch]:
    """By step, the workspace of the timeline as the requests that the kernel makes.

    When scratch comes before the output, the output cannot take the chunks that scratch occupies;
    so the order of requests decides where buffers lie.
    """
    found: dict[int, Scratch] = {}
    for step in np.flatnonzero(timeline.workspace).tolist():
        node = timeline.graph.nodes[timeline.order[step]]
        nbytes = int(timeline.workspace[step])
        parts = _parts(timeline.graph, node, nbytes)
        first = operator(node.key).scratch_first
        found[step] = Scratch(before=parts) if first else Scratch(after=parts)
    return found


def _parts(graph: Graph, node: Node, nbytes: int) -> tuple[int, ...]:
    """``Where`` selects each branch into a tensor of its own; most others make one request."""
    if operator(node.key).scratch_in_halves:
        return (nbytes // 2, nbytes - nbytes // 2)
    if node.key != ":Where" or ABSENT in node.inputs:
        return (nbytes,)
    condition, x, y = (graph.tensors[t] for t in node.inputs)
    elements = [
        int(np.prod(np.broadcast_shapes(condition.shape, side.shape), dtype=np.int64))
        for side in (x, y)
    ]
    first = nbytes * elements[0] // max(1, sum(elements))
    return (first, nbytes - first)


class _Arena:
    """Chunks of the BFC arena.

    ``bfc_arena.cc`` searches bins of doubling chunk sizes, each sorted by size and address, from
    small to large. That is the order of one list sorted by size and address, which is kept here.
    """

    def __init__(self, config: ArenaConfig) -> None:
        self.config = config
        self.free = FreeSpace()
        self.regions: list[Region] = []
        self.in_use = 0
        self.held = 0
        self.peak = 0
        self._chunks: dict[int, int] = {}
        self._next_region = rounded(config.initial_chunk_bytes)
        self._top = _TOP_ADDRESS

    def request(self, nbytes: int) -> int:
        """Give out a chunk; its address, ABSENT for nothing."""
        if nbytes == 0:
            return ABSENT
        size = rounded(nbytes)
        found = self.free.take(size)
        if found is None:
            self._extend(size)
            found = self.free.take(size)
            assert found is not None
        address, chunk = found
        if chunk >= 2 * size or chunk - size >= self.config.max_dead_bytes:
            self.free.give(address + size, chunk - size)
            chunk = size
        self._chunks[address] = chunk
        self.in_use += chunk
        self.peak = max(self.peak, self.in_use)
        return address

    def release(self, address: int) -> None:
        """Take a chunk back."""
        if address == ABSENT:
            return
        chunk = self._chunks.pop(address)
        self.in_use -= chunk
        self.free.give(address, chunk)

    def chunk_bytes(self, address: int) -> int:
        """Size of the chunk given out at ``address``."""
        return self._chunks.get(address, 0)

    def _extend(self, size: int) -> None:
        nbytes = self._region_bytes(size)
        # Linux maps new regions below the ones before. That matters: equal chunks are taken
        # lowest address first.
        self._top -= nbytes + _REGION_GAP
        self.regions.append(Region(self._top, nbytes))
        self.held += nbytes
        self.free.give(self._top, nbytes)

    def _region_bytes(self, size: int) -> int:
        if self.config.extend is Extend.SAME_AS_REQUESTED:
            return size
        if size <= self._next_region:
            nbytes = self._next_region
            self._next_region = min(2 * nbytes, self.config.max_extend_bytes)
            return nbytes
        while size > self._next_region:
            self._next_region *= 2
        return self._next_region


@dataclass(slots=True)
class _Run:
    """One run on an arena: places by buffer id, and the arena's state when each node ended."""

    arena: _Arena
    feeds: list[int]
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    in_use: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    def step(self, births: list[Buffer], deaths: list[Buffer], scratch: Scratch) -> None:
        """Run one node: scratch, outputs, scratch; then what it was the last to read."""
        arena = self.arena
        taken = [arena.request(nbytes) for nbytes in scratch.before]
        for buffer in births:
            address = arena.request(buffer.nbytes)
            self.places[buffer.id] = (address, arena.chunk_bytes(address))
        taken += [arena.request(nbytes) for nbytes in scratch.after]
        for address in taken:
            arena.release(address)
        self.in_use.append(arena.in_use)
        self.held.append(arena.held)
        for buffer in deaths:
            if not buffer.is_output:
                arena.release(self.places[buffer.id][0])
