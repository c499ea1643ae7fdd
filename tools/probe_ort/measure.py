"""Building a one-op model around a case and reading alias, in-place and scratch from its trace.

The model, in execution order (PRIORITY_BASED keeps the file's order)::

    copies of the inputs | mark | NODE | mark | reader of output 0 | mark | reader of output 1 |
    mark | readers of the inputs that are to outlive the node

Every `mark` allocates one block of a size nothing else has, so the trace splits into windows. What
the node's window allocates and leaves alive is its outputs; what it allocates beyond is scratch; a
block that is released in the window of output k's reader is output k's buffer. When that block is
one of the input copies, output k lives in that input's buffer.
"""

import tempfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from cases import EAGER, Case, around
from onnx import helper
from shim import Trace

MARK_BASE = 90001  # odd and large: no catalogue tensor has such a size


class ProbeError(RuntimeError):
    """The trace does not have the expected form."""


def build(
    case: Case, dying: Collection[int]
) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[int]]:
    """The one-op model in which the inputs numbered in `dying` have no other reader, its feeds, and
    the inputs that are copied."""
    numbers = count()

    def mark(nodes: list, constants: dict, feeds: dict) -> str:
        index = next(numbers)
        name = f"mark{index}"
        feeds["byte"] = np.zeros(1, np.uint8)
        constants[f"{name}_shape"] = np.array([MARK_BASE + 2 * index], np.int64)
        nodes.append(helper.make_node("Expand", ["byte", f"{name}_shape"], [name], name=name))
        return name

    seed = zlib.crc32(f"{case.key}/{case.label}".encode())
    return around(case, dying, seed=seed, mark=mark)[:3]


def session(model: onnx.ModelProto, threads: int, saved: str | None = None) -> ort.InferenceSession:
    """A session that allocates every tensor by itself, in file order, without rewriting."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.enable_mem_reuse = False
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if saved:
        options.optimized_model_filepath = saved
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def has_kernel(case: Case) -> bool:
    """Whether the case's node is executed as it is.

    Even with all optimizations off, onnxruntime inlines a function op that has no kernel and wraps
    a float16 node without a float16 kernel into Casts; both show in the model it saves.
    """
    with tempfile.TemporaryDirectory() as folder:
        saved = str(Path(folder) / "saved.onnx")
        model = build(case, ())[0]
        session(model, 1, saved)
        kept = onnx.load(saved).graph.node
    return len(kept) == len(model.graph.node) and any(n.name == "node" for n in kept)


def _windows(events: list[tuple[int, int]], marks: int) -> list[list[tuple[int, int]]]:
    """The trace cut at the markers: marks + 1 windows."""
    windows: list[list[tuple[int, int]]] = [[]]
    for event in events:
        index = len(windows) - 1
        if index < marks and event[1] == MARK_BASE + 2 * index:
            windows.append([])
        else:
            windows[-1].append(event)
    if len(windows) != marks + 1:
        raise ProbeError(f"expected {marks} markers in the trace, found {len(windows) - 1}")
    return windows


def _node_window(window: list[tuple[int, int]], before: set[int]) -> tuple[dict[int, int], int]:
    """Blocks the node left alive, and its peak beyond the blocks that were alive before it."""
    alive: dict[int, int] = {}
    now = peak = 0
    for block, size in window:
        if size >= 0:
            alive[block] = size
            now += size
            peak = max(peak, now)
        elif block in alive:
            now -= alive.pop(block)
        elif block not in before:
            raise ProbeError("the node released a block that the trace did not see allocated")
    return alive, peak


@dataclass
class Reading:
    """What one run of one model showed."""

    shares: dict[int, int | None]  # output -> the input whose buffer it lives in, None = own buffer
    without_block: list[int]  # outputs that are non-empty and for which the node allocated nothing
    scratch: int
    produced: list[np.ndarray]


def read(case: Case, dying: set[int], threads: int, trace: Trace) -> Reading:
    """Run the case's model once and read its trace."""
    model, feeds, copies = build(case, dying)
    runner = session(model, threads)
    names = [f"r{k}" for k in case.slots]
    wanted = [o.name for o in runner.get_outputs()]
    trace.start()
    try:
        got = runner.run(wanted, feeds)
    finally:
        events = trace.stop()
    values = dict(zip(wanted, got, strict=True))
    windows = _windows(events, len(case.slots) + 2)
    sized = [i for i in copies if feeds[f"g{i}"].nbytes]
    if case.op in EAGER:
        windows[0], windows[1] = windows[1][: len(sized)], windows[1][len(sized) :]
    inputs = [event[0] for event in windows[0] if event[1] >= 0]
    owner = dict(zip(inputs, sized, strict=True)) if len(inputs) == len(sized) else None
    if owner is None:
        raise ProbeError("the input copies did not allocate one block each")
    alive, peak = _node_window(windows[1], set(inputs))
    shares: dict[int, int | None] = {}
    without = []
    for k, window in zip(case.slots, windows[2:], strict=False):
        freed = [block for block, size in window if size < 0]
        own = [block for block in freed if block in alive]
        lent = [owner[block] for block in freed if block in owner]
        shares[k] = None if own else (lent[0] if lent else None)
        if not own and np.asarray(values[f"r{k}"]).nbytes:
            without.append(k)
    return Reading(shares, without, peak - sum(alive.values()), [values[n] for n in names])
