"""What a notebook shows of an answer: small, without script, and without a name from a file."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import onnx
import pytest

import memplan
from helpers.graphs import parse
from helpers.models import SAMPLES
from memplan.report.html.notebook import picture
from memplan.units import format_bytes

HOSTILE = "</svg><script>alert(1)</script>"
SMALL = 16_000
Answer = memplan.Analysis | memplan.Rewrite | memplan.Diff


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    """One of each kind, of a step in which every name tries to get out of the picture."""
    model = onnx.load(SAMPLES / "mlp_adamw.onnx", load_external_data=False)
    for node in model.graph.node:
        node.name += HOSTILE
        node.metadata_props.add(key="memplan.module", value=HOSTILE)
    options = memplan.RewriteOptions("70%", strategy="greedy", passes="none", optimize="none")
    result = memplan.rewrite(model, options)
    return [memplan.analyze(model), result, memplan.diff(model, result.model)]


def test_a_small_picture_below_the_rows(
    answers: list[Answer],
) -> None:
    for answer in answers:
        table, _, drawn = answer._repr_html_().partition("</table>")
        assert table.startswith("<table>")
        assert 1000 < len(drawn) < SMALL
        root = ElementTree.fromstring(drawn)
        assert {element.tag for element in root.iter()} == {"svg", "path", "rect", "text"}
        assert not re.search(r"script|href|url\(|https?:|\bon\w+=", drawn)
        assert "alert" not in drawn
        assert HOSTILE not in table
        style = root.attrib["style"]
        for name in set(re.findall(r"var\(--(\w+)\)", drawn)):
            assert f"--{name}: #" in style, name


def test_both_timelines_stand_on_one_scale(
    answers: list[Answer],
) -> None:
    _, result, found = answers
    assert isinstance(result, memplan.Rewrite)
    before, after = result.original.timeline.peak_bytes, result.timeline.peak_bytes
    change = f"{100 * (after - before) / before:+.1f}%"
    for answer, names in ((result, ("before", "after")), (found, ("old", "new"))):
        drawn = answer._repr_html_().partition("</table>")[2]
        titles = [
            text.text for text in ElementTree.fromstring(drawn) if "font-weight" in text.attrib
        ]
        assert titles == [
            f"{names[0]}: peak {format_bytes(before)}",
            f"{names[1]}: peak {format_bytes(after)} ({change})",
        ]
        tops = [
            min(int(y) for y in re.findall(r"V(\d+)", "".join(p.attrib["d"] for p in panel)))
            for panel in ElementTree.fromstring(drawn)
            if panel.tag == "svg"
        ]
        assert (1000 - tops[1]) / (1000 - tops[0]) == pytest.approx(after / before, abs=0.01)


def test_a_rewrite_is_drawn_as_the_file_that_it_writes(
    answers: list[Answer],
) -> None:
    _, result, found = answers
    (_, drawn), (_, read) = result.pictured()[1], found.pictured()[1]
    for step in range(0, len(read.timeline.order), 7):
        assert drawn.by_class(step) == read.by_class(step)


def test_a_graph_without_nodes_has_no_picture() -> None:
    empty = memplan.analyze(parse("g (float[4] x) => (float[4] x) { }"))
    assert picture(empty.pictured()) == ""
    assert "<svg" not in empty._repr_html_()


def test_a_long_step_has_a_small_picture_with_its_highest_byte() -> None:
    body = " ".join(f"h{k + 1} = Tanh(h{k})" for k in range(3000))
    model = parse(f"g (float[64] h0) => (float[64] h3000) {{ {body} }}")
    drawn = picture(memplan.analyze(model).pictured())
    assert len(drawn) < SMALL
