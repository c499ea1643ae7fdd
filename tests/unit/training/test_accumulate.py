"""Gradients of several batches are those of a plain loop that adds them up, to the bit."""

import json
from collections import UserDict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from helpers.networks import FAMILIES, batches, training_step
from helpers.sessions import session
from memplan import AccumulatingTrainer, GradOptions, grad
from memplan.errors import ModelError, UsageError
from memplan.proto.metadata import unseal

Files = tuple[onnx.ModelProto, onnx.ModelProto]


def written(family: str, folder: Path) -> Files:
    """A step and its optimizer's own graph."""
    options = GradOptions(loss="loss", optimizer="adamw{clip_norm=0.5}")
    target, update = folder / "step.onnx", folder / "update.onnx"
    step = grad(FAMILIES[family](), options, target, update_output=update).model
    return step, onnx.load(folder / "update.onnx")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return written("mlp", tmp_path_factory.mktemp("mlp"))


def opened(model: onnx.ModelProto) -> Any:
    plain = any(item.key == "memplan.session" for item in model.metadata_props)
    return session(model, "default" if plain else "tuned")


def by_hand(
    files: Files, trainer: AccumulatingTrainer, groups: list[list[Any]]
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Sums in NumPy, and every value fed and fetched."""
    step, update = (opened(model) for model in files)
    state, losses = trainer.state_dict(), []
    contract = trainer.trainers[1].file.contract
    for group in groups:
        sums: dict[str, np.ndarray] = {}
        mean = []
        for batch in group:
            names = [output.name for output in step.get_outputs()]
            inputs = {v.name for v in files[0].graph.input}
            fed = {k: v for k, v in {**state, **batch}.items() if k in inputs}
            found = dict(zip(names, step.run(names, fed), strict=True))
            mean.append(float(found["loss"]))
            for name, value in found.items():
                if name.endswith("_grad"):
                    sums[name] = sums.get(name, np.zeros_like(value)) + value
            state.update({n[:-4]: v for n, v in found.items() if n.endswith("_new")})
        inputs = {v.name for v in files[1].graph.input}
        fed = {k: v for k, v in {**state, **sums}.items() if k in inputs}
        fed["gradient_scale"] = np.asarray(1 / len(group), np.float32)
        names = [output.name for output in update.get_outputs()]
        found = dict(zip(names, update.run(names, fed), strict=True))
        state.update({i: found[o] for o, i in contract.new_values.items() if o in found})
        losses.append(sum(mean) / len(mean))
    return losses, state


@pytest.mark.parametrize(
    ("family", "plain"), [("mlp", False), ("cnn", False), ("gpt", False), ("cnn", True)]
)
def test_sums_are_those_of_a_plain_loop_to_the_bit(
    family: str, plain: bool, tmp_path: Path
) -> None:
    """In a plain session all state, sums among it, has two buffers."""
    both = written(family, tmp_path)
    for model in both if plain else ():
        model.metadata_props.add(key="memplan.session", value='"default"')
    data = batches(both[0], 9)
    groups = [data[0:3], data[3:4], data[4:9]]
    trainer = AccumulatingTrainer(*both, threads=1)
    losses, state = by_hand(both, trainer, groups)
    assert [trainer.step(group) for group in groups] == pytest.approx(losses, rel=1e-12)
    for name, value in trainer.state_dict().items():
        assert value.tobytes() == state[name].tobytes(), name
    assert trainer.steps == 3
    assert bool(trainer.trainers[0].placing.second) == (plain or family == "cnn")


def test_weights_and_sums_are_there_once_and_in_place(files: Files) -> None:
    trainer = AccumulatingTrainer(*files, threads=1)
    first, second = trainer.trainers
    assert not first.placing.second
    assert not second.placing.second
    trainer.step(batches(files[0], 2))
    for name, buffer in first.session.buffers.items():
        other = second.session.buffers.get(name.removesuffix(".sum"))
        assert other is None or other is buffer, name
    assert not first.session.get("a.weight_grad.sum").any()
    assert not [name for name in trainer.state_dict() if "_grad" in name]  # zeros between steps


@pytest.mark.parametrize("ends", ["a batch that is none", "ctrl-c", "the update"])
def test_whatever_ends_a_step_the_next_sums_begin_at_nothing(ends: str, files: Files) -> None:
    class Interrupted(UserDict[str, Any]):
        def __iter__(self) -> Any:
            raise KeyboardInterrupt

    first, second = batches(files[0], 2)
    trainer, other = (AccumulatingTrainer(*files, threads=1) for _ in range(2))
    wrong: list[Any] = [first, {"ctrl-c": Interrupted(), "the update": second}.get(ends, {})]
    with pytest.raises(KeyboardInterrupt if ends == "ctrl-c" else UsageError):
        trainer.step(wrong, **({"lr": float("nan")} if ends == "the update" else {}))
    assert trainer.step([second]) == other.step([second])
    state = other.state_dict()
    assert all(value.tobytes() == state[k].tobytes() for k, value in trainer.state_dict().items())


def test_first_values_are_of_either_file_and_weights_may_lie_beside_it(
    files: Files, tmp_path: Path
) -> None:
    for name, model in zip(("step", "update"), files, strict=True):
        kept = onnx.ModelProto()
        kept.CopyFrom(model)
        location = f"{name}.data"
        onnx.save_model(
            kept, tmp_path / f"{name}.onnx", save_as_external_data=True, location=location
        )
    given = {"a.bias": np.ones(24, np.float32), "a.bias.exp_avg": np.full(24, 2, np.float32)}
    beside = AccumulatingTrainer(tmp_path / "step.onnx", tmp_path / "update.onnx", given, threads=1)
    inside = AccumulatingTrainer(*files, given, threads=1)
    assert {name: value[0] for name, value in inside.state_dict().items() if name in given} == {
        "a.bias": 1,
        "a.bias.exp_avg": 2,
    }
    batch = batches(files[0], 1)
    assert beside.step(batch) == inside.step(batch)


def test_what_does_not_belong_together_is_refused(files: Files) -> None:
    with pytest.raises(ModelError, match="do not belong together"):
        AccumulatingTrainer(training_step("mlp"), files[1])
    swapped = onnx.ModelProto()
    swapped.CopyFrom(files[1])
    unseal(swapped)  # as files of older versions are
    said = next(i for i in swapped.metadata_props if i.key == "memplan.gradients")
    pairs = json.loads(said.value)
    pairs["a.bias_grad"], pairs["b.bias_grad"] = pairs["b.bias_grad"], pairs["a.bias_grad"]
    said.value = json.dumps(pairs)
    with pytest.raises(ModelError, match=r"is the gradient of '.\.bias' here, '.\.bias' there"):
        AccumulatingTrainer(files[0], swapped)
    with pytest.raises(UsageError, match="a list of mappings"):
        AccumulatingTrainer(*files).step([])
