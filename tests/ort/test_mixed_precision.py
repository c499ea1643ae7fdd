"""Training steps in float16, bfloat16 and both with float32: gradients, bytes, plans."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers.gradients import reference, runtime
from helpers.half_steps import ALL, HALVES, STEPS, autocast, drawn, rounded
from memplan import RewriteOptions, ValidateOptions, rewrite, validate
from memplan.api.analysis import analyze_session
from memplan.api.state_modes import bindings, settled
from memplan.ir.graph import Phase
from memplan.proto.metadata import PHASE_KEY
from memplan.runtime.inputs import synthesize
from memplan.runtime.measure import measure, saved_inputs
from memplan.runtime.messages import RunRequest
from memplan.simulate.opened import open_model
from memplan.simulate.session import session_kind
from memplan.units import parse_size

# In units of the last place, relative to the largest entry: on the CPU float16 is computed in
# float32, while every single result of the bfloat16 steps (nine layers) is rounded.
TOLERANCE = {"float16": 4 * 2.0**-11, "bfloat16": 16 * 2.0**-8}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["pure", "convolutional", "attention"])
def test_gradients_in_half_are_those_of_float64(name: str, dtype: str) -> None:
    model = STEPS[name](dtype)
    feeds = drawn(model, dtype)
    wanted = reference(STEPS[name]("double"), feeds)
    if dtype == "float16":
        found = runtime(model, {k: np.asarray(v, np.float16) for k, v in feeds.items()})
    else:
        found = reference(rounded(model), {k: np.asarray(v, np.float32) for k, v in feeds.items()})
    for output, value in wanted.items():
        error = np.abs(found[output].astype(np.float64) - value).max() / np.abs(value).max()
        assert error <= TOLERANCE[dtype], (output, error)


@pytest.mark.parametrize("session", ["tuned", "default"])
@pytest.mark.parametrize("name", ALL)
def test_float16_takes_what_was_predicted_at_every_step(
    name: str, session: str, tmp_path: Path
) -> None:
    path = tmp_path / "step.onnx"
    onnx.save(ALL[name]("float16"), path)
    model = open_model(path)
    found = analyze_session(model, session_kind(session))
    assert found.as_loaded
    assert found.inexact == ()
    with saved_inputs(synthesize(model.graph)) as (folder, archive):
        request = RunRequest(session, "cpu", runs=0, threads=1)
        ran = measure(path, request, archive, folder / "outputs.npz")
    assert [node.nbytes - ran.base_bytes for node in ran.nodes] == found.timeline.dynamic.tolist()
    assert ran.dynamic_bytes == found.timeline.dynamic_peak_bytes
    later = found.later.dynamic_peak_bytes if found.later else ran.dynamic_bytes
    assert ran.second_run_dynamic_bytes == later


@pytest.mark.parametrize("session", ["tuned", "default"])
def test_casts_that_the_runtime_adds_change_no_phase(session: str, tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    onnx.save(STEPS["convolutional"]("float16"), path)
    model = open_model(path)
    told = {
        node.name: Phase(notes[PHASE_KEY])
        for node, notes in zip(model.graph.nodes, model.graph.metadata, strict=True)
        if PHASE_KEY in notes
    }
    found = analyze_session(model, session_kind(session))
    of = zip((node.name for node in found.graph.nodes), found.phases.of, strict=True)
    kept = {name: phase for name, phase in of if name in told}
    assert len(kept) > 15
    assert kept == {name: told[name] for name in kept}


@pytest.mark.parametrize(
    ("name", "budget", "state"),
    [
        pytest.param("pure", "40%", (), marks=pytest.mark.nightly),
        pytest.param("attention", "60%", (), marks=pytest.mark.nightly),
        ("autocast", "40%", ("in-place",)),
        pytest.param("renewed", "60%", ("in-place",), marks=pytest.mark.nightly),
    ],
)
def test_a_plan_in_half_keeps_its_budget_and_its_bits(
    name: str, budget: str, state: tuple[str, ...], tmp_path: Path
) -> None:
    original, new = tmp_path / "step.onnx", tmp_path / "new.onnx"
    onnx.save(ALL[name]("float16"), original)
    options = RewriteOptions(parse_size(budget), strategy="search{iterations=6}", state=state)
    result = rewrite(original, options, new)
    found = validate(original, new, ValidateOptions(runs=1, plain=False))
    assert not found.findings
    assert all(comparison.bitwise for comparison in found.comparisons)
    assert found.rewritten.predicted_peak_bytes == found.rewritten.measured_peak_bytes
    assert found.rewritten.measured_peak_bytes <= result.budget_bytes


def test_weights_that_are_selected_may_lie_in_place(tmp_path: Path) -> None:
    """Where(finite, new, old) reads the old value element by element."""
    path = tmp_path / "step.onnx"
    onnx.save(autocast("float16"), path)
    model = settled(open_model(path), session_kind("tuned"), ("in-place",))
    in_place, second = bindings(model.graph)
    assert len(in_place) == 17
    assert not second
