"""The torch snapshot says what the timeline says."""

import pickle
import pickletools
from collections import Counter
from typing import Any

from memplan.api.analysis import Analysis
from memplan.report.torch_snapshot import torch_snapshot
from memplan.simulate.pattern import pattern_block

# What torch/utils/viz/MemoryViz.js can unpickle.
VIEWER_OPCODES = """APPENDS BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST FRAME LONG1
    LONG_BINGET MARK MEMOIZE PROTO SETITEMS SHORT_BINUNICODE STOP TUPLE2 APPEND NEWFALSE BINPUT
    BINUNICODE EMPTY_TUPLE NEWTRUE NONE BINFLOAT TUPLE TUPLE1 TUPLE3 LONG_BINPUT LIST DICT
    SETITEM"""
SEGMENT = """device address total_size stream segment_type allocated_size active_size
    requested_size frames blocks"""


class TestTorchSnapshot:
    def test_the_viewer_can_read_it(self, mlp: Analysis) -> None:
        raw = torch_snapshot(mlp)
        used = {opcode.name for opcode, _, _ in pickletools.genops(raw)}
        assert used <= set(VIEWER_OPCODES.split())
        assert raw[:2] == b"\x80\x04"
        assert b"category" not in raw

    def test_the_layout_is_the_contract(self, mlp: Analysis) -> None:
        content = pickle.loads(torch_snapshot(mlp))
        assert set(content) == {"segments", "device_traces"}
        for segment in content["segments"]:
            assert set(segment) == set(SEGMENT.split())
            for block in segment["blocks"]:
                assert set(block) == {"size", "requested_size", "state", "frames"}
            assert segment["total_size"] == sum(b["size"] for b in segment["blocks"])
        for event in content["device_traces"][0]:
            assert set(event) == {"action", "addr", "size", "stream", "time_us", "frames"}
            assert event["action"] in ("alloc", "free_completed")

    def test_events_balance_and_replay_to_the_timeline(self, analysis: Analysis) -> None:
        content = pickle.loads(torch_snapshot(analysis))
        live: dict[int, int] = {}
        now, at_step = 0, Counter[int]()
        for event in content["device_traces"][0]:
            if event["action"] == "alloc":
                assert event["addr"] not in live
                live[event["addr"]] = event["size"]
                now += event["size"]
            else:
                assert live.pop(event["addr"]) == event["size"]
                now -= event["size"]
            if event["action"] == "alloc":
                at_step[event["time_us"]] = now
        kept = {a: s for a, s in active_blocks(content) if a in live}
        assert kept == live
        timeline = analysis.timeline
        assert max(at_step.values()) == timeline.dynamic_peak_bytes
        for step, nbytes in at_step.items():
            assert nbytes == int(timeline.dynamic[step])

    def test_outputs_and_residents_are_there_at_the_end(self, mlp: Analysis) -> None:
        graph = mlp.graph
        sizes = Counter(size for _, size in active_blocks(pickle.loads(torch_snapshot(mlp))))
        tensors = [t for t in graph.tensors if t.kind != "computed" or t.is_output]
        assert sizes == Counter(t.nbytes for t in tensors if t.nbytes)

    def test_addresses_are_those_of_the_memory_pattern(self, mlp: Analysis) -> None:
        content = pickle.loads(torch_snapshot(mlp))
        allocation, begin = mlp.timeline.allocation, 1 << 44
        offsets = pattern_block(allocation).offsets
        places = {begin + offsets[b.id] for b in allocation.buffers if not b.is_output}
        allocated = {e["addr"] for e in content["device_traces"][0] if e["action"] == "alloc"}
        assert places <= allocated
        sizes = {s["address"]: s["total_size"] for s in content["segments"]}
        assert sizes[begin] == pattern_block(allocation).block_bytes

    def test_frames_name_the_node_the_tensor_and_the_class(self, mlp: Analysis) -> None:
        events = pickle.loads(torch_snapshot(mlp))["device_traces"][0]
        frame = events[0]["frames"][0]
        node = mlp.graph.nodes[mlp.timeline.order[0]]
        tensor = mlp.graph.tensors[next(iter(node.writes))].name
        assert frame["name"] == f"{node.op} {node.name} -> {tensor} [stash]"
        assert (frame["filename"], frame["line"]) == ("mlp_adamw.onnx", 0)


def active_blocks(content: dict[str, Any]) -> list[tuple[int, int]]:
    """(address, requested bytes) of every block in use when the snapshot was taken."""
    found = []
    for segment in content["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found.append((address, block["requested_size"]))
            address += block["size"]
    return found
