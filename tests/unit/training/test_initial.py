"""First values: given ones, those of the file, rules that are told, and one clear error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.graphs import parse
from memplan.errors import MemplanError, UsageError
from memplan.training.checkpoint import Wanted
from memplan.training.initial import first_state, initial_state
from memplan.training.step_file import StepFile, read_step, require_update
from memplan.training.trained_weights import read_weights

STEP = """t (float[4, 2] w, float[2] b, float[4, 2] w.exp_avg, float[3, 4] x, int64 step,
           float[4] mean, float[4] running_var, float lr)
 => (float loss, float[4, 2] w_new, float[2] b_new, float[4, 2] w.exp_avg_new, int64 step_new,
     float[4] mean_new, float[4] running_var_new) {
 h0 = MatMul(x, w) h = Add(h0, b)
 axes = Constant<value = int64[1] {0}>() now = ReduceMean<keepdims = 0>(x, axes)
 half = Constant<value = float {0.5}>() old = Mul(mean, half) new = Mul(now, half)
 mean_new = Add(old, new) oldv = Mul(running_var, half) sq = Mul(now, now) newv = Mul(sq, half)
 running_var_new = Add(oldv, newv)
 t = Tanh(h) loss = ReduceSum<keepdims = 0>(t)
 xt = Transpose<perm = [1, 0]>(x) ones = Mul(t, t) gw = MatMul(xt, ones)
 gb = ReduceSum<keepdims = 0>(ones, axes)
 m0 = Mul(w.exp_avg, half) w.exp_avg_new = Add(m0, gw)
 one = Constant<value = int64 {1}>() step_new = Add(step, one)
 f = Cast<to = 1>(COUNTER) rate = Div(lr, f)
 uw = Mul(w.exp_avg_new, rate) w_new = Sub(w, uw) ub = Mul(gb, rate) b_new = Sub(b, ub) }"""


def read(counter: str = "step_new") -> StepFile:
    """A step as nobody's exporter writes it: names of the contract, and no metadata."""
    text = STEP.replace("COUNTER", counter).replace(".exp_avg", "_exp_avg")
    model = parse(text)
    for value in (*model.graph.input, *model.graph.output):
        value.name = value.name.replace("w_exp", "w.exp")
    for node in model.graph.node:
        node.input[:] = [name.replace("w_exp", "w.exp") for name in node.input]
        node.output[:] = [name.replace("w_exp", "w.exp") for name in node.output]
    return read_step(model)


def test_parameters_must_have_a_value() -> None:
    with pytest.raises(UsageError, match="2 parameters without a value: 'w', 'b'"):
        initial_state(read(), {}, None, 0)
    with pytest.raises(UsageError, match="1 parameter without a value: 'b'"):
        initial_state(read(), {"w": np.zeros((4, 2), np.float32)}, None, 0)


def test_other_state_starts_by_rule_and_it_is_told() -> None:
    values, notes = initial_state(read(), {}, "random", 0)
    assert not values["w.exp_avg"].any()
    assert (values["running_var"] == 1).all()
    assert (values["mean"] == 0).all()
    assert values["w"].std() > 0
    assert (values["b"] == 0).all()
    assert notes == (
        "'w', 'b' start at random numbers",
        "'w.exp_avg', 'step', 'mean' start at 0",
        "'running_var' start at 1",
    )


@pytest.mark.parametrize(("counter", "first"), [("step_new", 0), ("step", 1)])
def test_a_step_counter_starts_at_1_where_it_is_the_number_of_the_step(
    counter: str, first: int
) -> None:
    values, _ = initial_state(read(counter), {}, "random", 0)
    assert values["step"] == first
    assert values["step"].dtype == np.int64


def test_random_values_are_those_of_the_seed_and_the_name() -> None:
    first, second, third = (initial_state(read(), {}, "random", seed)[0] for seed in (0, 0, 1))
    assert (first["w"] == second["w"]).all()
    assert (first["w"] != third["w"]).any()
    assert np.abs(first["w"]).max() <= 1  # sqrt(6 / (4 + 2))


@pytest.mark.parametrize("init", ["zeros", "w*=1", {"w*": 1.0}])
def test_no_rule_but_random_fills_anything(init: Any) -> None:
    with pytest.raises(UsageError, match=r"init is .*: expected 'random'") as caught:
        initial_state(read(), {}, init, 0)
    assert "weights={NAME: array}, or --weights-file FILE" in caught.value.hint


def test_given_values_come_first_and_must_fit() -> None:
    given = {"w": np.ones((4, 2), np.float32), "b": np.ones(2, np.float32), "step": 5}
    values, _ = initial_state(read(), {**given, "step": np.int64(5)}, "random", 0)
    assert values["step"] == 5
    assert (values["w"] == 1).all()
    with pytest.raises(UsageError, match=r"'w' is float32\[2, 2\], the step wants float32\[4, 2\]"):
        initial_state(read(), {"w": np.ones((2, 2), np.float32)}, "random", 0)
    with pytest.raises(UsageError, match="'w' is float64"):
        initial_state(read(), {"w": np.ones((4, 2))}, "random", 0)


def test_a_value_of_no_state_is_refused_unless_only_pytorch_reads_it() -> None:
    step = read()
    wanted = Wanted(step.fingerprint, {slot.name: slot for slot in step.state})
    with pytest.raises(
        UsageError, match=r"a value for 'ww', which is not state .*, and 1 more such"
    ) as caught:
        first_state([step], wanted, {"ww": 1, "bb": 2, "bn.num_batches_tracked": 3}, None)
    assert caught.value.hint == "near matches: w"
    assert first_state([step], wanted, {"bn.num_batches_tracked": 3}, None)


def test_a_step_that_renews_nothing_is_refused() -> None:
    forward = parse(
        "t (float[4] w, float[4] x) => (float loss)"
        "{ q = Mul(w, x) loss = ReduceSum<keepdims = 0>(q) }"
    )
    with pytest.raises(MemplanError, match="no output is the next value of an input"):
        require_update(read_step(forward))
    gradients = parse(
        "t (float[4] w, float[4] x) => (float loss, float[4] w_grad)"
        "{ q = Mul(w, x) loss = ReduceSum<keepdims = 0>(q) w_grad = Identity(x) }"
    )
    with pytest.raises(MemplanError, match="makes gradients but no new values"):
        require_update(read_step(gradients))


def test_weights_come_from_npz_safetensors_onnx_and_mappings(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "a.npz", w=value)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    packed = len(header).to_bytes(8, "little") + header + value.tobytes()
    (tmp_path / "a.safetensors").write_bytes(packed)
    model = parse("t (float[2, 3] w, float[2, 3] x) => (float[2, 3] y) { y = Add(w, x) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(value, "w"))
    onnx.save(model, tmp_path / "a.onnx")
    for source in (tmp_path / "a.npz", str(tmp_path / "a.safetensors"), tmp_path / "a.onnx"):
        assert (read_weights(source)["w"] == value).all()
    assert (read_weights({"w": value})["w"] == value).all()


@pytest.mark.parametrize("length", [4, 60, 80])
def test_cut_files_of_weights_are_told(length: int, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    header = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    packed = len(header).to_bytes(8, "little") + header + bytes(24)
    path = tmp_path / "a.safetensors"
    path.write_bytes(packed[:length])
    with pytest.raises(UsageError, match="cannot be read as weights"):
        read_weights(path)
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(UsageError, match="cannot be read as weights"):
        read_weights(tmp_path / "a.npz")
    with pytest.raises(UsageError, match="does not exist"):
        read_weights(tmp_path / "none.npz")
