"""The HTML page and its chart: complete and small."""

import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from helpers.reports import Page, data_of
from memplan.api.analysis import Analysis, analyze
from memplan.report.html.module_tree import module_tree
from memplan.report.html.page import page as page_of
from memplan.report.html.short_names import shorten
from memplan.report.html.timelines import MAX_POINTS, kept_steps, stacked_layers
from memplan.report.parts import Table
from memplan.report.tell.analysis import tell_analysis
from memplan.report.torch_snapshot import torch_snapshot
from memplan.simulate.allocation import is_resident
from memplan.units import format_bytes


def small_graph(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])]
    output = nodes[-1].output[0] if nodes else "x"
    outputs = [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, [4])]
    graph = helper.make_graph(list(nodes), "small", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def html(analysis: Analysis, top: int = 20) -> str:
    return page_of(tell_analysis(analysis, top))


class TestHtml:
    def test_the_headline_says_where_the_peak_is(self, analysis: Analysis) -> None:
        timeline = analysis.timeline
        text = "".join(Page(html(analysis)).texts)
        step, whole = timeline.peak_with_workspace_step, timeline.peak_with_workspace_bytes
        node = timeline.order[step]
        assert (
            f"peak {format_bytes(whole)} at step {step}/{len(timeline.order)} "
            f"({analysis.phases.of[node]}: {analysis.graph.nodes[node].name})"
        ) in text

    def test_the_script_data_is_the_series(self, analysis: Analysis) -> None:
        (data,) = data_of(html(analysis))["charts"]
        kept = np.array(data["steps"])
        layers = dict(data["layers"])
        expected = stacked_layers(analysis)
        assert list(layers) == list(expected)
        for name, values in expected.items():
            assert (np.broadcast_to(layers[name], kept.shape) == values[kept]).all()
        at_peak = {name: int(expected[name][analysis.timeline.peak_step]) for name in expected}
        at_peak.pop("workspace", None)
        assert {name: n for name, n in at_peak.items() if n} == analysis.by_class
        nodes = [analysis.graph.nodes[analysis.timeline.order[step]] for step in data["steps"]]
        assert [data["ops"][k] for k in data["op"]] == [node.op for node in nodes]

    def test_lists_the_top_and_sums_up_the_rest(self, mlp: Analysis) -> None:
        title = f"Live at the peak: the 3 largest of {len(mlp.at_peak)} buffers"
        assert title in html(mlp, top=3)
        assert html(mlp, top=3).count('class="life"') == 3
        assert html(mlp, top=10_000).count('class="life"') == len(mlp.at_peak)

    def test_a_graph_without_nodes_has_a_page(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.onnx"
        onnx.save(small_graph(), path)
        analysis = analyze(path)
        page = html(analysis)
        assert "no nodes" in page
        assert pickle.loads(torch_snapshot(analysis))["device_traces"] == [[]]

    def test_a_graph_without_stash_says_so(self, tmp_path: Path) -> None:
        path = tmp_path / "forward.onnx"
        onnx.save(small_graph(helper.make_node("Relu", ["x"], ["y"], name="r")), path)
        assert "Stash" not in html(analyze(path)).split("<script")[0]

    @pytest.mark.slow
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
        assert len(html(analyze(path)).encode()) < 2_000_000


class TestSections:
    def test_all_tensors_are_in_the_page_largest_first(self, analysis: Analysis) -> None:
        found = data_of(html(analysis))["tensors"]
        allocation, graph = analysis.timeline.allocation, analysis.graph
        resident = [t.nbytes for t in graph.tensors if is_resident(t) and t.nbytes]
        sizes = [*resident, *(buffer.nbytes for buffer in allocation.buffers)]
        assert found["bytes"] == sorted(sizes, reverse=True)
        assert found["all"] == len(sizes)
        steps = len(analysis.timeline.order)
        held = [t.name for t in graph.tensors if is_resident(t) and t.nbytes]
        lives = [(shorten(name), -1, steps) for name in held]
        roots = [(graph.tensors[b.root].name, b) for b in allocation.buffers]
        lives += [(shorten(name), buffer.birth, buffer.death) for name, buffer in roots]
        shown = zip(found["name"], found["birth"], found["death"], strict=True)
        assert Counter(shown) == Counter(lives)

    def test_modules_are_a_tree(self) -> None:
        page = module_tree([("a.b.c", 30, 1), ("a.b.d", 50, 1), ("a.b", 4, 1), ("e.f.g", 16, 1)])
        texts = [text.strip() for text in Page(page).texts]
        assert texts == [
            *("a.b", "84 B · 3 tensors", "d", "50 B · 1 tensor", "c", "30 B · 1 tensor"),
            *("e.f.g", "16 B · 1 tensor"),
        ]
        assert Page(page).tags["details"] == 1

    def test_a_module_whose_path_has_10000_parts_is_shown(self) -> None:
        assert "x.x.x" in module_tree([("x." * 10_000, 1, 1), ("y" + ".z" * 9_000, 1, 1)])

    def test_the_stash_of_modules_sums_to_that_of_the_step(self, analysis: Analysis) -> None:
        table = table_of(analysis, "Stash: ")
        assert sum(row[1] for row in table.rows) == sum(s.nbytes for s in analysis.stashes)
        assert sum(row[-1] for row in table.rows) == len(analysis.stashes)


def table_of(analysis: Analysis, title: str) -> Table:
    tables = (part for part in tell_analysis(analysis).parts if isinstance(part, Table))
    return next(table for table in tables if table.title.startswith(title))


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
