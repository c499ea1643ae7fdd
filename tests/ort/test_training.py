"""A run through the trainer is the plain loop to the bit: original and rewritten, in place and with
two buffers, and behind a checkpoint; and takes what is predicted at every step."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.models import SAMPLES
from helpers.networks import FAMILIES, batches, plain_loop, training_step
from memplan import RewriteOptions, Trainer, analyze, rewrite
from memplan.errors import MemplanError
from memplan.runtime.messages import RunRequest
from memplan.runtime.profiled import profiled_runs
from memplan.runtime.session_options import session_options
from memplan.units import parse_budget

STEPS = 20
State = dict[str, np.ndarray]


def same(first: State, second: State) -> bool:
    """Whether two states have the same bits."""
    return first.keys() == second.keys() and all(
        first[name].tobytes() == second[name].tobytes() for name in first
    )


def trained(trainer: Trainer, data: list[State]) -> tuple[list[float], State]:
    """Losses and the last state."""
    return [trainer.step(batch) for batch in data], trainer.state_dict()


def reference(model: onnx.ModelProto, data: list[State], **options: Any) -> tuple[Any, State]:
    """The same from a plain loop, from the same first state."""
    first = Trainer(model, threads=1, **options)
    contract = first.file.contract
    assert contract.loss is not None
    return plain_loop(model, first.state_dict(), data, contract.loss, contract.new_values)


def rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as low as it gets, with its state in place."""
    options = RewriteOptions(
        parse_budget("min"), strategy="greedy", state=("in-place",), optimize="none"
    )
    return rewrite(model, options).model


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_the_plain_loop_to_the_bit(family: str) -> None:
    model = training_step(family)
    data = batches(model, STEPS)
    losses, state = reference(model, data)
    assert losses[-1] != losses[0]
    for variant in (model, rewritten(model)):
        trainer = Trainer(variant, threads=1, measure=True)
        found, last = trained(trainer, data)
        assert found == losses
        assert same(last, {name: state[name] for name in last})
        assert sum(binding.in_place for binding in trainer.bindings) > 4
        predicted = trainer.predicted()
        assert trainer.measured_peaks() == [predicted.dynamic_bytes] * STEPS


@pytest.mark.parametrize("family", FAMILIES)
def test_two_buffers_give_the_same_bits(family: str) -> None:
    model = training_step(family)
    data = batches(model, 5)
    losses, state = reference(model, data)
    trainer = Trainer(model, threads=1, in_place=False, measure=True)
    found, last = trained(trainer, data)
    assert not trainer.placing.in_place
    assert found == losses
    assert same(last, {name: state[name] for name in last})
    predicted = trainer.predicted()
    assert trainer.measured_peaks() == [predicted.dynamic_bytes] * 5


@pytest.mark.nightly
def test_the_sample_with_an_optimizer_is_the_plain_loop_to_the_bit() -> None:
    model = onnx.load(SAMPLES / "mlp_adamw.onnx")
    data = [
        {
            "features": np.random.default_rng(k).standard_normal((8192, 256), np.float32),
            "labels": np.random.default_rng(k).integers(0, 10, 8192),
        }
        for k in range(2)
    ]
    losses, state = reference(model, data, init="random")
    found, last = trained(Trainer(model, threads=1, init="random"), data)
    assert found == losses
    assert same(last, {name: state[name] for name in last})


def test_what_state_in_place_saves_is_what_analyze_says_and_the_profiler_measures() -> None:
    model = training_step("gpt")
    (batch,) = batches(model, 1)
    trainer = Trainer(model, threads=1, measure=True)
    feeds = {**trainer.state_dict(), **batch}
    trainer.step(batch)
    fed = profiled_runs(
        model.SerializeToString(), RunRequest(threads=1), feeds, session_options("tuned")
    )
    apart, bound = analyze(model, state="apart"), analyze(model)
    assert fed.dynamic_bytes == apart.timeline.dynamic_peak_bytes
    assert trainer.measured_peaks() == [bound.timeline.dynamic_peak_bytes]
    assert bound.timeline.dynamic_peak_bytes < apart.timeline.dynamic_peak_bytes


def test_a_run_over_a_data_set_goes_on_where_it_was(tmp_path: Path) -> None:
    """In the order that was drawn."""
    model = training_step("cnn")
    arrays = {
        name: np.concatenate([batch[name] for batch in batches(model, 6)])
        for name in ("x", "labels")
    }
    whole = Trainer(model, threads=1, lr=0.01)
    losses = [report.loss for report in whole.train(arrays, 14, seed=3)]
    first = Trainer(model, threads=1, lr=0.01)
    begun = [report.loss for report in first.train(arrays, 9, seed=3)]
    first.save(tmp_path / "run.npz")
    second = Trainer(model, threads=1, resume=tmp_path / "run.npz")
    assert (second.steps, second.lr) == (9, 0.01)
    ended = [report.loss for report in second.train(arrays, 5, seed=3)]
    assert begun + ended == losses
    assert same(second.state_dict(), whole.state_dict())


def test_a_checkpoint_of_the_original_goes_on_in_the_rewritten_file(tmp_path: Path) -> None:
    model = training_step("mlp")
    data = batches(model, 6)
    losses, state = reference(model, data)
    first = Trainer(model, threads=1)
    trained(first, data[:3])
    first.save(tmp_path / "run.npz")
    second = Trainer(rewritten(model), threads=1, resume=tmp_path / "run.npz")
    found, last = trained(second, data[3:])
    assert found == losses[3:]
    assert same(last, {name: state[name] for name in last})


def test_without_a_guard_the_error_says_that_the_update_is_in() -> None:
    model = training_step("mlp")
    (bad,) = batches(model, 1)
    bad["x"][0, 0] = np.nan
    trainer = Trainer(model, threads=1, guard=False)
    assert all(binding.in_place for binding in trainer.bindings)
    with pytest.raises(MemplanError, match="its update is in the state"):
        trainer.step(bad)
    assert not np.isfinite(trainer.state_dict()["a.weight"]).all()
