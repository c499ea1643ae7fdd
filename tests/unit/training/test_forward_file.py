"""Trained values go into the forward file that the user names, and what does not fit is said."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from helpers.graphs import parse
from helpers.networks import FAMILIES, batches, training_step
from memplan import AccumulatingTrainer, AlternatingTrainer, GradOptions, Trainer, grad
from memplan.errors import ModelError, UsageError
from memplan.training import forward_file
from memplan.training.train import TrainOptions, run

EVALUATION = "export the network in evaluation, and give that as the forward model"


@pytest.fixture
def trainer() -> Trainer:
    """Of the small network, one step further than its file."""
    step = training_step("mlp")
    made = Trainer(step, threads=1)
    made.step(batches(step, 1)[0])
    return made


def initializers(path: Path) -> dict[str, np.ndarray]:
    model = onnx.load(path)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def without(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """The model with inputs in place of some initializers."""
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in names]
    for tensor in model.graph.initializer:
        if tensor.name in names:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(value)
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


def renamed(model: onnx.ModelProto, old: str, new: str) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        if tensor.name == old:
            tensor.name = new
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
    return model


def in_evaluation() -> onnx.ModelProto:
    """The network with batch normalization as it is run once it is trained."""
    model = FAMILIES["cnn"]()
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            del node.output[1:]
            for attribute in node.attribute:
                if attribute.name == "training_mode":
                    attribute.i = 0
    return model


@pytest.mark.parametrize("family", ["mlp", "gpt", "lstm", "unet"])
def test_what_grad_was_given_infers_with_the_trained_values(family: str, tmp_path: Path) -> None:
    step = training_step(family)
    trainer = Trainer(step, outputs=["logits"], threads=1)
    first, second = batches(step, 2)
    trainer.step(first)
    path = tmp_path / "net.onnx"
    assert trainer.export_forward(path, FAMILIES[family]()) == ()
    onnx.checker.check_model(str(path))
    trainer.step(second)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(["logits"], second)
    np.testing.assert_allclose(found, trainer.outputs["logits"], rtol=1e-4, atol=1e-6)
    with pytest.raises(UsageError, match="exists"):
        trainer.export_forward(path, FAMILIES[family]())


def test_running_statistics_go_where_the_network_in_evaluation_has_them(tmp_path: Path) -> None:
    step = training_step("cnn")
    trainer = Trainer(step, threads=1)
    trainer.step(batches(step, 1)[0])
    path = tmp_path / "net.onnx"
    assert trainer.export_forward(path, in_evaluation()) == ()
    state, stored = trainer.state_dict(), initializers(path)
    assert {"an.mean", "an.var"} <= stored.keys() & state.keys()
    assert all((stored[name] == state[name]).all() for name in stored.keys() & state.keys())
    (said,) = trainer.export_forward(path, FAMILIES["cnn"](), force=True)
    assert "is in training mode, with dropout or the statistics of each batch" in said
    assert said.endswith(EVALUATION)
    assert said in trainer.notes
    (said,) = trainer.export_forward(
        path, renamed(in_evaluation(), "an.mean", "an.running"), force=True
    )[:1]
    assert said == "running statistics of the step that model.onnx does not have: 'an.mean'"


def test_dropout_that_drops_is_said(tmp_path: Path) -> None:
    text = """t (float[4, 4] x) => (float loss)
      <float half = {0.5}, bool on = {1}, float[4, 4] weight = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> {
      h = MatMul(x, weight) [drop] d = Dropout(h, half, on)
      loss = ReduceMean<keepdims = 0>(d) }"""
    trainer = Trainer(grad(parse(text), GradOptions(loss="loss", optimizer="sgd")).model, lr=0.1)
    (said,) = trainer.export_forward(tmp_path / "net.onnx", parse(text))
    assert "'drop'" in said
    assert said.endswith(EVALUATION)


def test_what_has_no_place_and_what_keeps_its_value_are_said(
    trainer: Trainer, tmp_path: Path
) -> None:
    path = tmp_path / "net.onnx"
    other = renamed(renamed(FAMILIES["mlp"](), "a.weight", "a.w"), "z.bias", "head.bias")
    before = {t.name: numpy_helper.to_array(t) for t in other.graph.initializer}
    assert trainer.export_forward(path, other) == (
        "trained, but model.onnx has no such parameter: 'a.weight', 'z.bias'",
        "not trained by the step, values as in model.onnx: 'a.w', 'head.bias'",
    )
    stored, state = initializers(path), trainer.state_dict()
    assert (stored["a.w"] == before["a.w"]).all()
    assert (stored["b.weight"] == state["b.weight"]).all()


def test_inputs_that_are_parameters_become_initializers(trainer: Trainer, tmp_path: Path) -> None:
    """As in the ``eval_model.onnx`` of onnxruntime-training."""
    forward = without(FAMILIES["mlp"](), "a.weight", "a.bias")
    assert trainer.export_forward(tmp_path / "net.onnx", forward) == ()
    model = onnx.load(tmp_path / "net.onnx")
    assert [value.name for value in model.graph.input] == ["x", "labels"]
    assert (
        initializers(tmp_path / "net.onnx")["a.weight"] == trainer.state_dict()["a.weight"]
    ).all()


def test_a_model_that_is_not_the_step_s_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with pytest.raises(UsageError, match="has no parameter of the step"):
        trainer.export_forward(path, FAMILIES["unet"]())
    wide = without(FAMILIES["mlp"](), "a.bias")
    wide.graph.input[-1].type.tensor_type.shape.dim[0].dim_value = 7
    with pytest.raises(UsageError, match=r"'a.bias' .* another type or shape .*: float32\[24\]"):
        trainer.export_forward(path, wide)
    half = without(FAMILIES["mlp"](), "a.bias")
    half.graph.input[-1].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with pytest.raises(UsageError, match="another type or shape"):
        trainer.export_forward(path, half)
    strange = without(FAMILIES["mlp"](), "a.bias")
    strange.graph.input[-1].type.Clear()
    with pytest.raises((UsageError, ModelError)):
        trainer.export_forward(path, strange)
    (tmp_path / "cut.onnx").write_bytes(FAMILIES["mlp"]().SerializeToString()[:500])
    with pytest.raises(ModelError):
        trainer.export_forward(path, tmp_path / "cut.onnx")
    assert not path.exists()


def test_weights_in_other_files_stay_there(trainer: Trainer, tmp_path: Path) -> None:
    forward, data = tmp_path / "forward.onnx", tmp_path / "forward.data"
    model = renamed(FAMILIES["mlp"](), "b.weight", "other")
    onnx.save_model(
        model, forward, save_as_external_data=True, location=data.name, size_threshold=0
    )
    before = data.read_bytes()
    for target in (forward, data):
        with pytest.raises(UsageError, match="inputs are never overwritten"):
            trainer.export_forward(target, forward, force=True)
    trainer.export_forward(tmp_path / "net.onnx", forward)
    assert data.read_bytes() == before
    stored = initializers(tmp_path / "net.onnx")
    assert (stored["a.weight"] == trainer.state_dict()["a.weight"]).all()
    assert (stored["other"] == initializers(forward)["other"]).all()


def test_a_file_of_more_than_a_protobuf_holds_is_refused(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_file, "_LARGEST_BYTES", 100)
    with pytest.raises(ModelError, match="at most 2 GiB"):
        trainer.export_forward(tmp_path / "net.onnx", FAMILIES["mlp"]())


def test_averages_are_exported_in_place_of_their_weights(trainer: Trainer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keeps no averages"):
        trainer.export_forward(tmp_path / "net.onnx", FAMILIES["mlp"](), ema=True)


def test_no_trainer_keeps_what_is_odd_to_itself(tmp_path: Path) -> None:
    """Neither to itself nor, as once, to nobody."""
    options = GradOptions(loss="loss", optimizer="adamw")
    files = tmp_path / "gradients.onnx", tmp_path / "update.onnx"
    grad(FAMILIES["cnn"](), options, files[0], update_output=files[1])
    step = training_step("cnn")
    trainers: list[Any] = [AccumulatingTrainer(*files), AlternatingTrainer({"a": step})]
    for number, trainer in enumerate(trainers):
        (said,) = trainer.export_forward(tmp_path / f"{number}.onnx", FAMILIES["cnn"]())
        assert said.endswith(EVALUATION)
        assert said in trainer.notes
    onnx.save(step, tmp_path / "step.onnx")
    onnx.save(FAMILIES["cnn"](), tmp_path / "forward.onnx")
    asked = {"forward": tmp_path / "forward.onnx", "export_forward": tmp_path / "net.onnx"}
    result = run(tmp_path / "step.onnx", TrainOptions(steps=1, **asked))
    assert any(note.endswith(EVALUATION) for note in result.notes)


def test_run_refuses_before_it_trains(tmp_path: Path) -> None:
    onnx.save(training_step("mlp"), tmp_path / "step.onnx")
    onnx.save(FAMILIES["unet"](), tmp_path / "unet.onnx")
    steps: list[int] = []
    wrong = (
        ({"export_forward": "net.onnx"}, "--export-forward requires --forward"),
        ({"forward": "unet.onnx"}, "--forward requires --export-forward"),
        ({"export_forward": "net.onnx", "forward": "unet.onnx"}, "has no parameter of the step"),
        ({"ready_batches": True}, "--ready-batches requires --data"),
    )
    for options, says in wrong:
        given = {k: tmp_path / v if isinstance(v, str) else v for k, v in options.items()}
        with pytest.raises(UsageError, match=says):
            run(
                tmp_path / "step.onnx",
                TrainOptions(**given),
                progress=lambda step, *_: steps.append(step.step) or True,
            )
    assert not steps
