"""What a file says of itself is a claim: it is refused, or said, where it cannot be true."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.graphs import parse
from helpers.networks import FAMILIES, batches
from memplan.errors import MemplanError, ModelError, UsageError
from memplan.proto.metadata import get_metadata
from memplan.report.terminal.training import render
from memplan.training.train import TrainOptions, run

pytestmark = pytest.mark.ort

Said = dict[str, dict[str, str]]
Change = Callable[[Said], object]


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    options = memplan.GradOptions(loss="loss", optimizer="adamw")
    return memplan.grad(FAMILIES["mlp"](), options).model


@pytest.fixture(scope="module")
def weight(model: onnx.ModelProto) -> str:
    new_values = get_metadata(model)["new_values"]
    assert isinstance(new_values, dict)
    return next(x for x in new_values.values() if f"{x}.exp_avg_new" in new_values)


def changed(model: onnx.ModelProto, change: Change) -> onnx.ModelProto:
    """The model with other claims."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    said: Any = {i.key.removeprefix("memplan."): json.loads(i.value) for i in model.metadata_props}
    change(said)
    del result.metadata_props[:]
    for key, value in said.items():
        result.metadata_props.add(key=f"memplan.{key}", value=json.dumps(value))
    return result


def trained(model: onnx.ModelProto, **options: Any) -> memplan.Trainer:
    trainer = memplan.Trainer(model, threads=1, **options)
    for batch in batches(model, 3):
        trainer.step(batch)
    return trainer


def roads(model: onnx.ModelProto, folder: Path) -> Iterator[tuple[str, MemplanError | None]]:
    """How every road to training, or to a plan for it, ends."""
    path = folder / "step.onnx"
    onnx.save(model, path)
    state = ["in-place"]
    calls: Mapping[str, Callable[[], object]] = {
        "Trainer": lambda: memplan.Trainer(path),
        "run": lambda: run(path, TrainOptions(steps=1)),
        "AlternatingTrainer": lambda: memplan.AlternatingTrainer({"only": path}),
        "analyze": lambda: memplan.analyze(path, state=state),
        "rewrite": lambda: memplan.rewrite(
            path, memplan.RewriteOptions(budget="100%", state=tuple(state)), folder / "new.onnx"
        ),
    }
    for name, call in calls.items():
        try:
            call()
        except MemplanError as error:
            yield name, error
        else:
            yield name, None


def drop(key: str, name: str) -> Change:
    return lambda said: said[key].pop(name)


def put(key: str, name: str, value: str) -> Change:
    return lambda said: said[key].update({name: value})


def swap(said: Said, first: str, second: str) -> None:
    pairs = said["new_values"]
    pairs[first], pairs[second] = pairs[second], pairs[first]


# Each of these was trained otherwise, exit 0, without a word.
IMPOSSIBLE: dict[str, Callable[[str], Change]] = {
    "a next value is not among them": lambda w: drop("new_values", f"{w}_new"),
    "it is of nobody": lambda w: put("new_values", f"{w}_new", "nothing"),
    "it is of another shape": lambda w: put("new_values", f"{w}_new", "step"),
    "weight and moment are swapped": lambda w: lambda s: swap(s, f"{w}_new", f"{w}.exp_avg_new"),
    "only the counter is renewed": lambda w: lambda s: s.update(new_values={"step_new": "step"}),
    "two are of one": lambda w: put("new_values", f"{w}.exp_avg_new", w),
    "the loss is the next learning rate": lambda w: put("new_values", "loss", "lr"),
    "an input is a loss": lambda w: put("roles", w, "loss"),
    "a batch is state": lambda w: put("roles", "x", "optimizer-state"),
    "a next value has no role and no input": lambda w: (
        lambda s: (
            drop("roles", f"{w}_new")(s),
            drop("new_values", f"{w}_new")(s),
        )
    ),
    "new_values are a list": lambda w: lambda s: s.update(new_values=["w"]),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_file_that_contradicts_itself_is_refused_on_every_road(
    what: str, model: onnx.ModelProto, weight: str, tmp_path: Path
) -> None:
    found = dict(roads(changed(model, IMPOSSIBLE[what](weight)), tmp_path))
    assert {name for name, error in found.items() if not isinstance(error, ModelError)} == set()
    assert len({error.message for error in found.values() if error is not None}) == 1


# Roles that were believed, so that the state lacked a weight, or a learning rate counted steps.
CORRECTED = {
    "a weight is in the batch": ("{w}", "batch"),
    "a weight is a hyperparameter": ("{w}", "hyperparameter"),
    "a weight is frozen": ("{w}", "frozen"),
    "the counter is in the batch": ("step", "batch"),
    "the learning rate counts": ("lr", "step-counter"),
    "the batch is a hyperparameter": ("x", "hyperparameter"),
    "a role that is none": ("{w}", "nonsense"),
}


@pytest.mark.parametrize("what", CORRECTED)
def test_what_is_renewed_is_state_whatever_the_role_says(
    what: str, model: onnx.ModelProto, weight: str, tmp_path: Path
) -> None:
    name, role = (part.format(w=weight) for part in CORRECTED[what])
    wrong = changed(model, put("roles", name, role))
    plain, trainer = trained(model), trained(wrong)
    assert trainer.state_dict().keys() == plain.state_dict().keys()
    for key, value in plain.state_dict().items():
        assert np.array_equal(trainer.state_dict()[key], value), key
    (note,) = set(trainer.notes) - set(plain.notes)
    assert f"'{role}' of '{name}'" in note
    assert note in repr(trainer)
    trainer.save(tmp_path / "run.npz")
    saved = np.load(tmp_path / "run.npz")
    assert set(saved.files) >= set(plain.state_dict())
    assert np.array_equal(saved[weight], plain.state_dict()[weight])


def test_run_says_in_its_first_lines_and_in_json_what_it_did_not_believe(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    path = tmp_path / "step.onnx"
    onnx.save(changed(model, put("roles", "lr", "step-counter")), path)
    result = run(path, TrainOptions(steps=2))
    (note,) = result.doubts
    assert note in result.as_json()["notes"]  # type: ignore[operator]
    parts = render(result).renderables
    assert note in str(parts[1])
    assert any("ms a step (median; other work on the machine counts)" in str(p) for p in parts)
    analysis = memplan.analyze(path, state="in-place")
    assert note in analysis.assumptions


@pytest.mark.parametrize(
    "text",
    [
        '{"w_new": "w", "w_new": "m"}',
        '{"w_new": "w"',
        "[" * 100_000,
    ],
    ids=["a name twice", "cut off", "too deep"],
)
def test_claims_that_cannot_be_read_are_refused(text: str) -> None:
    model = by_hand()
    next(i for i in model.metadata_props if i.key == "memplan.new_values").value = text
    with pytest.raises(ModelError, match=r"memplan\.new_values"):
        memplan.Trainer(model)


@pytest.mark.parametrize(
    ("key", "value"), [("provider", "zz"), ("session", "plain"), ("dims", {"N": "x"})]
)
def test_a_plan_for_what_is_not_there_is_a_bad_model(
    key: str, value: object, model: onnx.ModelProto
) -> None:
    with pytest.raises(ModelError, match=key):
        memplan.Trainer(changed(model, lambda said: said.update({key: value})))  # type: ignore[arg-type,dict-item]


NAMELESS = """
 g (float[4] x, float[4] w, float[4] p, float[4] old, float lr)
   => (float loss, float[4] o1, float[4] o2, float[4] o3)
 { y = Mul(x, w)  d = Sub(y, p)  s = Mul(d, d)  loss = ReduceMean <keepdims = 0> (s)
   g = Mul(d, x)  dw = Mul(g, lr)  dp = Mul(d, lr)
   o1 = Sub(w, dw)  o2 = Add(p, dp)  o3 = Identity(w) }"""


def by_hand(pairs: Mapping[str, str] | None = None) -> onnx.ModelProto:
    """A step whose names say nothing, and whose third state is the weight of the step before."""
    model = parse(NAMELESS)
    said = {
        "new_values": pairs or {"o1": "w", "o2": "p", "o3": "old"},
        "roles": {"w": "parameter", "p": "parameter", "old": "optimizer-state", "x": "batch"},
    }
    for key, value in said.items():
        model.metadata_props.add(key=f"memplan.{key}", value=json.dumps(value))
    return model


def test_swapped_next_values_without_telling_names_are_found_by_the_data_flow() -> None:
    weights = {"w": np.ones(4, np.float32), "p": np.ones(4, np.float32)}
    with pytest.raises(ModelError, match="is made of"):
        memplan.Trainer(by_hand({"o1": "p", "o2": "w", "o3": "old"}), weights)
    # What the user names himself is no claim.
    asked = {"o1": "p", "o2": "w"}
    memplan.Trainer(by_hand(), weights, state=asked, hyperparameters={"lr": 0.1})


def test_a_copy_of_the_old_weight_is_legal_and_said() -> None:
    weights = {"w": np.ones(4, np.float32), "p": np.ones(4, np.float32)}
    notes = memplan.Trainer(by_hand(), weights, lr=0.1).notes
    assert [note for note in notes if "'o3 of old'" in note]


def test_a_weight_that_nothing_renews_is_said() -> None:
    weights = {"w": np.ones(4, np.float32), "p": np.ones(4, np.float32)}
    trainer = memplan.Trainer(by_hand({"o1": "w", "o3": "old"}), weights, lr=0.1)
    assert [note for note in trainer.notes if "'p'" in note and "no output renews" in note]
    assert [note for note in trainer.notes if "'o2 of p'" in note], trainer.notes


def test_two_outputs_for_one_input_are_refused_alike_by_run_analyze_and_rewrite(
    tmp_path: Path,
) -> None:
    model = parse(NAMELESS.replace("o1", "w_new").replace("o3", "w_next"))
    found = dict(roads(model, tmp_path))
    assert {error.message for error in found.values() if error is not None} == {
        "outputs 'w_new' and 'w_next' are both the next value of 'w'"
    }
    assert None not in found.values()


def test_files_of_our_own_are_trained_without_a_word(model: onnx.ModelProto) -> None:
    assert not [note for note in memplan.Trainer(model).notes if "start at" not in note]


def test_accumulation_takes_two_files_that_belong_together(tmp_path: Path) -> None:
    options = memplan.GradOptions(loss="loss", optimizer="adamw")
    one, two = tmp_path / "step.onnx", tmp_path / "update.onnx"
    memplan.grad(FAMILIES["mlp"](), options, one, update_output=two)
    with pytest.raises(ModelError, match=r"step\.onnx is no graph of updates"):
        memplan.AccumulatingTrainer(one, one)
    update = onnx.load(two)
    pairs = get_metadata(update)["new_values"]
    assert isinstance(pairs, dict)
    name = next(out for out, given in pairs.items() if f"{given}.exp_avg" in pairs.values())
    lost = changed(update, drop("new_values", name))
    with pytest.raises(ModelError, match=name):
        memplan.AccumulatingTrainer(one, lost)
    said = changed(update, put("roles", "lr", "step-counter"))
    assert "'step-counter' of 'lr'" in memplan.AccumulatingTrainer(one, said).notes[0]
    blind = changed(onnx.load(one), put("roles", pairs[name], "batch"))
    with pytest.raises(ModelError, match="which the step does not train"):
        memplan.AccumulatingTrainer(blind, two)


def test_part_of_a_state_is_refused_unless_it_is_asked_for(model: onnx.ModelProto) -> None:
    trainer = memplan.Trainer(model)
    state = trainer.state_dict()
    name = next(iter(state))
    part = {name: state[name] + 1}
    for wrong in ({}, part, None, 5):
        with pytest.raises(UsageError):
            trainer.load_state_dict(wrong)  # type: ignore[arg-type]
    assert np.array_equal(trainer.state_dict()[name], state[name])
    trainer.load_state_dict(part, strict=False)
    assert np.array_equal(trainer.state_dict()[name], part[name])
    for batch in ({5: 1}, [], 5):
        with pytest.raises(UsageError, match="mapping"):
            trainer.step(batch)  # type: ignore[arg-type]


def test_a_hundred_thousand_foreign_entries_cost_next_to_nothing(model: onnx.ModelProto) -> None:
    many = {f"n{k}": f"m{k}" for k in range(100_000)}
    large = changed(model, lambda said: [said[key].update(many) for key in said])
    begun = time.process_time()
    trainer = memplan.Trainer(large)
    assert time.process_time() - begun < 3
    assert "300,000 entries" in trainer.notes[0]
