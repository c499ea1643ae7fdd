"""What a floor rests on, what could lower it, and the next one, in all reports the same."""

import re
from html import escape
from pathlib import Path

import pytest

import memplan
from helpers.graphs import TUNED, open_text, parse
from memplan.api.analysis import analyze_open
from memplan.api.floor_sentence import floor_report
from memplan.errors import InfeasibleError
from memplan.report.html.page import page as page_of
from memplan.report.tell.analysis import tell_analysis
from memplan.simulate.floor import structural_floor
from memplan.simulate.timeline import simulate
from memplan.units import format_bytes

# The widest node needs 3 x 64 KiB, the next one, without tensors of that size, 3 x 16 KiB.
WIDE = """g (float[16, 1024] x) => (float[16, 1024] z) <int64[2] two = {1, 4}, int64[1] ends = {16}>
{ [a] a = Tanh(x) [w] w = Tile(a, two) [v] v = Tanh(w) [s] s = Add(w, v) [r] r = Sum(s, v, w)
  [y] y, y2, y3, y4 = Split<axis: int = 1, num_outputs: int = 4>(r) [b] b = Add(y, y2)
  [c] c = Add(b, y3) [z] z = Add(c, y4) }"""
OUTPUTS = """g (float[16, 1024] x) => (float[16, 1024] p, float[16, 1024] q, float[16, 1024] r)
{ [p] p = Neg(x) [q] q = Tanh(x) [r] r = Sin(x) }"""
KIB = 1024


def test_a_node_sets_it_and_chunks_could_lower_it() -> None:
    found = analyze_open(open_text(WIDE), TUNED).floor
    assert "which needs " in found.reason
    assert "--chunk auto" in found.lowered_by
    resident = 16 * 1024 * 4 + 8 * 3
    assert (found.nbytes - resident) // KIB >= 3 * 256
    assert found.next_bytes < found.nbytes
    assert (found.next_bytes - resident) // KIB <= 4 * 64
    chunked = floor_report(
        structural_floor(open_text(WIDE).graph, simulate(open_text(WIDE).graph, TUNED)),
        open_text(WIDE).graph,
        simulate(open_text(WIDE).graph, TUNED),
        chunked=True,
    )
    assert chunked.lowered_by == "more chunks (--chunk N) or smaller dimensions"


def test_outputs_set_it() -> None:
    model = open_text(OUTPUTS)
    timeline = simulate(model.graph, TUNED)
    floor = structural_floor(model.graph, timeline)
    plain = floor_report(floor, model.graph, timeline)
    assert "--wrt" in plain.lowered_by
    assert plain.next_bytes - timeline.resident_bytes == 16 * 1024 * 4
    state = floor_report(floor, model.graph, timeline, {"p": "x"})
    assert "--state in-place" in state.lowered_by


def test_the_parts_add_up_and_workspace_is_named() -> None:
    """Of the sentence: resident, the kernel's workspace, the tensors, and what is not named."""
    text = """g (float[64,64] x) => (float y) { [a] a = Neg(x) [b] b = Sin(x) [c] c = Sum(a, b, x)
      [d] d = Sum(c, a, b) [s] s = Softmax<axis = 0>(d) [e] e = Sum(s, a, b, c)
      [y] y = ReduceSum<keepdims = 0>(e) }"""
    found = analyze_open(open_text(text), TUNED).floor
    parts = re.findall(r"([0-9.]+) KiB(?: resident|\))", found.line.split("To go lower")[0])
    assert "its workspace, predicted only (16.0 KiB)" in found.line
    assert sum(map(float, parts)) * KIB == found.nbytes


def test_an_infeasible_budget_says_what_could_lower_the_floor() -> None:
    model = parse(OUTPUTS.replace("float[16, 1024] x)", "float[16, 1024] x, float[16, 1024] v)"))
    model.graph.output[0].name = model.graph.node[0].output[0] = "x_new"
    with pytest.raises(InfeasibleError) as failed:
        memplan.rewrite(model, "1KiB")
    assert "below the floor" in failed.value.message
    found = memplan.analyze(model).floor
    assert failed.value.hint == found.parts
    assert "To go lower: --state in-place" in failed.value.hint
    assert f"the next limit is {format_bytes(found.next_bytes)}" in failed.value.hint


@pytest.mark.parametrize("text", [WIDE, OUTPUTS])
def test_text_json_and_page_say_the_same(text: str) -> None:
    analysis = analyze_open(open_text(text), TUNED)
    found, json = analysis.floor, analysis.as_json()
    assert json["floor_with_workspace_bytes"] == found.nbytes
    assert json["floor_bytes"] == found.tensor_bytes
    assert json["floor_reason"] == found.reason
    assert json["floor_lowered_by"] == found.lowered_by
    assert json["next_floor_with_workspace_bytes"] == found.next_bytes
    assert json["next_floor_reason"] == found.next_reason
    told = tell_analysis(analysis)
    assert found.line in told.parts
    assert escape(found.line) in page_of(told)


def test_rewrite_says_it_of_every_step(tmp_path: Path) -> None:
    result = memplan.rewrite(parse(WIDE), "100%")
    json = result.as_json()
    assert json["floor_with_workspace_bytes"] == result.floor.nbytes
    assert json["floor_lowered_by"] == result.floor.lowered_by
    steps = json["passes"]
    assert isinstance(steps, list)
    assert all(s["floor_with_workspace_bytes"] <= s["peak_with_workspace_bytes"] for s in steps)
    assert steps[-1]["floor_with_workspace_bytes"] <= result.floor.nbytes
