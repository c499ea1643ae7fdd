"""``memplan.Trainer`` as a user has it: values in and out, schedules, checkpoints, export."""

from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.graphs import parse
from helpers.networks import batches, training_step
from memplan import Trainer
from memplan.errors import UsageError


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return training_step("mlp")


@pytest.fixture(scope="module")
def data(model: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    return batches(model, 6)


def test_the_loss_falls_in_five_lines(model: onnx.ModelProto, data: list[Any]) -> None:
    trainer = memplan.Trainer(model, lr=0.02)
    losses = [trainer.step(data[0]) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_batch_may_be_keywords_or_a_mapping_or_both(
    model: onnx.ModelProto, data: list[Any]
) -> None:
    first = Trainer(model, threads=1).step(data[0])
    assert Trainer(model, threads=1).step(**data[0]) == first
    x, labels = data[0]["x"], data[0]["labels"]
    assert Trainer(model, threads=1).step({"x": x}, labels=labels) == first
    assert Trainer(model, threads=1).step(x=x.tolist(), labels=labels.tolist()) == first


def test_the_caller_s_arrays_are_neither_kept_nor_changed(
    model: onnx.ModelProto, data: list[Any]
) -> None:
    weights = Trainer(model).state_dict()
    kept = {name: value.copy() for name, value in weights.items()}
    trainer = Trainer(model, weights=weights)
    batch = {name: value.copy() for name, value in data[0].items()}
    trainer.step(batch)
    assert all((weights[name] == kept[name]).all() for name in kept)
    taken = trainer.state_dict()
    trainer.step(batch)
    assert (taken["a.weight"] != trainer.state_dict()["a.weight"]).any()


def test_the_rate_is_a_number_or_a_function_of_the_step(
    model: onnx.ModelProto, data: list[Any]
) -> None:
    asked: list[int] = []

    def schedule(step: int) -> float:
        asked.append(step)
        return 0.01 / step

    first = Trainer(model, threads=1, lr=schedule)
    rates = [report.lr for report in first.train(data[:3])]
    assert asked == [1, 2, 3]
    assert rates == [float(np.float32(0.01 / k)) for k in (1, 2, 3)]
    second, third = Trainer(model, threads=1), Trainer(model, threads=1)
    for k, batch in enumerate(data[:3], 1):
        second.step(batch, lr=0.01 / k)
        third.lr = 0.01 / k
        third.step(batch)
    for name, value in first.state_dict().items():
        assert value.tobytes() == second.state_dict()[name].tobytes()
        assert value.tobytes() == third.state_dict()[name].tobytes()
    assert second.lr == float(np.float32(1e-3))  # for one step only


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "fast", [1, 2]])
def test_a_rate_that_is_no_number_is_refused(model: onnx.ModelProto, value: Any) -> None:
    with pytest.raises(UsageError, match="'lr' takes a"):
        Trainer(model, lr=value)


def test_a_rate_without_a_default_must_be_given() -> None:
    text = """t (float[4] w, float[4] x, float rate) => (float loss, float[4] w_new) {
        q = Mul(w, x) loss = ReduceSum<keepdims = 0>(q) u = Mul(x, rate) w_new = Sub(w, u) }"""
    with pytest.raises(UsageError, match="the step takes 'rate', and has no value for it"):
        Trainer(parse(text), init="random")
    assert Trainer(parse(text), init="random", lr=0.5).lr == 0.5
    trainer = Trainer(parse(text), init="random", hyperparameters={"rate": 0.5})
    assert trainer.step(x=[1, 2, 3, 4], lr=0.25) == 0
    with pytest.raises(UsageError, match="no hyperparameter 'rato'"):
        Trainer(parse(text), init="random", lr=1, hyperparameters={"rato": 0.5})


def test_a_batch_that_does_not_fit_changes_nothing(model: onnx.ModelProto, data: list[Any]) -> None:
    trainer = Trainer(model, threads=1)
    for bad in ({}, {**data[0], "y": 1}, {**data[0], "x": data[0]["x"][:3]}):
        with pytest.raises(UsageError):
            trainer.step(bad)
    assert trainer.step(data[0]) == Trainer(model, threads=1).step(data[0])
    assert trainer.steps == 1


def test_outputs_that_are_asked_for_come_with_every_step(
    model: onnx.ModelProto, data: list[Any]
) -> None:
    trainer = Trainer(model, outputs=["logits"], threads=1)
    seen = []
    for batch in data[:3]:
        trainer.step(batch)
        seen.append(trainer.outputs["logits"])
    assert seen[0].shape == (32, 5)
    assert (seen[0] != seen[1]).any()
    with pytest.raises(UsageError, match="'nothing' is not an output"):
        Trainer(model, outputs=["nothing"])
    with pytest.raises(UsageError, match=r"'a\.weight_new' is state"):
        Trainer(model, outputs=["a.weight_new"])


def test_what_was_fetched_is_not_in_memory_in_the_next_step() -> None:
    # The output is made last, when the large tensors are gone.
    text = """t (float[1024] w, float[1024] x) =>
      (float loss, float[1024] w_new, float[1024] out) {
      a = Mul(w, x) b = Neg(a) loss = ReduceSum<keepdims = 0>(b)
      w_new = Sub(w, x) out = Tanh(x) }"""
    trainer = Trainer(parse(text), init="random", outputs=["out"], measure=True, threads=1)
    for _ in range(3):
        trainer.step(x=np.ones(1024, np.float32))
    predicted = trainer.predicted()
    assert trainer.measured_peaks() == [predicted.dynamic_bytes] * 3


def test_state_can_be_taken_over(model: onnx.ModelProto, data: list[Any]) -> None:
    first = Trainer(model, threads=1)
    first.step(data[0])
    second = Trainer(model, threads=1)
    second.load_state_dict(first.state_dict())
    assert first.step(data[1]) == second.step(data[1])
    with pytest.raises(UsageError, match="'nothing' is not state"):
        second.load_state_dict({"nothing": 1})
    with pytest.raises(UsageError, match=r"the value of 'a\.bias'"):
        second.load_state_dict({"a.bias": np.zeros(3, np.float32)})


def test_a_counter_that_the_step_does_not_renew_is_counted() -> None:
    text = """t (float[4] w, float[4] x, int64 step) => (float loss, float[4] w_new) {
        q = Mul(w, x) loss = ReduceSum<keepdims = 0>(q)
        f = Cast<to = 1>(step) w_new = Add(w, f) }"""
    trainer = Trainer(parse(text), {"w": np.zeros(4, np.float32)})
    assert [trainer.step(x=[1, 0, 0, 0]) for _ in range(3)] == [0, 1, 3]
    assert trainer.state_dict()["step"] == 4
    trainer.load_state_dict({"step": np.int64(10)}, strict=False)
    trainer.step(x=[0, 0, 0, 0])
    assert trainer.state_dict()["w"][0] == 16


def test_a_time_that_the_model_reads_is_fed() -> None:
    text = """t (float[4] w, float[4] x, int64[1] t) => (float loss, float[4] w_new) {
        f = Cast<to = 1>(t) y = Mul(x, f) q = Mul(w, y) loss = ReduceSum<keepdims = 0>(q)
        w_new = Sub(w, y) }"""
    trainer = Trainer(parse(text), {"w": np.ones(4, np.float32)})
    assert "t" not in trainer.state_dict()
    assert trainer.step(x=[1, 0, 0, 0], t=[7]) == 7


def test_a_batch_may_decide_on_its_size(data: list[Any]) -> None:
    text = """t (float["N", 4] x, float[4, 3] w, float lr) => (float loss, float[4, 3] w_new) {
        h = MatMul(x, w) t = Tanh(h) loss = ReduceMean<keepdims = 0>(t)
        xt = Transpose<perm = [1, 0]>(x) g = MatMul(xt, t) u = Mul(g, lr) w_new = Sub(w, u) }"""
    trainer = Trainer(parse(text), init="random", lr=0.1, measure=True, threads=1)
    assert trainer.predicted() is None
    peaks = []
    for rows in (8, 2, 8):
        trainer.step(x=np.ones((rows, 4), np.float32))
        predicted = trainer.predicted()
        peaks.append(predicted.dynamic_bytes)
    assert trainer.measured_peaks() == peaks
    assert peaks[0] == peaks[2] > peaks[1]


def test_its_words_say_where_state_lies(model: onnx.ModelProto) -> None:
    words = repr(Trainer(model))
    assert "in place     19 outputs" in words
    assert "batch        x float32[32, 12], labels int64[32]" in words
    cnn = repr(Trainer(training_step("cnn")))
    assert "'an.mean_new' and 1 more: it is made before the loss is known" in cnn


def test_a_step_of_nobody_s_exporter_is_trained_too() -> None:
    text = """t (float[4] w, float[4] v, float[4] x) => (float cost, float[4] a, float[4] b) {
        p = Mul(w, x) q = Mul(p, v) cost = ReduceSum<keepdims = 0>(q)
        gw = Mul(v, x) gv = Mul(w, x) a = Sub(w, gw) b = Sub(v, gv) }"""
    trainer = Trainer(parse(text), init="random", state={"a": "w", "b": "v"})
    before = trainer.state_dict()
    x = np.asarray([1, 2, 3, 4], np.float32)
    trainer.step(x=x)
    after = trainer.state_dict()
    assert (after["w"] == before["w"] - before["v"] * x).all()
    assert (after["v"] == before["v"] - before["w"] * x).all()
