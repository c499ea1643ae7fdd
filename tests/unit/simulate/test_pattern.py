"""The memory pattern: equal to a plain transcription of the source, and to the runtime itself."""

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.models import SAMPLES
from memplan.ir.graph import ABSENT
from memplan.runtime.inputs import synthesize
from memplan.simulate.allocation import Allocation, Buffer
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


def test_of_nothing_is_nothing() -> None:
    assert pattern_block(allocation_of(0)).total_bytes == 0


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
