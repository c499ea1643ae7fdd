"""What ``capture`` answers: names, roles, weights, and refusals."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import memplan
from helpers.torch_steps import captured
from helpers.with_torch import nn, torch
from memplan.errors import ModelError, UsageError
from memplan.proto.metadata import CHECKPOINT_KEY, PHASE_KEY, get_metadata

pytestmark = pytest.mark.slow


class Small(nn.Module):  # type: ignore[name-defined,misc]
    """Two linear layers, a normalization, and parameters of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second.weight = self.first_square = nn.Parameter(torch.randn(8, 8))
        self.spare = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        y = torch.tanh(self.norm(self.first(x)))
        return self.second(y) @ self.first_square


def step(optimizer: bool = False, **settings: Any) -> memplan.TorchStep:
    torch.manual_seed(0)
    model = Small()
    batch = {"x": torch.randn(5, 4), "labels": torch.randint(0, 8, (5,))}

    def loss(model: Any, x: Any, labels: Any) -> Any:
        return nn.functional.cross_entropy(model(x), labels)

    chosen = torch.optim.AdamW(model.parameters(), lr=0.25) if optimizer else None
    return memplan.TorchStep(model, loss, batch, chosen, **settings)


@pytest.fixture(scope="module")
def plain() -> memplan.Capture:
    return captured(step())


@pytest.fixture(scope="module")
def trained() -> memplan.Capture:
    return captured(step(optimizer=True))


def names(values: Any) -> list[str]:
    return [value.name for value in values]


def initializers(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def test_backward_nodes_tell_the_module_that_they_differentiate(plain: memplan.Capture) -> None:
    graph = plain.model.graph
    told = [{p.key: p.value for p in node.metadata_props} for node in graph.node]
    made_in = {
        name: entry.get("memplan.module")
        for node, entry in zip(graph.node, told, strict=True)
        for name in node.output
    }
    for name in ("first.weight", "first.bias", "norm.weight", "norm.bias", "second.bias"):
        assert made_in[f"{name}_grad"] == name.split(".")[0]
    used = {entry["memplan.module"] for entry in told if "memplan.module" in entry}
    assert used <= {"first", "norm", "second", "loss"}


def test_names_roles_and_phases(trained: memplan.Capture) -> None:
    capture = trained
    assert capture.batch == ("x", "labels")
    assert capture.trained == (
        "first_square", "first.weight", "first.bias", "second.bias", "norm.weight", "norm.bias",
    )  # fmt: skip
    assert capture.unused == ("spare.weight", "spare.bias")
    assert any("2 parameters without influence" in note for note in capture.notes)
    roles = get_metadata(capture.model)["roles"]
    assert isinstance(roles, dict)
    assert roles["first.weight"] == "parameter"
    assert roles["first.weight.exp_avg"] == "optimizer-state"
    assert roles["norm.running_mean"] == "running-statistic"
    assert roles["norm.num_batches_tracked"] == "running-statistic"
    assert (roles["lr"], roles["step"], roles["loss"]) == ("hyperparameter", "step-counter", "loss")
    new = get_metadata(capture.model)["new_values"]
    assert isinstance(new, dict)
    assert new["norm.running_var_new"] == "norm.running_var"
    assert new["step_new"] == "step"
    defaults = initializers(capture.model)
    assert (float(defaults["lr"]), int(defaults["step"])) == (0.25, 1)
    graph = capture.model.graph
    phases = [{p.key: p.value for p in node.metadata_props}.get(PHASE_KEY) for node in graph.node]
    loss = next(i for i, node in enumerate(graph.node) if "loss" in node.output)
    assert loss < phases.index("update"), "a part of the update waits from the beginning"


def test_the_file_tells_its_peak_and_not_where_the_source_lies(plain: memplan.Capture) -> None:
    assert plain.peak_bytes > plain.stash_bytes > 0
    assert any(note.startswith("peak ") for note in plain.notes)
    written = plain.model.SerializeToString()
    assert str(Path(__file__).parent).encode() not in written
    assert b"site-packages" not in written


def test_weights_are_in_the_file_once_and_a_parameter_keeps_its_values(
    plain: memplan.Capture,
) -> None:
    wanted, stored = step(), initializers(plain.model)
    for name, parameter in wanted.model.named_parameters():
        if not name.startswith("spare"):
            np.testing.assert_array_equal(stored[name], parameter.detach().numpy())
    assert "second.weight" not in stored
    held = sum(p.numel() for n, p in wanted.model.named_parameters() if "spare" not in n)
    assert sum(array.size for array in stored.values() if array.dtype == np.float32) < held + 64


def test_weights_beside_the_file_or_nowhere(tmp_path: Path) -> None:
    beside = captured(step(), output=tmp_path / "a.onnx", weights="copy")
    assert beside.data == tmp_path / "a.onnx.data"
    stored = initializers(onnx.load(tmp_path / "a.onnx"))
    np.testing.assert_array_equal(stored["first.bias"], step().model.first.bias.detach().numpy())
    nowhere = captured(step(), weights="none")
    assert "first.weight" not in names(nowhere.model.graph.initializer)
    assert "first.weight" in names(nowhere.model.graph.input)


CLASSES = (torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))


def as_it_is(model: Any, batch: Any) -> Any:
    x, targets = batch
    return (model(x) - targets).square().mean()


@pytest.mark.parametrize(
    ("loss", "batch", "names"),
    [
        (nn.CrossEntropyLoss(), CLASSES, ("input", "target")),
        (nn.functional.cross_entropy, CLASSES, ("input", "target")),
        (lambda model, x: {"loss": model(x).mean()}, torch.zeros(2, 4), ("x",)),
        (lambda model, x: (model(x).mean(), x), [torch.zeros(2, 4)], ("x",)),
        (as_it_is, (torch.zeros(2, 4), torch.zeros(2, 3)), ("batch_0", "batch_1")),
    ],
)
def test_losses_of_every_form(loss: Any, batch: Any, names: tuple[str, ...]) -> None:
    capture = captured(memplan.TorchStep(nn.Linear(4, 3), loss, batch))
    assert capture.contract.loss == "loss"
    assert capture.batch == names


class Output(dict[str, Any]):
    """As transformers answers: a dictionary whose fields are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


class Labelled(nn.Module):  # type: ignore[name-defined,misc]
    """A model of the kind of transformers: it computes its loss where there are labels."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        scores = self.head(self.table(input_ids) * attention_mask.unsqueeze(-1))
        if labels is None:
            return Output(logits=scores)
        return Output(loss=nn.functional.cross_entropy(scores.mT, labels), logits=scores)


def tokens(*names: str) -> dict[str, Any]:
    return {name: torch.ones(2, 3, dtype=torch.int64) for name in names}


@pytest.mark.parametrize(
    "loss",
    [
        None,
        lambda model, batch: model(**batch).loss,
        lambda model, batch: model(**batch),
        lambda model, batch: model(batch["input_ids"], batch["attention_mask"], batch["labels"])[
            "loss"
        ],
        lambda model, **batch: model(**batch).loss,
    ],
)
def test_models_that_answer_with_a_loss_and_more(loss: Any) -> None:
    batch = tokens("input_ids", "attention_mask", "labels")
    assert captured(memplan.TorchStep(Labelled(), loss, batch)).batch == tuple(batch)


def test_checkpoints_of_the_model_are_marked() -> None:
    from torch.utils.checkpoint import checkpoint

    class Deep(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            blocks = [nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)) for _ in "ab"]
            self.blocks, self.reentrant = nn.ModuleList(blocks), reentrant
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Any) -> Any:
            x = x * self.scale  # or a reentrant checkpoint would train nothing
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=self.reentrant)
            return x.square().mean()

    for reentrant in (False, True):
        capture = captured(memplan.TorchStep(Deep(reentrant), None, torch.randn(2, 4)))
        marked = [
            node.name
            for node in capture.model.graph.node
            if any(item.key == CHECKPOINT_KEY for item in node.metadata_props)
        ]
        assert marked == ["mul", "linear_1", "add", "linear_3"]
        assert any("torch.utils.checkpoint" in note for note in capture.notes)


def test_evaluation_mode_is_noticed() -> None:
    given = step()
    given.model.eval()
    capture = captured(given)
    assert any("call model.train()" in note for note in capture.notes)


def failing(model: Any, x: Any) -> Any:
    return model(x.reshape(3, 3)).mean()


def test_a_model_that_fixes_a_dynamic_size() -> None:
    def loss(model: Any, x: Any) -> Any:
        return model(x)[: len(x)].mean() + model.weight.expand(len(x), 4, 4).mean()

    with pytest.raises(ModelError, match=r"torch\.export refuses.*batch"):
        captured(memplan.TorchStep(nn.Linear(4, 4), loss, {"x": torch.zeros(3, 4)}, None, "batch"))


class Placed(nn.Module):  # type: ignore[name-defined,misc]
    """A table of 16 positions, cut to the length of the text as transformers cuts it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(7, 4), nn.Embedding(16, 4)
        self.register_buffer("position_ids", torch.arange(16)[None])

    def forward(self, tokens: Any) -> Any:
        places = self.places(self.position_ids[:, : tokens.shape[1]])
        return (self.tokens(tokens) + places).square().mean()


def test_a_model_that_limits_a_dynamic_size() -> None:
    given = {"tokens": torch.ones(2, 3, dtype=torch.int64)}
    sizes = {"tokens": {0: "batch", 1: "length"}}
    capture = captured(memplan.TorchStep(Placed(), None, given, dynamic=sizes))
    shape = next(v for v in capture.model.graph.input if v.name == "tokens").type.tensor_type.shape
    assert [dim.dim_param for dim in shape.dim] == ["batch", "length"]
    assert any("'length' is at most 16" in note for note in capture.notes)


def test_an_output_that_exists_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        captured(step(), output=path)
    assert path.read_text() == "mine"


def scaled(**settings: Any) -> memplan.TorchStep:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    return step(optimizer=True, scaler=scaler, **settings)


def test_a_scaler_is_read_as_it_stands() -> None:
    given = scaled(clip_value=0.5)
    given.scaler.load_state_dict({**given.scaler.state_dict(), "scale": 4.0, "_growth_tracker": 2})
    capture = captured(given)
    assert capture.loss_scale == "dynamic{init_scale=4,growth_interval=3,growth_tracker=2}"
    found = json.loads(json.dumps(capture.as_json()))
    assert (found["clip_norm"], found["clip_value"]) == (None, 0.5)
    assert found["roles"]["loss_scale"] == found["roles"]["growth_tracker"] == "optimizer-state"
    assert found["roles"]["found_inf"] == "output"
    defaults = initializers(capture.model)
    assert (float(defaults["loss_scale"]), int(defaults["growth_tracker"])) == (4.0, 2)
    assert any("all held until the end" in note for note in capture.notes)


def test_a_number_or_none_stands_for_a_scaler() -> None:
    capture = captured(step(optimizer=True, scaler=1024))
    assert capture.loss_scale == "1024"
    assert capture.contract.roles["loss_scale"] == "hyperparameter"
    plain = captured(step(optimizer=True, scaler="none"))
    assert plain.loss_scale == "none"
    assert "loss_scale" not in plain.contract.roles
    off = torch.amp.GradScaler("cpu", enabled=False)
    assert captured(step(optimizer=True, scaler=off)).loss_scale == "none"


def linear(loss: Any = None, batch: Any = None, **settings: Any) -> memplan.TorchStep:
    given = torch.zeros(2, 4) if batch is None else batch
    return memplan.TorchStep(nn.Linear(4, 4), loss, given, **settings)


def with_a_parameter_called_loss() -> memplan.TorchStep:
    given = step()
    given.model.register_parameter("loss", nn.Parameter(torch.ones(8)))
    return given


REFUSED: list[tuple[Callable[[], memplan.TorchStep], str]] = [
    (linear, "is not a scalar"),
    (lambda: linear(failing), "fails on the batch"),
    (lambda: memplan.TorchStep(4, None, torch.zeros(2)), "is int, not a torch.nn.Module"),
    (lambda: linear(nn.MSELoss(), ()), "the batch is empty"),
    (lambda: linear(batch={"x": 3}), "'x' of the batch is int"),
    (lambda: linear(batch={"weight": torch.zeros(4)}), "'weight' names"),
    (lambda: linear(dynamic={"y": {0: "n"}}), "has no 'y'"),
    (lambda: linear(dynamic=5), "neither a name nor names"),
    (lambda: linear(dynamic={"input": 5}), "neither a name nor names"),
    (lambda: linear(dynamic=["input"]), "neither a name nor names"),
    (with_a_parameter_called_loss, "is called 'loss'"),
    (
        lambda: memplan.TorchStep(Labelled(), None, tokens("input_ids", "attention_mask")),
        "the loss is None.*'labels'",
    ),
    (lambda: step(scaler="dynamic"), "has a loss scale and no optimizer"),
    (lambda: step(clip_norm=1.0), "has clip_norm and no optimizer"),
    (lambda: step(True, scaler=[]), "the scaler is list"),
    (lambda: step(True, clip_norm=-1.0), "clip_norm is -1.0, not a positive number"),
    (lambda: step(True, clip_value="much"), "clip_value is 'much'"),
    (lambda: step(True, clip_norm=1, clip_value=1), "by clip_norm or by clip_value"),
    (lambda: step(True, scaler="slow"), "slow: not a loss scale"),
]


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_steps_that_cannot_be_captured(make: Callable[[], memplan.TorchStep], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        captured(make())
    assert re.search(said, f"{raised.value.message} {raised.value.hint}")


@pytest.mark.parametrize(
    ("output", "weights", "words"),
    [
        ("train.py", "auto", "inputs are never overwritten"),
        ("link.onnx", "auto", "inputs are never overwritten"),
        ("step.onnx", "copy", r"step\.onnx\.data exists"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_code_is_run(
    output: str, weights: str, words: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise AssertionError('it is run')")
    (tmp_path / "link.onnx").symlink_to(script)
    (tmp_path / "step.onnx.data").write_bytes(b"mine")
    force = weights == "auto"
    with pytest.raises(UsageError, match=words):
        memplan.capture(f"{script}:make", tmp_path / output, weights=weights, force=force)
    assert script.read_text() == "raise AssertionError('it is run')"
    assert (tmp_path / "step.onnx.data").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["it's", "a b", "a\nb", 'q"(]; x', "\\", "s\udc80"])
def test_a_name_that_is_no_name_of_python(name: str) -> None:
    """It is captured, or PyTorch's own refusal is one line."""

    class Named(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleDict({name: nn.Linear(4, 3)})

        def forward(self, x: Any) -> Any:
            return self.layers[name](x).square().mean()

    given = memplan.TorchStep(Named(), None, torch.ones(2, 4))
    if name in ("it's", "a b"):
        found = memplan.capture(given)
        assert f"layers.{name}.weight" in found.trained
        return
    with pytest.raises(ModelError, match="torch cannot decompose") as raised:
        memplan.capture(given)
    assert raised.value.message.isprintable()
