"""Chrome trace, torch snapshot and HTML: what they say is what the timeline says."""

from __future__ import annotations

import json
import pickle
import pickletools
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from helpers.models import DIMS, SAMPLES, sample_models
from memplan.api.analyze import Analysis, analyze
from memplan.report.chrome_trace import chrome_trace, class_series
from memplan.report.html.chart import MAX_POINTS, kept_steps
from memplan.report.html.page import analysis_html
from memplan.report.torch_snapshot import torch_snapshot
from memplan.simulate.arena import simulate_arena
from memplan.simulate.explain import TensorClass
from memplan.simulate.timeline import live_bytes
from memplan.units import format_bytes

HOSTILE = "</script><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;"
# What torch/utils/viz/MemoryViz.js can unpickle.
VIEWER_OPCODES = {
    "APPENDS",
    "BINGET",
    "BININT",
    "BININT1",
    "BININT2",
    "EMPTY_DICT",
    "EMPTY_LIST",
    "FRAME",
    "LONG1",
    "LONG_BINGET",
    "MARK",
    "MEMOIZE",
    "PROTO",
    "SETITEMS",
    "SHORT_BINUNICODE",
    "STOP",
    "TUPLE2",
    "APPEND",
    "NEWFALSE",
    "BINPUT",
    "BINUNICODE",
    "EMPTY_TUPLE",
    "NEWTRUE",
    "NONE",
    "BINFLOAT",
    "TUPLE",
    "TUPLE1",
    "TUPLE3",
    "LONG_BINPUT",
    "LIST",
    "DICT",
    "SETITEM",
}


@pytest.fixture(scope="module", params=["tuned", "default"])
def session(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module", params=sample_models(), ids=lambda path: path.stem)
def analysis(request: pytest.FixtureRequest, session: str) -> Analysis:
    path: Path = request.param
    return analyze(path, DIMS.get(path.stem), session=session)


@pytest.fixture(scope="module")
def mlp() -> Analysis:
    return analyze(SAMPLES / "mlp_adamw.onnx")


def hostile_model(folder: Path) -> Path:
    """A sample model in which every name tries to break out of the page."""
    model = onnx.load(SAMPLES / "gpt_dynamic.onnx")
    for k, node in enumerate(model.graph.node):
        node.name = f"{HOSTILE}{k}"
        del node.metadata_props[:]
        node.metadata_props.add(key="memplan.module", value=f'"><svg onload=alert(2)>{k % 3}')
        node.output[:] = [f"<b>{name}" if name else "" for name in node.output]
        made = {name.removeprefix("<b>"): name for n in model.graph.node for name in n.output}
        node.input[:] = [made.get(name, name) for name in node.input]
    for value in (*model.graph.output, *model.graph.value_info):
        value.name = made.get(value.name, value.name)
    path = folder / "a<script>b&.onnx"
    onnx.save(model, path)
    return path


def small_graph(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    output = nodes[-1].output[0] if nodes else "x"
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, [4])]
    graph = helper.make_graph(list(nodes), "small", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def graph_with_a_body() -> onnx.ModelProto:
    """An If whose branch makes tensors larger than its output."""
    result = [helper.make_tensor_value_info("r", TensorProto.FLOAT, [4])]
    large = [
        helper.make_node("Concat", ["x"] * 64, ["wide"], axis=0),
        helper.make_node("Exp", ["wide"], ["grown"]),
        helper.make_node("ReduceSum", ["grown"], ["sum"], keepdims=1),
        helper.make_node("Add", ["x", "sum"], ["r"]),
    ]
    small = [helper.make_node("Neg", ["x"], ["r"])]
    node = helper.make_node(
        "If",
        ["c"],
        ["y"],
        name="choice",
        then_branch=helper.make_graph(large, "then", [], result),
        else_branch=helper.make_graph(small, "else", [], result),
    )
    model = small_graph(node)
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    return model


class TestClassSeries:
    def test_sums_to_the_timeline_at_every_step(self, analysis: Analysis) -> None:
        timeline = analysis.timeline
        total = np.sum(list(class_series(analysis).values()), axis=0)
        assert (total == timeline.dynamic + timeline.resident_bytes).all()

    def test_is_the_explanation_at_the_peak(self, analysis: Analysis) -> None:
        peak = analysis.timeline.peak_step
        at_peak = {name: int(values[peak]) for name, values in class_series(analysis).items()}
        assert {name: size for name, size in at_peak.items() if size} == dict(analysis.by_class)

    def test_is_never_negative(self, analysis: Analysis) -> None:
        assert all((values >= 0).all() for values in class_series(analysis).values())

    def test_bytes_inside_a_body_are_activations(self, tmp_path: Path) -> None:
        path = tmp_path / "if.onnx"
        onnx.save(graph_with_a_body(), path)
        timeline = (analysis := analyze(path)).timeline
        inside = timeline.dynamic - live_bytes(timeline.allocation)
        assert inside.max() > 0
        series = class_series(analysis)
        assert (series[TensorClass.ACTIVATION] >= inside).all()
        total = np.sum(list(series.values()), axis=0)
        assert (total == timeline.dynamic + timeline.resident_bytes).all()


class TestChromeTrace:
    def test_has_a_slice_per_node_in_order(self, analysis: Analysis) -> None:
        events = json.loads(chrome_trace(analysis))["traceEvents"]
        slices = [e for e in events if e["ph"] == "X"]
        graph = analysis.graph
        assert [e["ts"] for e in slices] == list(range(len(graph.nodes)))
        assert [e["name"] for e in slices] == [
            graph.nodes[n].name or graph.nodes[n].op for n in analysis.timeline.order
        ]
        assert {e["cat"] for e in slices} <= {"forward", "loss", "backward", "update"}

    def test_counters_replay_to_the_series_and_change_every_time(self, analysis: Analysis) -> None:
        events = json.loads(chrome_trace(analysis))["traceEvents"]
        for name, values in class_series(analysis).items():
            counter = [e for e in events if e["ph"] == "C" and e["name"] == name]
            assert counter[0]["ts"] == 0
            replayed = np.zeros_like(values)
            for event in counter:
                replayed[event["ts"] :] = event["args"]["bytes"]
            assert (replayed == values).all()
            said = [event["args"]["bytes"] for event in counter]
            assert all(a != b for a, b in pairwise(said))

    def test_the_track_says_that_time_is_steps(self, mlp: Analysis) -> None:
        events = json.loads(chrome_trace(mlp))["traceEvents"]
        names = [e["args"]["name"] for e in events if e["ph"] == "M"]
        assert names
        assert all("1 µs = 1 step" in name for name in names)


class TestTorchSnapshot:
    def test_the_viewer_can_read_it(self, mlp: Analysis) -> None:
        raw = torch_snapshot(mlp)
        used = {opcode.name for opcode, _, _ in pickletools.genops(raw)}
        assert used <= VIEWER_OPCODES
        assert raw[:2] == b"\x80\x04"
        assert b"category" not in raw

    def test_the_layout_is_the_contract(self, mlp: Analysis) -> None:
        content = pickle.loads(torch_snapshot(mlp))
        assert set(content) == {"segments", "device_traces"}
        for segment in content["segments"]:
            assert set(segment) == {
                "device",
                "address",
                "total_size",
                "stream",
                "segment_type",
                "allocated_size",
                "active_size",
                "requested_size",
                "frames",
                "blocks",
            }
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

    def test_addresses_are_the_arenas(self, mlp: Analysis) -> None:
        content = pickle.loads(torch_snapshot(mlp))
        arena = simulate_arena(mlp.timeline)
        allocated = {e["addr"] for e in content["device_traces"][0] if e["action"] == "alloc"}
        assert allocated == set(arena.addresses) - {-1}
        segments = {(s["address"], s["total_size"]) for s in content["segments"]}
        assert {(r.address, r.nbytes) for r in arena.regions} <= segments

    def test_frames_name_the_node_the_tensor_and_the_class(self, mlp: Analysis) -> None:
        events = pickle.loads(torch_snapshot(mlp))["device_traces"][0]
        frame = events[0]["frames"][0]
        node = mlp.graph.nodes[mlp.timeline.order[0]]
        tensor = mlp.graph.tensors[next(iter(node.writes))].name
        assert frame["name"] == f"{node.op} {node.name} -> {tensor} [activation]"
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


class Page(HTMLParser):
    """Elements, attributes and texts of a page as a browser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.inside = tag
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def data_of(page: str) -> dict[str, Any]:
    """The JSON block that the script reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    content: dict[str, Any] = json.loads(found.group(1))
    return content


class TestHtml:
    def test_names_cannot_break_out(self, tmp_path: Path) -> None:
        analysis = analyze(hostile_model(tmp_path), {"N": 2})
        page = analysis_html(analysis)
        parsed = Page(page)
        assert parsed.tags["script"] == 2
        assert parsed.tags["svg"] == 1
        assert not parsed.tags["img"]
        assert not [name for name, _ in parsed.attributes if name.startswith("on")]
        assert any(analysis.at_peak[0].name in text for text in parsed.texts)
        assert any(analysis.peak_node in text for text in parsed.texts)
        names = data_of(page)["names"]
        assert len(names) == len(analysis.graph.nodes)
        assert all(name.startswith("</script>") for name in names)

    def test_the_headline_says_where_the_peak_is(self, analysis: Analysis) -> None:
        timeline = analysis.timeline
        text = "".join(Page(analysis_html(analysis)).texts)
        phase = analysis.phases.of[timeline.order[timeline.peak_step]]
        assert (
            f"peak {format_bytes(timeline.peak_bytes)} at step {timeline.peak_step}/"
            f"{len(timeline.order)} ({phase}: {analysis.peak_node})"
        ) in text

    def test_nothing_is_loaded_from_anywhere(self, mlp: Analysis) -> None:
        page = analysis_html(mlp)
        assert not re.search(r"https?://|url\(|@import|<link|src=", page)
        assert "default-src 'none'" in page

    def test_the_script_data_is_the_series(self, analysis: Analysis) -> None:
        data = data_of(analysis_html(analysis))
        kept = np.array(data["steps"])
        layers = dict(data["layers"])
        for name, values in class_series(analysis).items():
            assert (np.broadcast_to(layers[name], kept.shape) == values[kept]).all()
        assert set(layers) - {str(name) for name in TensorClass} <= {"workspace"}
        nodes = [analysis.graph.nodes[analysis.timeline.order[step]] for step in data["steps"]]
        assert [data["ops"][k] for k in data["op"]] == [node.op for node in nodes]

    def test_lists_the_top_and_sums_up_the_rest(self, mlp: Analysis) -> None:
        page = analysis_html(mlp, top=3)
        assert Page(page).tags["code"] == 2 * 3
        assert f"and {len(mlp.at_peak) - 3:,} more" in page
        assert "more," not in analysis_html(mlp, top=10_000)

    def test_a_graph_without_nodes_has_a_page(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.onnx"
        onnx.save(small_graph(), path)
        analysis = analyze(path)
        page = analysis_html(analysis)
        assert "no nodes" in page
        assert pickle.loads(torch_snapshot(analysis))["device_traces"] == [[]]
        assert json.loads(chrome_trace(analysis))["traceEvents"]

    def test_a_graph_without_stash_says_so(self, tmp_path: Path) -> None:
        path = tmp_path / "forward.onnx"
        onnx.save(small_graph(helper.make_node("Relu", ["x"], ["y"], name="r")), path)
        assert "Nothing made in the forward pass is read" in analysis_html(analyze(path))

    def test_stays_small_for_20000_long_named_nodes(self, tmp_path: Path) -> None:
        count, name = 20_000, "encoder/" + "very_long_module_name/" * 8
        nodes = [
            helper.make_node(
                "Exp" if k % 2 else "Neg", [f"t{k - 1}" if k else "x"], [f"t{k}"], name=f"{name}{k}"
            )
            for k in range(count)
        ]
        path = tmp_path / "long.onnx"
        onnx.save(small_graph(*nodes), path)
        assert len(analysis_html(analyze(path)).encode()) < 2_000_000


class TestKeptSteps:
    def test_keeps_everything_below_the_cap(self) -> None:
        assert kept_steps(np.arange(MAX_POINTS)).tolist() == list(range(MAX_POINTS))
        assert kept_steps(np.array([], dtype=np.int64)).tolist() == []

    def test_keeps_every_local_maximum(self) -> None:
        total = np.zeros(50_000, dtype=np.int64)
        peaks = np.random.default_rng(0).choice(np.arange(2, 49_998, 2), 900, replace=False)
        total[peaks] = np.random.default_rng(1).integers(1, 1000, len(peaks))
        kept = kept_steps(total)
        assert len(kept) <= MAX_POINTS
        assert set(peaks.tolist()) <= set(kept.tolist())
        assert (np.diff(kept) > 0).all()

    def test_keeps_the_highest_of_every_stretch_when_all_is_peaks(self) -> None:
        total = np.random.default_rng(2).integers(0, 10**9, 100_000)
        kept = kept_steps(total)
        assert len(kept) <= MAX_POINTS
        assert int(total.argmax()) in kept
        for stretch in np.array_split(np.arange(len(total)), (MAX_POINTS - 3) // 2):
            assert stretch[total[stretch].argmax()] in kept
