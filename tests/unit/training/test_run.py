"""``memplan run`` loses nothing: its outputs, checkpoints that are finite, and what was trained."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from helpers.graphs import parse
from memplan import AccumulatingTrainer, AlternatingTrainer, Trainer
from memplan.api.grad.differentiate import grad
from memplan.api.grad.training_graph import GradOptions
from memplan.errors import (
    RuntimeUnavailableError,
    TrainingError,
    UsageError,
)
from memplan.training import checkpoint
from memplan.training.train import TrainOptions, run

FORWARD = """
<ir_version: 10, opset_import: ["": 20]>
network (float[4, 8] x, int64[4] labels) => (float loss)
<float[8, 16] w1, float[16] b1, float[16, 4] w2>
{
    h0 = Gemm(x, w1, b1)
    h1 = Relu(h0)
    logits = MatMul(h1, w2)
    loss = SoftmaxCrossEntropyLoss(logits, labels)
}
"""


def forward() -> onnx.ModelProto:
    model = parse(FORWARD)
    random = np.random.default_rng(0)
    del model.graph.initializer[:]
    for name, shape in (("w1", (8, 16)), ("b1", (16,)), ("w2", (16, 4))):
        values = random.normal(0, 0.3, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    made = grad(forward(), GradOptions(loss="loss", wrt=("w*", "b*"), optimizer="adamw"))
    onnx.save(made.model, folder / "step.onnx")
    onnx.save(forward(), folder / "forward.onnx")
    random = np.random.default_rng(1)
    data = {"x": random.normal(size=(64, 8)).astype(np.float32), "labels": np.arange(64) % 4}
    np.savez(folder / "train.npz", **data)
    data["labels"][34] = 99
    np.savez(folder / "bad.npz", **data)
    np.savez(folder / "w.npz", w1=np.zeros((8, 16), np.float32))
    return folder


@pytest.fixture
def here(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in files.iterdir():
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(steps: int = 2, *, force: bool = False, progress: Any = None, **options: Any) -> Any:
    options = {"data": "train.npz", "shuffle": False, "threads": 1, **options}
    if "export_forward" in options:
        options.setdefault("forward", "forward.onnx")
    return run(
        Path("step.onnx"), TrainOptions(steps=steps, **options), force=force, progress=progress
    )


def contents() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path().iterdir()}


INPUTS = ("step.onnx", "train.npz", "w.npz", "forward.onnx")


@pytest.mark.parametrize("option", ["checkpoint", "export_forward", "log"])
@pytest.mark.parametrize("how", ["name", "link", "hard link"])
@pytest.mark.parametrize("target", INPUTS)
def test_no_input_is_overwritten_whatever_is_forced(
    option: str, how: str, target: str, here: Path
) -> None:
    name = {"name": target, "link": "link.csv", "hard link": "hard.csv"}[how]
    if how == "link":
        Path(name).symlink_to(target)
    elif how == "hard link":
        os.link(target, name)
    elif option == "log":
        pytest.skip("no input is called so")
    before = contents()
    exported = {"export_forward": "net.onnx", "forward": "forward.onnx"}
    with pytest.raises(UsageError, match="inputs are never overwritten"):
        train(weights_file="w.npz", force=True, **exported | {option: name})
    assert contents() == before


@pytest.mark.parametrize("resume", [False, True])
def test_no_weights_beside_the_model_are_overwritten(resume: bool, here: Path) -> None:
    model = onnx.load("step.onnx")
    onnx.save_model(
        model, "step.onnx", save_as_external_data=True, location="step.npz", size_threshold=0
    )
    before = contents()
    with pytest.raises(UsageError, match=r"holds weights of step\.onnx"):
        train(checkpoint="step.npz", resume=resume, force=True)
    assert contents() == before


@pytest.mark.parametrize(
    ("outputs", "existing"),
    [
        ({"log": "a.csv", "checkpoint": "a.csv"}, False),
        ({"log": "a.csv", "export_forward": "./a.csv"}, False),
        ({"checkpoint": "a.npz", "export_forward": "A.npz"}, False),
        ({"checkpoint": "a.npz", "export_forward": "a.npz"}, True),
        ({"checkpoint": "a.npz", "export_forward": "folder/../a.npz"}, True),
        ({"checkpoint": "a.npz", "export_forward": "hard.npz"}, True),
        ({"checkpoint": "link.npz", "export_forward": "a.npz"}, True),
    ],
)
def test_no_output_is_written_over_another(
    outputs: dict[str, str], existing: bool, here: Path
) -> None:
    Path("folder").mkdir()
    if existing:
        Path("a.npz").write_bytes(b"mine")
        os.link("a.npz", "hard.npz")
        Path("link.npz").symlink_to("a.npz")
    with pytest.raises(UsageError, match="another output of this command"):
        train(force=True, **outputs)
    assert not existing or Path("a.npz").read_bytes() == b"mine"


def test_what_exists_is_refused_before_the_first_step(here: Path) -> None:
    Path("net.onnx").write_bytes(b"mine")
    steps: list[int] = []
    with pytest.raises(UsageError, match=r"net\.onnx exists"):
        train(export_forward="net.onnx", progress=lambda step, *_: steps.append(step.step) or True)
    assert not steps


def test_a_mistyped_checkpoint_empties_no_log(here: Path) -> None:
    train(4, log="run.csv", checkpoint="run.npz")
    before = contents()
    with pytest.raises(UsageError, match="no checkpoint to resume from"):
        train(8, log="run.csv", checkpoint="rnu.npz", resume=True)
    assert contents() == before
    train(8, log="run.csv", checkpoint="run.npz", resume=True)
    assert len(Path("run.csv").read_text().splitlines()) == 9


# --- What is not finite -----------------------------------------------------------------------


def test_a_state_that_is_not_finite_replaces_no_checkpoint_that_is(here: Path) -> None:
    train(5, checkpoint="c.npz")
    before = Path("c.npz").read_bytes()
    with pytest.raises(TrainingError) as caught:
        train(20, checkpoint="c.npz", resume=True, lr=3e38, checkpoint_every=1)
    assert Path("c.npz").read_bytes() == before
    assert "c.npz keeps the state after step 5" in caught.value.hint
    assert "holds" in caught.value.hint


def test_a_last_step_that_overflows_replaces_no_checkpoint(here: Path) -> None:
    train(5, checkpoint="c.npz")
    before = Path("c.npz").read_bytes()
    with pytest.raises(TrainingError, match=r"'w1' holds .*c\.npz keeps the state after step 5"):
        train(6, checkpoint="c.npz", resume=True, lr=3e38)
    assert Path("c.npz").read_bytes() == before
    with pytest.raises(TrainingError):  # another run, of which no step succeeds
        train(1, checkpoint="c.npz", force=True, weights_file=_with_infinities())
    assert Path("c.npz").read_bytes() == before


def _with_infinities() -> str:
    np.savez("nan.npz", b1=np.full(16, np.inf, np.float32), w2=np.zeros((16, 4), np.float32))
    return "nan.npz"


def test_where_there_is_no_checkpoint_or_none_that_is_finite_any_state_is_written(
    here: Path,
) -> None:
    trainer = Trainer("step.onnx")
    wrong = {**trainer.state_dict(), "b1": np.full(16, np.nan, np.float32)}
    trainer.load_state_dict(wrong)
    trainer.save("c.npz")
    trainer.save("c.npz")
    trainer.load_state_dict({"w1": np.full((8, 16), np.inf, np.float32)}, strict=False)
    with pytest.raises(TrainingError, match="'w1' holds inf"):
        trainer.save("c.npz")
    Path("c.npz").write_bytes(b"no checkpoint")
    trainer.save("c.npz")


def test_a_checkpoint_that_cannot_be_read_just_now_is_not_written_over(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer("step.onnx")
    trainer.save("c.npz")
    before = Path("c.npz").read_bytes()
    trainer.load_state_dict({"w1": np.full((8, 16), np.nan, np.float32)}, strict=False)

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint, "load_arrays", fails)
    with pytest.raises(UsageError, match=r"c\.npz cannot be read: Input/output error"):
        trainer.save("c.npz")
    assert Path("c.npz").read_bytes() == before


def masked() -> onnx.ModelProto:
    """A step with a mask of infinities: ``fixed``, which nothing renews, and ``moved``."""
    model = parse(
        """
<ir_version: 10, opset_import: ["": 20]>
network (float[4] x, float[4] fixed, float[4] moved, float[4] w)
    => (float loss, float[4] moved_new, float[4] w_new)
{
    scores = Add(fixed, x)
    kept = Add(scores, moved)
    likely = Softmax <axis: int = 0> (kept)
    weighted = Mul(likely, w)
    loss = ReduceSum <keepdims: int = 0> (weighted)
    one = Constant <value_ints: ints = [1]> ()
    moved_new = Slice(doubled, one, end, zero)
    w_new = Sub(w, likely)
}
"""
    )
    nodes = model.graph.node
    at = next(k for k, node in enumerate(nodes) if node.op_type == "Slice")
    nodes.insert(at, helper.make_node("Concat", ["moved", "moved"], ["doubled"], axis=0))
    for name, value in (("end", 5), ("zero", 0)):
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [1], [value]))
    roles = '{"x": "batch", "fixed": "frozen", "moved": "optimizer-state", "w": "parameter", '
    roles += '"loss": "loss", "moved_new": "new-value", "w_new": "new-value"}'
    for key, text in (
        ("memplan.roles", roles),
        ("memplan.new_values", '{"moved_new": "moved", "w_new": "w"}'),
    ):
        model.metadata_props.add(key=key, value=text)
    return model


def test_infinities_that_belong_to_the_state_are_written(tmp_path: Path) -> None:
    low = np.array([0, 0, -np.inf, 0], np.float32)
    first = {"fixed": low, "moved": np.roll(low, 1), "w": np.ones(4, np.float32)}
    trainer = Trainer(masked(), weights=first, in_place=False)
    for _ in range(3):
        trainer.step(x=np.zeros(4, np.float32))
        trainer.save(tmp_path / "c.npz")
    other = {**first, "moved": np.zeros(4, np.float32)}
    Trainer(masked(), weights={**other, "fixed": np.zeros(4, np.float32)}).save(tmp_path / "d.npz")
    Trainer(masked(), weights=other).save(tmp_path / "d.npz")  # nothing renews the mask


def _trainers(here: Path) -> Iterator[Any]:
    yield Trainer("step.onnx")
    yield AlternatingTrainer({"a": "step.onnx", "b": "step.onnx"})
    grad(
        forward(),
        GradOptions(loss="loss", wrt=("w*", "b*"), optimizer="adamw"),
        "gradients.onnx",
        update_output="update.onnx",
    )
    yield AccumulatingTrainer("gradients.onnx", "update.onnx")


def test_no_trainer_loses_a_checkpoint_or_a_model(here: Path) -> None:
    for trainer in _trainers(here):
        Path("c.npz").unlink(missing_ok=True)
        trainer.save("c.npz")
        before = Path("c.npz").read_bytes()
        trainer.load_state_dict({"w1": np.full((8, 16), np.nan, np.float32)}, strict=False)
        with pytest.raises(TrainingError, match=r"'w1' holds nan .*keeps the state after step 0"):
            trainer.save("c.npz")
        assert Path("c.npz").read_bytes() == before
        models = {path: path.read_bytes() for path in Path().glob("*.onnx")}
        alone = isinstance(trainer, AccumulatingTrainer)
        with pytest.raises(UsageError, match="inputs are never overwritten"):
            trainer.save("update.onnx" if alone else "step.onnx")
        assert {path: path.read_bytes() for path in Path().glob("*.onnx")} == models


# --- Whatever ends it -------------------------------------------------------------------------


def test_a_batch_that_fails_keeps_what_was_trained_and_is_named(here: Path) -> None:
    with pytest.raises(RuntimeUnavailableError) as caught:
        train(20, data="bad.npz", checkpoint="c.npz")
    told = caught.value.message
    assert told.startswith("step 9, batch 9 of epoch 1: the step failed in GatherElements")
    assert told.endswith("'labels' of the data holds 0 to 99")
    assert "onnxruntime_src" not in told
    assert caught.value.hint == "c.npz holds the state after step 8; --resume goes on"
    train(20, checkpoint="c.npz", resume=True)  # with the batch that failed, which is mended
    train(20, checkpoint="whole.npz")
    assert Path("c.npz").read_bytes() == Path("whole.npz").read_bytes()


def test_a_trainer_goes_on_after_a_batch_that_failed_before_anything_was_written(
    here: Path,
) -> None:
    trainer, other = Trainer("step.onnx", threads=1), Trainer("step.onnx", threads=1)
    assert trainer.placing.in_place
    good = {"x": np.ones((4, 8), np.float32), "labels": np.arange(4)}
    assert trainer.step(good) == other.step(good)
    with pytest.raises(RuntimeUnavailableError, match="'labels' of the data holds 7 to 7"):
        trainer.step(good, labels=np.full(4, 7))
    assert trainer.is_whole
    assert trainer.step(good) == other.step(good)


def test_a_failure_behind_the_first_write_leaves_no_state_that_is_believed(here: Path) -> None:
    text = """
<ir_version: 10, opset_import: ["": 20]>
step (float[4] w, float[4] v, int64[1] at) => (float[4] w_new, float[4] v_new)
{
    w_new = Neg(w)
    some = Gather(v, at)
    v_new = Add(v, some)
}
"""
    ones = {"w": np.ones(4, np.float32), "v": np.ones(4, np.float32)}
    trainer = Trainer(parse(text), weights=ones, state={"w_new": "w", "v_new": "v"}, guard=False)
    if trainer.placing.in_place.get("w_new") != "w":
        pytest.skip("nothing is written in place")
    with pytest.raises(RuntimeUnavailableError):
        trainer.step(at=[9])
    assert not trainer.is_whole
    with pytest.raises(UsageError, match="the state is partly new"):
        trainer.save("c.npz")


@pytest.mark.parametrize(
    "error", [MemoryError("no memory"), OSError(5, "read error"), KeyboardInterrupt(), ValueError()]
)
def test_whatever_ends_the_loop_keeps_what_was_trained(error: BaseException, here: Path) -> None:
    def fails(step: Any, steps: int, peak: int | None) -> bool:
        if step.step == 3:
            raise error
        return True

    with pytest.raises(type(error)):
        train(9, checkpoint="c.npz", progress=fails)
    with np.load("c.npz") as held:
        assert held["step"] == 4
    assert getattr(error, "hint", "").startswith("c.npz holds the state after step 3")


def test_ctrl_c_in_a_step_waits_for_its_end(here: Path) -> None:
    import signal

    trainer = Trainer("step.onnx", threads=1)
    batch = {"x": np.ones((4, 8), np.float32), "labels": np.arange(4)}
    inside: Callable[[], Any] = trainer.session.run

    def interrupted() -> Any:
        found = inside()
        signal.raise_signal(signal.SIGINT)
        return found

    trainer.session.run = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        trainer.step(batch)
    assert trainer.is_whole
    assert trainer.steps == 1
    trainer.save("c.npz")
