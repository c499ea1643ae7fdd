"""A step with an optimizer that memplan made is counted as a trainer runs it: state in place.

What was recorded when it was not (plans, locks) is compared as it was counted then.
"""

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from helpers.graphs import parse
from memplan import (
    GradOptions,
    analyze,
    diff,
    grad,
    rewrite,
    sweep,
)
from memplan.api.check.checking import run_check, run_update
from memplan.api.check.finding import Change, change_of
from memplan.api.check.lock import read_lock, write_lock
from memplan.api.check.targets import CheckRequest
from memplan.api.check.text import check_lines, update_lines
from memplan.api.rewrite.goal import RewriteOptions
from memplan.api.rewrite.rewriting import replay
from memplan.planning.plan_file import read_plan
from memplan.proto.metadata import STATE, get_metadata, set_metadata
from memplan.report.tell.diff import place
from memplan.report.tell.state import state_lines
from memplan.units import parse_budget

FORWARD = """
<ir_version: 10, opset_import: ["" : 20]>
net (float[4,64] x) => (float loss) <float[64,64] a, float[64,64] b>
{
    [l0] h0 = MatMul(x, a) [t0] t0 = Tanh(h0) [l1] h1 = MatMul(t0, b) [t1] t1 = Tanh(h1)
    [square] s = Mul(t1, t1) [loss] loss = ReduceMean<keepdims = 0>(s)
}"""


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A step with an optimizer, as ``grad`` writes it."""
    forward = parse(FORWARD)
    for name in "ab":
        value = onnx.helper.make_tensor(name, 1, (64, 64), [0.01] * 64 * 64)
        forward.graph.initializer.append(value)
    file = tmp_path / "step.onnx"
    grad(forward, GradOptions("loss", optimizer="sgd", wrt=("a", "b")), file)
    return file


def _stripped(file: Path, to: str, **said: object) -> Path:
    """The step without what memplan says of it, or with other words."""
    model = onnx.load(file)
    del model.metadata_props[:]
    if said:
        set_metadata(model, {**get_metadata(onnx.load(file)), **said})
    onnx.save(model, file.with_name(to))
    return file.with_name(to)


def _peak(file: Path, state: str = "") -> int:
    return analyze(file, state=state or ()).timeline.peak_bytes


def test_a_step_with_an_optimizer_is_counted_in_place_and_says_so(step: Path) -> None:
    found = analyze(step)
    assert found.graph.state is not None
    assert _peak(step) == _peak(step, "in-place") < _peak(step, "apart")
    (said,) = state_lines(found.graph)
    assert "2 outputs" in said
    assert "--state apart" in said


def test_other_files_are_counted_as_they_say_else_apart(step: Path) -> None:
    foreign = _stripped(step, "foreign.onnx")
    assert _peak(foreign) == _peak(step, "apart")
    assert _peak(foreign, "in-place") == _peak(step)
    assert _peak(_stripped(step, "told.onnx", state="apart")) == _peak(step, "apart")
    # Planned before state was in place by default, so for state that is not.
    assert _peak(_stripped(step, "planned.onnx", session="tuned")) == _peak(step, "apart")
    assert analyze(step, session="default").graph.state is None


def test_gradients_without_an_optimizer_stay_in_memory_of_the_run() -> None:
    model = parse(
        FORWARD.replace("<float[64,64] a, float[64,64] b>", "").replace(
            "float[4,64] x", "float[4,64] x, float[64,64] a, float[64,64] b"
        )
    )
    assert analyze(grad(model, GradOptions("loss", wrt=("a", "b"))).model).graph.state is None


def test_a_plan_is_made_for_it_and_says_so(step: Path) -> None:
    found = rewrite(step, RewriteOptions(parse_budget("1TB"), effort=1))
    found.record.save(step.with_name("plan.json"))
    written = step.with_name("step.memplan.onnx")
    assert get_metadata(onnx.load(written))[STATE] == "in-place"
    assert read_plan(step.with_name("plan.json")).settings.state == ("in-place",)
    own = rewrite(step, RewriteOptions(parse_budget("1TB"), effort=1, state=("apart",)), force=True)
    assert found.timeline.peak_bytes < own.timeline.peak_bytes
    assert _peak(written) == own.timeline.peak_bytes


def test_a_plan_of_before_is_applied_as_it_was_made(step: Path) -> None:
    apart = RewriteOptions(parse_budget("1TB"), effort=1, state=("apart",))
    plan = rewrite(step, apart, dry_run=True).record
    before = replace(plan, settings=replace(plan.settings, state=()))
    found = replay(step, before, dry_run=True)
    assert found.timeline.peak_bytes == plan.predicted_peak_bytes


def test_what_a_lock_of_before_counted_apart_is_no_regression(step: Path) -> None:
    request = CheckRequest(step.with_name("memplan.lock"), (step,), state="apart")
    run_update(request)
    entries = read_lock(request.lock).entries.values()
    write_lock(request.lock, [replace(entry, state=None) for entry in entries])
    request = replace(request, models=(), state=None)
    (entry,) = run_check(request).entries
    assert str(entry.status) == "accounting-changed"
    updated = run_update(request)
    assert list(map(change_of, updated.findings)) == [Change.CHANGED]
    assert any("state: apart -> in-place" in line for line in update_lines(updated))
    assert ", state in place" in check_lines(run_check(request))[0]


def test_a_lock_keeps_state_apart_and_fits_it_so(step: Path) -> None:
    request = CheckRequest(step.with_name("memplan.lock"), (step,), state="apart")
    run_update(request)
    run_update(replace(request, state=None))
    assert read_lock(request.lock).entries["step.onnx"].state == "apart"
    tight = replace(request, state=None, max_peak_bytes=_peak(step))
    (fit,) = [line for line in check_lines(run_check(tight)) if "fit:" in line]
    assert fit.endswith("--state apart")
    run_update(replace(request, state=""))
    tight = replace(tight, max_peak_bytes=_peak(step) - 1)
    (fit,) = [line for line in check_lines(run_check(tight)) if "fit:" in line]
    assert "--state" not in fit


def test_a_difference_is_of_states_that_lie_alike(step: Path) -> None:
    foreign, found = _stripped(step, "foreign.onnx"), diff(step, step)
    assert place(found.new).endswith(", state in place")
    assert diff(step, foreign).delta_bytes == 0
    assert diff(step, foreign).old.timeline.peak_bytes == _peak(step, "apart")


def test_a_sweep_says_it(step: Path) -> None:
    found = sweep(step)
    assert json.dumps(found.as_json()["points"]).count('"state_in_place": true') == 1
    assert found.points[0].footprint is not None
    assert found.points[0].footprint.peak_bytes == _peak(step)
