"""Placement: equal to a plain transcription of the sources, and to the runtime itself."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.models import SAMPLES
from memplan.api.analysis import analyze_open
from memplan.ir.graph import ABSENT
from memplan.runtime.inputs import synthesize
from memplan.simulate.allocation import Allocation, Buffer
from memplan.simulate.arena import (
    ArenaConfig,
    ArenaRun,
    Extend,
    Scratch,
    bfc_bytes,
    scratch_requests,
    simulate_arena,
)
from memplan.simulate.free_space import ALIGNMENT
from memplan.simulate.opened import open_model
from memplan.simulate.pattern import pattern_block
from memplan.simulate.session import session_kind
from memplan.simulate.timeline import simulate

KIB, MIB = 1 << 10, 1 << 20


def allocation_of(steps: int, *buffers: tuple[int, int, int, bool]) -> Allocation:
    """Buffers as (bytes, birth, death, graph output)."""
    made = tuple(
        Buffer(k, k, (k,), nbytes, birth, death, output)
        for k, (nbytes, birth, death, output) in enumerate(buffers)
    )
    order = tuple(range(steps))
    return Allocation(order, order, made, tuple(range(len(made))))


def random_allocation(seed: int, steps: int = 60, scale: int = 40 * KIB) -> Allocation:
    """Several buffers a step: some empty, some of equal size, some outputs, some never freed."""
    draw = random.Random(seed)
    sizes = [0, 1, 255, 256, 257, 4096, scale]
    found: list[tuple[int, int, int, bool]] = []
    for birth in range(steps):
        for _ in range(draw.randint(0, 3)):
            nbytes = draw.choice([*sizes, draw.randrange(1, scale), draw.randrange(1, scale)])
            output = draw.random() < 0.1
            death = steps if output or draw.random() < 0.1 else birth + draw.randint(1, 25)
            found.append((nbytes, birth, min(death, steps), output))
    return allocation_of(steps, *found)


def transcribed_pattern(allocation: Allocation) -> tuple[int, dict[int, int]]:
    """MemPatternPlanner::TraceAllocation and TraceFree as written: a scan of all live blocks."""
    blocks: list[tuple[int, int, int]] = []  # (offset, size, buffer)
    offsets: dict[int, int] = {}
    block_bytes = 0
    for step in range(len(allocation.order)):
        for buffer in allocation.buffers:
            size = -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT
            if buffer.birth != step or buffer.is_output or size == 0:
                continue
            current, best, waste = 0, None, None
            for offset, held, _ in blocks:
                gap = offset - current
                if gap >= size and (waste is None or gap - size < waste):
                    best, waste = current, gap - size
                current = max(current, offset + held)
            gap = block_bytes - current
            if gap >= size and (waste is None or gap - size < waste):
                best = current
            place = current if best is None else best
            block_bytes = max(block_bytes, place + size)
            offsets[buffer.id] = place
            blocks = sorted([*blocks, (place, size, buffer.id)])
        dead = {b.id for b in allocation.buffers if b.death == step + 1 <= len(allocation.order)}
        blocks = [block for block in blocks if block[2] not in dead]
    return block_bytes, offsets


class TranscribedArena:
    """bfc_arena.cc with its bins, chunk by chunk, searched one by one."""

    def __init__(self, config: ArenaConfig) -> None:
        self.config = config
        self.regions: list[list[list[int]]] = []  # chunks as [address, size, in use]
        self.next = config.initial_chunk_bytes
        self.top = 1 << 46

    def bin_of(self, size: int) -> int:
        return min(20, (max(size, 256) >> 8).bit_length() - 1)

    def find(self, size: int) -> tuple[list[list[int]], list[int]] | None:
        for number in range(self.bin_of(size), 21):
            free = [
                (chunk[1], chunk[0], region, chunk)
                for region in self.regions
                for chunk in region
                if not chunk[2] and self.bin_of(chunk[1]) == number and chunk[1] >= size
            ]
            if free:
                return min(free, key=lambda found: found[:2])[2:]
        return None

    def extend(self, size: int) -> None:
        nbytes = size
        if self.config.extend is Extend.NEXT_POWER_OF_TWO:
            grown = False
            while size > self.next:
                self.next *= 2
                grown = True
            nbytes = self.next
            if not grown:
                cap = self.config.max_extend_bytes
                self.next = self.next * 2 if self.next * 2 < cap else cap
        self.top -= nbytes + 4096
        self.regions.append([[self.top, nbytes, 0]])

    def request(self, nbytes: int) -> int:
        size = -(-nbytes // 256) * 256
        if size == 0:
            return ABSENT
        if self.find(size) is None:
            self.extend(size)
        found = self.find(size)
        assert found is not None
        region, chunk = found
        if chunk[1] >= 2 * size or chunk[1] - size >= self.config.max_dead_bytes:
            region.insert(region.index(chunk) + 1, [chunk[0] + size, chunk[1] - size, 0])
            chunk[1] = size
        chunk[2] = 1
        return chunk[0]

    def release(self, address: int) -> None:
        for region in self.regions:
            for chunk in region:
                if chunk[0] == address:
                    chunk[2] = 0
            position = 0
            while position + 1 < len(region):
                if region[position][2] or region[position + 1][2]:
                    position += 1
                else:
                    region[position][1] += region.pop(position + 1)[1]

    @property
    def in_use(self) -> int:
        return sum(chunk[1] for region in self.regions for chunk in region if chunk[2])

    @property
    def held(self) -> int:
        return sum(chunk[1] for region in self.regions for chunk in region)


def check_placement(allocation: Allocation, run: ArenaRun) -> None:
    """Chunks hold their buffers, lie within a region and do not overlap while both are live."""
    live = [b for b in allocation.buffers if b.nbytes]
    for buffer in live:
        address, size = run.addresses[buffer.id], run.chunk_bytes[buffer.id]
        assert size >= buffer.nbytes
        assert any(
            r.address <= address and address + size <= r.address + r.nbytes for r in run.regions
        )
    for step in range(len(allocation.order)):
        spans = sorted(
            (run.addresses[b.id], run.chunk_bytes[b.id]) for b in live if b.birth <= step < b.death
        )
        ends = [address + size for address, size in spans]
        assert all(end <= start for end, (start, _) in zip(ends, spans[1:], strict=False))
        assert int(run.in_use[step]) == sum(size for _, size in spans)


class TestOfNothing:
    def test_is_zero(self) -> None:
        nothing = allocation_of(0)
        assert pattern_block(nothing).total_bytes == 0
        assert bfc_bytes(nothing).held_bytes == 0


class TestPatternBlock:
    @pytest.mark.parametrize("seed", range(150))
    def test_equals_the_plain_algorithm(self, seed: int) -> None:
        allocation = random_allocation(seed, steps=80)
        block_bytes, offsets = transcribed_pattern(allocation)
        found = pattern_block(allocation)
        assert found.block_bytes == block_bytes
        assert {k: found.offsets[k] for k in offsets} == offsets

    def test_takes_the_smallest_gap_and_the_lowest_of_equals(self) -> None:
        allocation = allocation_of(
            3,
            (1024, 0, 1, False),
            (256, 0, 3, False),
            (512, 0, 1, False),
            (256, 0, 3, False),
            (512, 0, 1, False),
            (256, 0, 3, False),
            (512, 1, 3, False),
        )
        assert pattern_block(allocation).offsets == (0, 1024, 1280, 1792, 2048, 2560, 1280)

    def test_grows_into_a_gap_at_the_end_that_is_too_small(self) -> None:
        allocation = allocation_of(2, (256, 0, 2, False), (512, 0, 1, False), (1024, 1, 2, False))
        found = pattern_block(allocation)
        assert found.offsets[2] == 256
        assert found.block_bytes == 256 + 1024

    def test_outputs_stand_beside_the_block_unrounded(self) -> None:
        found = pattern_block(allocation_of(1, (100, 0, 1, True), (100, 0, 1, False)))
        assert (found.block_bytes, found.output_bytes, found.total_bytes) == (256, 100, 356)
        assert found.offsets == (ABSENT, 0)

    def test_is_fast_for_20000_buffers(self) -> None:
        steps = 20_000
        draw = random.Random(0)
        buffers = [
            (draw.randrange(1, MIB), step, max(step + 1, steps - step), False)
            for step in range(steps)
        ]
        start = time.process_time()
        pattern_block(allocation_of(steps, *buffers))
        assert time.process_time() - start < 2


class TestBfcArena:
    @pytest.mark.parametrize("seed", range(60))
    @pytest.mark.parametrize("extend", list(Extend))
    def test_equals_the_plain_algorithm(self, seed: int, extend: Extend) -> None:
        config = ArenaConfig(extend, 64 * KIB, 48 * KIB, 256 * KIB)
        allocation = random_allocation(seed, scale=60 * KIB)
        plain = TranscribedArena(config)
        places: dict[int, int] = {}
        in_use, held = [], []
        for step in range(len(allocation.order)):
            for buffer in allocation.buffers:
                if buffer.birth == step:
                    places[buffer.id] = plain.request(buffer.nbytes)
            in_use.append(plain.in_use)
            held.append(plain.held)
            for buffer in allocation.buffers:
                if buffer.death == step + 1 and not buffer.is_output:
                    plain.release(places[buffer.id])
        run = bfc_bytes(allocation, config=config)
        assert run.in_use.tolist() == in_use
        assert run.held.tolist() == held
        assert list(run.addresses) == [places[b.id] for b in allocation.buffers]
        assert run.held_bytes == plain.held
        check_placement(allocation, run)

    def test_a_chunk_less_than_twice_the_request_is_not_split(self) -> None:
        run = bfc_bytes(allocation_of(1, (600 * KIB, 0, 1, False)))
        assert run.in_use.tolist() == [MIB]
        run = bfc_bytes(allocation_of(1, (512 * KIB, 0, 1, False)))
        assert run.in_use.tolist() == [512 * KIB]

    def test_a_chunk_with_too_much_waste_is_split(self) -> None:
        request = 200 * MIB
        run = bfc_bytes(allocation_of(1, (request, 0, 1, False)))
        assert run.held.tolist() == [256 * MIB]
        assert run.in_use.tolist() == [256 * MIB]
        config = ArenaConfig(max_dead_bytes=56 * MIB)
        run = bfc_bytes(allocation_of(1, (request, 0, 1, False)), config=config)
        assert run.in_use.tolist() == [request]

    def test_regions_double_up_to_the_limit(self) -> None:
        buffers = [(MIB, 0, 1, False)] * 20
        config = ArenaConfig(max_extend_bytes=4 * MIB)
        run = bfc_bytes(allocation_of(1, *buffers), config=config)
        sizes = sorted(region.nbytes // MIB for region in run.regions)
        assert sizes == [1, 2, 4, 4, 4, 4, 4]
        exact = bfc_bytes(allocation_of(1, *buffers), config=ArenaConfig(Extend.SAME_AS_REQUESTED))
        assert exact.held_bytes == 20 * MIB

    def test_reserved_bytes_are_held_and_in_use_without_rounding(self) -> None:
        run = bfc_bytes(allocation_of(1, (256, 0, 1, False)), reserved_bytes=100)
        assert run.in_use.tolist() == [356]
        assert run.held_bytes == MIB + 100

    def test_scratch_counts_in_the_peak_only(self) -> None:
        allocation = allocation_of(1, (256, 0, 1, False))
        run = bfc_bytes(allocation, scratch={0: Scratch(after=(512,))})
        assert run.in_use.tolist() == [256]
        assert run.peak_in_use == 768

    def test_scratch_before_the_output_takes_its_place(self) -> None:
        allocation = allocation_of(1, (256, 0, 1, False))
        late = bfc_bytes(allocation, scratch={0: Scratch(after=(512,))})
        early = bfc_bytes(allocation, scratch={0: Scratch(before=(512,))})
        assert early.addresses[0] == late.addresses[0] + 512

    def test_outputs_of_a_run_stay_during_the_next(self) -> None:
        allocation = allocation_of(2, (1024, 0, 2, True), (256, 1, 2, False))
        assert bfc_bytes(allocation).in_use.tolist() == [1024, 1280]
        assert bfc_bytes(allocation, runs=2).in_use.tolist() == [2048, 2304]
        assert bfc_bytes(allocation, runs=5).in_use.tolist() == [2048, 2304]
        dropped = bfc_bytes(allocation, runs=5, keep_outputs=False)
        assert dropped.in_use.tolist() == [1024, 1280]

    def test_feeds_are_held_for_the_run(self) -> None:
        run = bfc_bytes(allocation_of(1, (256, 0, 1, False)), feeds=[1000], runs=3)
        assert run.in_use.tolist() == [1024 + 256]

    def test_no_run_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="at least one run"):
            bfc_bytes(allocation_of(0), runs=0)

    def test_cuda_copies_graph_inputs_into_the_arena(self) -> None:
        model = open_model(SAMPLES / "mlp_adamw.onnx")
        cpu = simulate_arena(simulate(model.graph, session_kind("tuned", "cpu")))
        cuda = simulate_arena(simulate(model.graph, session_kind("tuned", "cuda")))
        inputs = sum(model.graph.tensors[t].nbytes for t in model.graph.inputs)
        assert int(cuda.in_use[0]) >= int(cpu.in_use[0]) + inputs


class TestScratchRequests:
    def test_where_asks_twice_before_its_output(self) -> None:
        timeline = analyze_open(open_model(SAMPLES / "lstm.onnx"), session_kind("tuned")).timeline
        graph = timeline.graph
        asked = scratch_requests(timeline)
        wheres = [s for s in asked if graph.nodes[timeline.order[s]].key == ":Where"]
        assert wheres
        for step in wheres:
            assert len(asked[step].before) == 2
            assert not asked[step].after

    def test_sums_to_the_workspace(self) -> None:
        timeline = simulate(open_model(SAMPLES / "unet.onnx").graph, session_kind("tuned"))
        asked = scratch_requests(timeline)
        for step, nbytes in enumerate(timeline.workspace.tolist()):
            requests = asked.get(step, Scratch())
            assert sum(requests.before) + sum(requests.after) == nbytes


def profiled(path: Path, dims: dict[str, int], folder: Path) -> list[dict[str, Any]]:
    """Node events of two runs of a tuned session with memory patterns."""
    import onnxruntime

    from memplan.runtime.session_options import session_options

    options = session_options("tuned", dims)
    options.enable_mem_pattern = True
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "run")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = synthesize(open_model(path, dims).graph)
    for _ in range(2):
        session.run(None, feeds)
    events = json.loads(Path(session.end_profiling()).read_text())
    return [e["args"] for e in events if e["name"].endswith("_kernel_time")]


@pytest.mark.ort
def test_the_second_run_holds_the_pattern_block(tmp_path: Path) -> None:
    path, dims = SAMPLES / "gpt_dynamic.onnx", {"N": 2}
    events = profiled(path, dims, tmp_path)
    timeline = simulate(open_model(path, dims).graph, session_kind("tuned"))
    allocation, steps = timeline.allocation, len(timeline.order)
    in_use = np.array([int(event["mem_bytes_requested_in_use"]) for event in events])
    base = in_use[0] - int(events[0]["mem_requested_in_use_delta"])
    outputs = np.zeros(steps, dtype=np.int64)
    for buffer in allocation.buffers:
        if buffer.is_output:
            outputs[buffer.birth :] += buffer.nbytes
    block = pattern_block(allocation).block_bytes
    assert (in_use[steps:] - base == block + outputs).all()


def test_regions_double_up_to_a_gibibyte_by_default() -> None:
    """``DEFAULT_MAX_POWER_OF_TWO_EXTEND_BYTES`` of ONNX Runtime's ``bfc_arena.h``."""
    buffers = [(700 * MIB, 0, 1, False)] * 3
    run = bfc_bytes(allocation_of(1, *buffers))
    assert sorted(region.nbytes // MIB for region in run.regions) == [1024, 1024, 1024]
    small = bfc_bytes(allocation_of(1, *[(MIB, 0, 1, False)] * 3000))
    assert max(region.nbytes // MIB for region in small.regions) == 1024
