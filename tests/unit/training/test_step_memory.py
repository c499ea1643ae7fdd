"""What a trainer holds beside its session: its state once, and nothing of the file's."""

import gc
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest

from helpers.graphs import parse
from memplan import Trainer
from memplan.training.train import TrainOptions, run

WIDTH = 512
STEP = f"""
<ir_version: 10, opset_import: ["": 20]>
step (float[2, {WIDTH}] x, float[{WIDTH}, {WIDTH}] w, float[{WIDTH}, {WIDTH}] m)
  => (float loss, float[{WIDTH}, {WIDTH}] w_new, float[{WIDTH}, {WIDTH}] m_new)
<float rate = {{0.001}}>
{{
    y = MatMul(x, w)
    loss = ReduceMean<keepdims = 0>(y)
    xt = Transpose(x)
    g = MatMul(xt, y)
    m_new = Add(m, g)
    d = Mul(m_new, rate)
    w_new = Sub(w, d)
}}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = parse(STEP)
    values = np.random.default_rng(0).random((WIDTH, WIDTH), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    path = tmp_path_factory.mktemp("step") / "step.onnx"
    onnx.save(model, path)
    return path


def test_the_state_is_there_once_and_never_twice(file: Path) -> None:
    Trainer(file, threads=1).close()  # modules that are imported late
    gc.collect()
    tracemalloc.start()
    try:
        trainer = Trainer(file, threads=1)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    state = trainer.file.state_bytes
    assert state == 2 * 4 * WIDTH * WIDTH
    # The file's own values, those read from it, zeros, and one buffer: none of it in two copies.
    assert peak < 1.8 * state
    assert state <= held < 1.3 * state


def test_no_other_library_is_imported_to_read_what_the_runtime_saves(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own reader imports PyTorch."""
    monkeypatch.setitem(sys.modules, "onnxruntime.tools", None)
    assert Trainer(file, threads=1).bindings[0].in_place


def test_a_run_says_how_far_its_process_grew(file: Path) -> None:
    found = run(file, TrainOptions(steps=3, threads=1))
    if not Path("/proc/self/status").exists():
        assert found.process is None
        return
    assert found.process.load_seconds > 0
    grown = found.as_json()["process"]
    assert grown == found.process.as_json()
    assert set(found.process.as_json()) == {
        "load_seconds",
        "load_growth_bytes",
        "step_growth_bytes",
    }


def test_threads_may_sleep_while_they_wait_and_compute_the_same(file: Path) -> None:
    x = np.ones((2, WIDTH), np.float32)
    losses = []
    for spin in (True, False):
        trainer = Trainer(file, threads=2, spin=spin)
        assert trainer.request.spin is spin
        losses.append([trainer.step(x=x) for _ in range(3)])
    assert losses[0] == losses[1]


def test_a_session_is_told_not_to_spin(file: Path) -> None:
    from memplan.runtime.messages import RunRequest
    from memplan.runtime.session_options import session_options
    from memplan.runtime.sessions import open_session

    key = "session.intra_op.allow_spinning"
    options = session_options("tuned")
    open_session(str(file), RunRequest(spin=False), options)
    assert options.get_session_config_entry(key) == "0"
