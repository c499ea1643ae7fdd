"""The Chrome trace says what the timeline says."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from helpers.analyses import small_graph
from memplan.api.analysis import Analysis, analyze
from memplan.report.chrome_trace import chrome_trace, class_series
from memplan.simulate.explain import TensorClass
from memplan.simulate.timeline import live_bytes


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
        total = np.sum(list(class_series(analysis.explainer).values()), axis=0)
        assert (total == timeline.dynamic + timeline.resident_bytes).all()

    def test_is_the_explanation_at_the_peak(self, analysis: Analysis) -> None:
        peak = analysis.timeline.peak_step
        at_peak = {
            name: int(values[peak]) for name, values in class_series(analysis.explainer).items()
        }
        assert {name: size for name, size in at_peak.items() if size} == dict(analysis.by_class)

    def test_is_never_negative(self, analysis: Analysis) -> None:
        assert all((values >= 0).all() for values in class_series(analysis.explainer).values())

    def test_bytes_inside_a_body_are_activations(self, tmp_path: Path) -> None:
        path = tmp_path / "if.onnx"
        onnx.save(graph_with_a_body(), path)
        timeline = (analysis := analyze(path)).timeline
        inside = timeline.dynamic - live_bytes(timeline.allocation)
        assert inside.max() > 0
        series = class_series(analysis.explainer)
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
        for name, values in class_series(analysis.explainer).items():
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
