"""Pairs of loops, text in and text out: ``NAME.onnxtxt``, ``CASE.expected.onnxtxt``.

``MEMPLAN_UPDATE_GOLDEN=1 pytest tests/golden`` writes the expected files anew; read the diff.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.parser
import pytest

from helpers.golden import UPDATE, as_text
from helpers.loops import feeds_for, pairs_of, peak, ran, reopened, steps_of
from memplan.passes.loops.loop_rewrite import store_less
from memplan.passes.loops.loop_step import named
from memplan.simulate.opened import OpenModel

FOLDER = Path(__file__).parent
KIB = 1024


@dataclass(frozen=True)
class Golden:
    """A model's file, what runs again, and bytes per step: stored before and after."""

    source: str
    wish: str
    before: int
    after: int


# A tensor of a step is 8 × 16 × 4 = 512 B. The Scan stacks h, e and t; the Loop s and t.
CASES = {
    "scan_t": Golden("scan", "t", 1536, 1024),  # from e, which is stored
    "scan_all": Golden("scan", "all", 1536, 512),  # h alone is left; x is an input of the graph
    "loop_t": Golden("loop", "t_all", 1024, 512),  # by the name of what the Loop stacks
    # s needs the state before the step, which is stacked then: as much as s
    "loop_all": Golden("loop", "all", 1024, 512),
}


def rewritten(name: str) -> tuple[OpenModel, OpenModel]:
    """The golden model, before and after."""
    golden = CASES[name]
    model = reopened(onnx.parser.parse_model((FOLDER / f"{golden.source}.onnxtxt").read_text()))
    steps = steps_of(model)
    kept = named(steps, golden.wish)
    made = store_less(model.prepared.proto, list(zip(steps, kept, strict=True)), False)
    return model, reopened(made)


@pytest.mark.parametrize("name", CASES)
def test_the_expected_text(name: str) -> None:
    after = rewritten(name)[1].prepared.proto
    onnx.checker.check_model(after, full_check=True)
    path = FOLDER / f"{name}.expected.onnxtxt"
    text = as_text(after)
    if os.environ.get(UPDATE) == "1":
        path.write_text(text)
    assert text == path.read_text(), f"set {UPDATE}=1 to accept it"


@pytest.mark.parametrize("name", CASES)
def test_stored_bytes(name: str) -> None:
    golden, models = CASES[name], rewritten(name)
    (before,), (after,) = map(pairs_of, models)
    assert (before.step_bytes, after.step_bytes) == (golden.before, golden.after)
    assert (before.steps, after.steps) == (6, 6)


@pytest.mark.parametrize("name", CASES)
def test_bits_and_measured_peaks(name: str) -> None:
    before, after = rewritten(name)
    feeds = feeds_for(before)
    expected, measured = ran(before.prepared.proto, feeds)
    assert measured == peak(before)
    outputs, less = ran(after.prepared.proto, feeds)
    assert less == peak(after)
    assert less < measured
    assert [x.tobytes() for x in outputs] == [x.tobytes() for x in expected]


def test_every_file_is_used() -> None:
    wanted = {f"{case.source}.onnxtxt" for case in CASES.values()}
    wanted |= {f"{name}.expected.onnxtxt" for name in CASES}
    assert {path.name for path in FOLDER.glob("*.onnxtxt")} == wanted
