"""The HTML page and its chart: complete, small, and safe whatever names hold."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from helpers.analyses import small_graph
from helpers.models import SAMPLES
from memplan.api.analysis import Analysis, analyze
from memplan.report.html.chart import MAX_POINTS, class_series, kept_steps
from memplan.report.html.page import analysis_html
from memplan.report.html.sections import module_section, narrowing_section
from memplan.report.html.short_names import shorten
from memplan.report.torch_snapshot import torch_snapshot
from memplan.simulate.allocation import is_resident
from memplan.simulate.explain import Stash, TensorClass
from memplan.simulate.narrowing import narrowings
from memplan.units import format_bytes

HOSTILE = "</script><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;"


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
        names = data_of(page)["charts"][0]["names"]
        assert len(names) == len(analysis.graph.nodes)
        assert all(name.startswith("</script>") for name in names)

    def test_the_headline_says_where_the_peak_is(self, analysis: Analysis) -> None:
        timeline = analysis.timeline
        text = "".join(Page(analysis_html(analysis)).texts)
        step, whole = timeline.peak_with_workspace_step, timeline.peak_with_workspace_bytes
        node = timeline.order[step]
        assert (
            f"peak {format_bytes(whole)} at step {step}/{len(timeline.order)} "
            f"({analysis.phases.of[node]}: {analysis.graph.nodes[node].name})"
        ) in text

    def test_nothing_is_loaded_from_anywhere(self, mlp: Analysis) -> None:
        page = analysis_html(mlp)
        assert not re.search(r"https?://|url\(|@import|<link|src=", page)
        assert "default-src 'none'" in page

    def test_the_script_data_is_the_series(self, analysis: Analysis) -> None:
        (data,) = data_of(analysis_html(analysis))["charts"]
        kept = np.array(data["steps"])
        layers = dict(data["layers"])
        for name, values in class_series(analysis.explainer).items():
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

    def test_a_graph_without_stash_says_so(self, tmp_path: Path) -> None:
        path = tmp_path / "forward.onnx"
        onnx.save(small_graph(helper.make_node("Relu", ["x"], ["y"], name="r")), path)
        assert "Nothing made in the forward pass is read" in analysis_html(analyze(path))

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
        assert len(analysis_html(analyze(path)).encode()) < 2_000_000


def _stash(module: str, nbytes: int) -> Stash:
    return Stash(f"t{nbytes}", nbytes, "made", ("read",), module)


class TestSections:
    def test_all_tensors_are_in_the_page_largest_first(self, analysis: Analysis) -> None:
        found = data_of(analysis_html(analysis))["tensors"]
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
        page = module_section(
            [_stash("a.b.c", 30), _stash("a.b.d", 50), _stash("a.b", 4), _stash("e.f.g", 16)]
        )
        texts = [text.strip() for text in Page(page).texts]
        assert texts[2:] == [
            *("a.b", "84 B · 3 tensors", "d", "50 B · 1 tensor", "c", "30 B · 1 tensor"),
            *("e.f.g", "16 B · 1 tensor"),
        ]
        assert Page(page).tags["details"] == 1

    def test_a_module_whose_path_has_10000_parts_is_shown(self) -> None:
        assert "x.x.x" in module_section([_stash("x." * 10_000, 1), _stash("y" + ".z" * 9_000, 1)])

    def test_a_narrower_wrt_is_in_the_page(self, mlp: Analysis) -> None:
        section = narrowing_section(mlp)
        assert section in analysis_html(mlp)
        texts = Page(section).texts
        found = [n for n in narrowings(mlp.timeline, mlp.phases) if n.freed_with_earlier_bytes]
        assert found
        for item in found:
            place = texts.index(item.module)
            row = [format_bytes(n) for n in (item.freed_bytes, item.freed_with_earlier_bytes)]
            assert texts[place + 1 : place + 3] == row

    def test_the_stash_at_the_peak_stands_beside_that_of_the_step(self, mlp: Analysis) -> None:
        text = "".join(Page(analysis_html(mlp)).texts)
        whole = format_bytes(sum(stash.nbytes for stash in mlp.stashes))
        at_peak = format_bytes(mlp.by_class[TensorClass.STASH])
        assert re.search(rf"stash{whole}\d+ tensors for the backward pass, {at_peak} at the", text)


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
