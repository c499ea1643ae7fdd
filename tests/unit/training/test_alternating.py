"""Steps that share a model: one array for one name, whichever step has renewed it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.two_steps import two_batches, two_steps
from memplan.errors import UsageError

BATCHES = two_batches(6)


@pytest.fixture(scope="module")
def steps() -> dict[str, onnx.ModelProto]:
    return two_steps()


def in_turns(trainer: memplan.AlternatingTrainer, batch: dict[str, Any]) -> tuple[float, float]:
    return trainer.step("d", batch), trainer.step("g", z=batch["z"])


@pytest.mark.parametrize("in_place", [True, False])
def test_it_is_two_trainers_whose_weights_are_copied(steps: Any, in_place: bool) -> None:
    trainer = memplan.AlternatingTrainer(steps, in_place=in_place, threads=1)
    apart = {name: memplan.Trainer(model, threads=1) for name, model in steps.items()}
    for batch in BATCHES:
        first = apart["d"].step(batch)
        apart["g"].load_state_dict({"dw": apart["d"].state_dict()["dw"]}, strict=False)
        second = apart["g"].step(z=batch["z"])
        apart["d"].load_state_dict({"gw": apart["g"].state_dict()["gw"]}, strict=False)
        assert in_turns(trainer, batch) == (first, second)
        assert trainer["d"].metrics == apart["d"].metrics
    state = trainer.state_dict()
    for name, one in apart.items():
        for key, value in one.state_dict().items():
            assert (state[key if key in state else f"{name}/{key}"] == value).all()


def test_a_step_may_be_taken_by_its_own_trainer_and_as_often_as_one_likes(steps: Any) -> None:
    """Second buffers change places in one session; the other follows."""
    first, second = (
        memplan.AlternatingTrainer(steps, in_place=way, threads=1) for way in (True, False)
    )
    for trainer in (first, second):
        for count, batch in enumerate(BATCHES):
            for _ in range(count % 3):
                trainer["d"].step(batch)
            trainer.step("g", z=batch["z"])
    left, right = first.state_dict(), second.state_dict()
    assert left.keys() == right.keys()
    assert all((left[name] == right[name]).all() for name in left)
    assert first.steps == {"d": 6, "g": 6}


def test_names_of_the_state(steps: Any) -> None:
    trainer = memplan.AlternatingTrainer(steps)
    assert set(trainer.state_dict()) == {
        *("dw", "gw", "d/dw.exp_avg", "d/dw.exp_avg_sq", "d/step"),
        *("g/gw.exp_avg", "g/gw.exp_avg_sq", "g/step"),
    }
    with pytest.raises(UsageError, match="'step' is not state"):
        trainer.load_state_dict({"step": 3})
    with pytest.raises(UsageError, match="the value of 'dw'"):
        trainer.load_state_dict({"g/step": 3, "dw": np.zeros((2, 2), np.float32)})
    assert trainer.state_dict()["g/step"] == 1
    trainer.load_state_dict({"dw": np.full((3, 1), 7, np.float32), "g/step": 9}, strict=False)
    assert (trainer["g"].state_dict()["dw"] == trainer["d"].state_dict()["dw"]).all()
    assert (trainer["g"].state_dict()["step"], trainer["d"].state_dict()["step"]) == (9, 1)
    assert trainer["g"].session.buffers["dw"] is trainer["d"].session.buffers["dw"]


def test_first_values_are_those_given_or_those_of_the_first_step(steps: Any) -> None:
    other = onnx.ModelProto()
    other.CopyFrom(steps["g"])
    (stored,) = (t for t in other.graph.initializer if t.name == "dw")
    stored.CopyFrom(onnx.numpy_helper.from_array(np.ones((3, 1), np.float32), "dw"))
    trainer = memplan.AlternatingTrainer({"d": steps["d"], "g": other})
    assert any("'dw' of step 'g' begin as in step 'd'" in note for note in trainer.notes)
    assert (trainer.state_dict()["dw"] != 1).all()
    weights = {"dw": np.full((3, 1), 5, np.float32)}
    given = memplan.AlternatingTrainer({"d": steps["d"], "g": other}, weights)
    assert (given["g"].state_dict()["dw"] == 5).all()
    assert not any("begin as" in note for note in given.notes)


def test_rates_and_sizes_are_of_one_step_or_of_all(steps: Any) -> None:
    trainer = memplan.AlternatingTrainer(steps, lr={"g": 0.5}, dims={"batch": 4})
    assert (trainer["d"].lr, trainer["g"].lr) == (pytest.approx(0.01), 0.5)
    assert memplan.AlternatingTrainer(steps, lr=0.25)["d"].lr == 0.25
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"lr": {"h": 1.0}}, "unknown step 'h'"),
        ({"dims": {"length": 4}}, "no step has a dimension 'length'"),
        ({"init": "zeros"}, "init is zeros: expected 'random'"),
        ({"weights": {"none": np.zeros(1)}}, "'none', which is not state"),
    ]
    for options, says in wrong:
        with pytest.raises(UsageError, match=says):
            memplan.AlternatingTrainer(steps, **options)
    with pytest.raises(UsageError, match="unknown step 'h'"):
        trainer.step("h", BATCHES[0])


def test_one_name_of_two_shapes_is_refused(steps: Any) -> None:
    wide = onnx.ModelProto()
    wide.CopyFrom(steps["g"])
    for value in (*wide.graph.input, *wide.graph.output, *wide.graph.value_info):
        if value.name.startswith("dw"):
            value.type.tensor_type.shape.dim[1].dim_value = 2
    kept = [tensor for tensor in wide.graph.initializer if tensor.name != "dw"]
    del wide.graph.initializer[:]
    wide.graph.initializer.extend(kept)
    del wide.graph.value_info[:]
    with pytest.raises(
        UsageError, match=r"'dw' is float32\[3, 1\] in step 'd' and float32\[3, 2\]"
    ):
        memplan.AlternatingTrainer({"d": steps["d"], "g": wide})


def test_a_step_that_failed_while_it_wrote_stops_the_others(steps: Any) -> None:
    trainer = memplan.AlternatingTrainer(steps)
    whole = trainer.state_dict()
    trainer["d"].memory.broken = "a step failed while it wrote in place: the state is partly new"
    with pytest.raises(UsageError, match="step 'd' failed"):
        trainer.step("g", z=BATCHES[0]["z"])
    with pytest.raises(UsageError, match="partly new"):
        trainer.save("never.npz")
    trainer.load_state_dict({"dw": whole["dw"]}, strict=False)
    assert not trainer.is_whole
    trainer.load_state_dict(whole)
    trainer.step("g", z=BATCHES[0]["z"])


def test_it_goes_on_where_the_checkpoint_that_it_is_given_was(steps: Any, tmp_path: Path) -> None:
    trainer = memplan.AlternatingTrainer(steps, threads=1)
    trainer.step("d", BATCHES[0])
    trainer.save(tmp_path / "run.npz")
    second = memplan.AlternatingTrainer(steps, resume=tmp_path / "run.npz", threads=1)
    assert second.steps == {"d": 1, "g": 0}
    assert in_turns(second, BATCHES[1]) == in_turns(trainer, BATCHES[1])
