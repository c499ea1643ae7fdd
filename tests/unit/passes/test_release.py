"""What ``release`` frees."""

from __future__ import annotations

from helpers.graphs import TUNED, node, open_text
from helpers.passes import applied, nodes
from memplan.ir.graph import Phase
from memplan.passes.manager import run_passes
from memplan.passes.release import Release
from memplan.simulate.timeline import simulate

SPLIT = """g (float[2, 48] z) => (float[2, 24] w) { [halves] left, right = Split <axis: int = 1,
 num_outputs: int = 2>(z) [act] e = Exp(right) [mid] f = Sin(e) [last] w = Exp(f) }"""


def test_an_unread_result_gets_a_reader_right_behind_its_maker() -> None:
    model = open_text(SPLIT)
    before = simulate(model.graph, TUNED)
    step = run_passes([Release()], model, before)[0]
    assert nodes(step.model) == "halves left/release act mid last"
    assert step.note == "1 node with results that nothing reads"
    assert step.timeline.dynamic_peak_bytes < before.dynamic_peak_bytes
    assert step.model.phases.of[1] is step.model.phases.of[0] is Phase.FORWARD
    again = run_passes([Release()], step.model, step.timeline)[0]
    assert again.model is step.model
    assert not again.changed


def test_eight_bytes_are_not_worth_a_reader() -> None:
    text = SPLIT.replace("[2, 48]", "[1, 4]").replace("[2, 24]", "[1, 2]")
    assert node(applied(text, Release()).graph, "halves").op == "Split"
    assert "release" not in nodes(applied(text, Release()))
