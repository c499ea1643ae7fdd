"""Passes, text in and text out: ``NAME.onnxtxt`` and ``NAME.expected.onnxtxt``.

``MEMPLAN_UPDATE_GOLDEN=1 pytest tests/golden`` writes the expected files anew; read the diff.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from helpers.golden import UPDATE, as_text
from helpers.graphs import TUNED, open_text
from memplan.passes.elide import Elide
from memplan.passes.graph_pass import Pass
from memplan.passes.manager import PassStep, run_passes
from memplan.passes.order import Order
from memplan.passes.prune import Prune
from memplan.passes.release import Release
from memplan.runtime.inputs import synthesize
from memplan.simulate.opened import OpenModel
from memplan.simulate.timeline import simulate

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Golden:
    """A model's file, the pass, the dynamic peak before and after, and what goes."""

    source: str
    applied: Pass
    before: int
    after: int
    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()


CASES = {
    "elide": Golden("elide", Elide(), 4096, 3076),
    "prune": Golden("prune", Prune(), 5124, 4612),
    "prune_wrt": Golden("prune", Prune(("w",)), 5124, 2564, ("v_new", "v_m_new"), ("v_m", "rate")),
    "release": Golden("release", Release(), 744, 472),
    "order": Golden("order", Order(rounds=3), 4352, 2560),
}


def passed(name: str) -> tuple[OpenModel, PassStep]:
    """The golden model, and the step that its pass makes."""
    golden = CASES[name]
    text = (FOLDER / f"{golden.source}.onnxtxt").read_text()
    model = open_text(onnx.parser.parse_model(text))
    return model, run_passes([golden.applied], model, simulate(model.graph, TUNED))[0]


@pytest.mark.parametrize("name", CASES)
def test_a_pass_gives_the_expected_text(name: str) -> None:
    step = passed(name)[1]
    path = FOLDER / f"{name}.expected.onnxtxt"
    text = as_text(step.model.prepared.proto)
    if os.environ.get(UPDATE) == "1":
        path.write_text(text)
    assert text == path.read_text(), f"set {UPDATE}=1 to accept it"


@pytest.mark.parametrize("name", CASES)
def test_peaks_and_what_goes(name: str) -> None:
    golden, (model, step) = CASES[name], passed(name)
    assert simulate(model.graph, TUNED).dynamic_peak_bytes == golden.before
    assert step.timeline.dynamic_peak_bytes == golden.after
    assert step.removed_outputs == golden.outputs
    assert step.removed_inputs == golden.inputs


@pytest.mark.parametrize("name", CASES)
def test_the_expected_text_computes_the_same(name: str) -> None:
    from onnx.reference import ReferenceEvaluator

    model, step = passed(name)
    result = step.model.prepared.proto
    onnx.checker.check_model(result)
    feeds = synthesize(model.graph)
    names = [value.name for value in result.graph.output]
    before = ReferenceEvaluator(model.prepared.proto).run(names, feeds)
    fewer = {value.name: feeds[value.name] for value in result.graph.input}
    after = ReferenceEvaluator(result).run(None, fewer)
    for x, y in zip(before, after, strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_every_file_is_used() -> None:
    wanted = {f"{case.source}.onnxtxt" for case in CASES.values()}
    wanted |= {f"{name}.expected.onnxtxt" for name in CASES}
    assert {path.name for path in FOLDER.glob("*.onnxtxt")} == wanted
