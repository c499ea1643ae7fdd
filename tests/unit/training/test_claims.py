"""What a file says of itself is believed as long as it is as memplan wrote it."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.graphs import parse
from helpers.networks import FAMILIES, batches
from memplan.errors import MemplanError, ModelError, UsageError
from memplan.proto.metadata import SEAL, get_metadata, sealed_bytes, unseal
from memplan.report.tell.run import tell_run
from memplan.training.train import TrainOptions, run

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
            path,
            memplan.RewriteOptions("100%", strategy="none", optimize="none", state=tuple(state)),
            folder / "new.onnx",
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


# Two of them no file may say, edited or old; the others only an edited one, which is not believed.
IMPOSSIBLE: dict[str, Callable[[str], Change]] = {
    "it is of another shape": lambda w: put("new_values", f"{w}_new", "step"),
    "two are of one": lambda w: put("new_values", f"{w}.exp_avg_new", w),
}
EDITED: dict[str, Callable[[str], Change]] = IMPOSSIBLE | {
    "a next value is not among them": lambda w: drop("new_values", f"{w}_new"),
    "it is of nobody": lambda w: put("new_values", f"{w}_new", "nothing"),
    "weight and moment are swapped": lambda w: lambda s: swap(s, f"{w}_new", f"{w}.exp_avg_new"),
    "only the counter is renewed": lambda w: lambda s: s.update(new_values={"step_new": "step"}),
    "the loss is the next learning rate": lambda w: put("new_values", "loss", "lr"),
    "an input is a loss": lambda w: put("roles", w, "loss"),
    "a batch is state": lambda w: put("roles", "x", "optimizer-state"),
    "a weight is in the batch": lambda w: put("roles", w, "batch"),
    "the counter is in the batch": lambda w: put("roles", "step", "batch"),
    "the learning rate counts": lambda w: put("roles", "lr", "step-counter"),
    "a role that is none": lambda w: put("roles", w, "nonsense"),
    "new_values are a list": lambda w: lambda s: s.update(new_values=["w"]),  # type: ignore[dict-item]
    "the seal is a number": lambda w: lambda s: s.update(seal=5),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_file_that_contradicts_itself_is_refused_on_every_road(
    what: str, model: onnx.ModelProto, weight: str, tmp_path: Path
) -> None:
    found = dict(roads(changed(model, IMPOSSIBLE[what](weight)), tmp_path))
    assert {name for name, error in found.items() if not isinstance(error, ModelError)} == set()
    assert len({error.message for error in found.values() if error is not None}) == 1


def sealed(model: onnx.ModelProto) -> onnx.ModelProto:
    """As a file holds it."""
    return onnx.load_from_string(sealed_bytes(model))


def cut(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """Without some outputs."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept = [value for value in model.graph.output if value.name not in names]
    del result.graph.output[:]
    result.graph.output.extend(kept)
    return result


@pytest.mark.parametrize("what", EDITED)
def test_a_file_that_was_edited_is_not_believed(
    what: str, model: onnx.ModelProto, weight: str, tmp_path: Path
) -> None:
    """It trains as its names say, on every road."""
    edited = changed(sealed(model), EDITED[what](weight))
    plain, trainer = trained(model), trained(edited)
    assert trainer.state_dict().keys() == plain.state_dict().keys()
    for key, value in plain.state_dict().items():
        assert np.array_equal(trainer.state_dict()[key], value), key
    (note,) = set(trainer.notes) - set(plain.notes)
    assert "memplan.seal" in note
    assert note in repr(trainer)
    if what == "two are of one":
        assert set(dict(roads(edited, tmp_path)).values()) == {None}


def test_the_seal_is_of_names_and_types_and_what_is_said_of_them_alone(
    model: onnx.ModelProto, weight: str
) -> None:
    whole = sealed(model)
    assert not has_changed(whole)
    assert has_changed(cut(whole, f"{weight}_new"))
    other = changed(whole, lambda said: said.update(note={"by": "its author"}))
    other.graph.doc_string = "mine"
    other.graph.node[0].name = "first"
    assert not has_changed(other)
    other.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    assert has_changed(other)
    other = sealed(model)
    other.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    assert has_changed(other)


def has_changed(model: onnx.ModelProto) -> bool:
    """Whether what a file says is taken away as it is read."""
    read = onnx.ModelProto()
    read.CopyFrom(model)
    unseal(read)
    metadata = get_metadata(read)
    assert ("new_values" in metadata) is (SEAL not in metadata)
    return SEAL in metadata


def test_what_is_written_from_an_edited_file_says_nothing_that_the_edit_said(
    model: onnx.ModelProto, weight: str, tmp_path: Path
) -> None:
    path, target = tmp_path / "edited.onnx", tmp_path / "new.onnx"
    onnx.save(changed(sealed(model), lambda s: swap(s, f"{weight}_new", "step_new")), path)
    options = memplan.RewriteOptions("100%", strategy="none", optimize="none", state=("apart",))
    memplan.rewrite(path, options, target)
    assert not {"memplan.new_values", "memplan.seal"} & {
        item.key for item in onnx.load(target).metadata_props
    }
    # In place, it says what was found.
    memplan.rewrite(path, replace(options, state=("in-place",)), target, force=True)
    said = get_metadata(onnx.load(target))
    assert said["new_values"] == get_metadata(model)["new_values"]
    assert not has_changed(onnx.load(target))


def test_run_says_in_its_first_lines_and_in_json_that_a_file_was_edited(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    path = tmp_path / "step.onnx"
    onnx.save(changed(sealed(model), put("roles", "lr", "step-counter")), path)
    result = run(path, TrainOptions(steps=2))
    (note,) = result.doubts
    assert note in result.as_json()["notes"]  # type: ignore[operator]
    parts = tell_run(result).parts
    assert note in str(parts[1])
    assert any("ms a step (median; other work on the machine counts)" in str(p) for p in parts)
    assert any("predicted for every step: " in str(p) for p in parts)
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
def test_claims_that_cannot_be_read_are_none(text: str) -> None:
    model = by_hand()
    next(i for i in model.metadata_props if i.key == "memplan.new_values").value = text
    weights = {"w": np.ones(4, np.float32), "p": np.ones(4, np.float32)}
    state = {"o1": "w", "o2": "p", "o3": "old"}
    assert memplan.Trainer(model, weights, lr=0.1, state=state).file.contract.new_values == state


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


def test_an_old_file_without_a_seal_is_believed() -> None:
    """Nobody but the file can know which output is which."""
    weights = {"w": np.ones(4, np.float32), "p": np.ones(4, np.float32)}
    swapped = {"o1": "p", "o2": "w", "o3": "old"}
    assert memplan.Trainer(by_hand(swapped), weights, lr=0.1).file.contract.new_values == swapped
    # What the user names himself goes before.
    trainer = memplan.Trainer(by_hand(swapped), weights, lr=0.1, state={"o1": "w", "o2": "p"})
    assert trainer.file.contract.new_values == {"o1": "w", "o2": "p", "o3": "old"}


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
    edited = changed(update, put("roles", "lr", "step-counter"))
    with pytest.raises(ModelError, match="do not belong together"):
        memplan.AccumulatingTrainer(one, edited)
    name = next(given for given in pairs.values() if f"{given}.exp_avg" in pairs.values())
    unsealed = changed(onnx.load(one), lambda said: said.pop("seal"))
    blind = changed(unsealed, put("roles", name, "batch"))
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


def test_twenty_thousand_foreign_entries_cost_next_to_nothing(model: onnx.ModelProto) -> None:
    many = {f"n{k}": f"m{k}" for k in range(20_000)}
    large = changed(model, lambda said: [said[key].update(many) for key in said])
    begun = time.process_time()
    memplan.Trainer(large)
    assert time.process_time() - begun < 1
